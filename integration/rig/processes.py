"""The processes below one, which come and go while they are looked at."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil


def below(pid: int | None = None) -> Iterator[tuple[psutil.Process, str]]:
    """Every descendant of a process, or of this one, with its command line."""
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            yield process, " ".join(process.cmdline())


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs: what ended and was not waited for does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill(process: psutil.Process) -> None:
    """End it without a warning, if it has not ended."""
    with suppress(psutil.NoSuchProcess):
        process.kill()


def command_of(process: psutil.Process) -> str:
    """Its command line; empty where it has ended."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def memory_bytes(pid: int) -> int:
    """The memory that a process has now."""
    return _memory_bytes(pid, "VmRSS")


def peak_memory_bytes(pid: int) -> int:
    """The most memory that it ever had."""
    return _memory_bytes(pid, "VmHWM")


def forget_peak_memory(pid: int) -> None:
    """From now on the most that it ever had is what it has now, or gets."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _memory_bytes(pid: int, name: str) -> int:
    """0 where it has ended."""
    with suppress(OSError):
        if found := re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()):
            return int(found[1]) * 1024
    return 0


def show() -> None:
    """Print what anybody can see of the processes below this one."""
    for process, command in below():
        with suppress(psutil.NoSuchProcess):
            print("process", command, process.environ())
