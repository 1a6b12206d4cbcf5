"""The demo as somebody at a terminal has it: it starts, it can be ended, and nothing stays behind."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from rig.ports import listening, wider_than_loopback

COMMAND = [sys.executable, "-m", "pyspark_nsq.demo", "--rate", "300"]
DONE, INTERRUPTED = 0, 130
ENDED = re.compile(r"ended: published ([\d,]+) .*counted ([\d,]+)$", re.MULTILINE)


def wait_until(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.1)


class Mark:
    """An environment variable by which all processes of one demo are found, whoever is their parent."""

    def __init__(self) -> None:
        self.text = f"NSQ_DEMO_MARK={uuid.uuid4().hex}"
        name, _, value = self.text.partition("=")
        self.environment = os.environ | {name: value}

    def processes(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            try:
                if self.text in Path(f"/proc/{process.pid}/environ").read_text() and process.status() != "zombie":
                    found.append(" ".join(process.cmdline())[:200])
            except (OSError, psutil.Error):
                continue  # It has ended meanwhile, or is somebody else's.
        return found


@pytest.fixture
def mark() -> Iterator[Mark]:
    mark = Mark()
    yield mark
    wait_until(lambda: not mark.processes(), "all processes of the demo are gone")


def read_until(stream: int, pattern: bytes) -> None:
    seen = b""
    while not re.search(pattern, seen):
        seen += os.read(stream, 65536)


def test_every_event_is_accounted_for(mark: Mark) -> None:
    command = [Path(__file__).parents[2] / "run", "demo", "--seconds", "3"]
    ran = subprocess.run(command, env=mark.environment, capture_output=True, text=True)
    assert ran.returncode == DONE, ran.stdout + ran.stderr
    assert mark.processes() == []
    ended = ENDED.search(ran.stdout)
    assert ended
    assert ended[1] == ended[2]
    assert int(ended[1].replace(",", "")) > 300
    assert ran.stderr == ""


def test_ctrl_c_ends_all_of_it_in_order(mark: Mark) -> None:
    """On a terminal, where the whole group of processes gets the signal."""
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            COMMAND, env=mark.environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        ) as demo:
            read_until(ours, rb"(?s)producer -> nsqd -> Spark.*published (\x1b\[[\d;]*m)?[1-9]")
            os.killpg(demo.pid, signal.SIGINT)
            read_until(ours, b"Every published event was counted exactly once.")
            assert demo.wait(60) == DONE
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(("program", "number"), [("nsqlookupd", signal.SIGINT), ("java", signal.SIGTERM)])
def test_an_interrupt_at_the_start_is_heard_and_leaves_nothing_behind(mark: Mark, program: str, number: int) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(COMMAND, env=mark.environment, stdout=pipe, stderr=pipe, text=True) as demo:
        assert demo.stdout is not None
        demo.stdout.readline()
        wait_until(lambda: any(program in line for line in mark.processes()), f"{program} runs")
        demo.send_signal(number)
        assert demo.stdout.readline() == "Ending as soon as this has started ...\n"
        # One more of those who are not patient.
        demo.send_signal(number)
        assert demo.communicate(timeout=60) == ("", "aborted: nothing was checked\n")
    assert demo.returncode == INTERRUPTED


def test_a_second_interrupt_does_not_wait(mark: Mark) -> None:
    with subprocess.Popen(COMMAND, env=mark.environment, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        next(line for line in demo.stdout if "running" in line)
        # Two of the same might become one on their way.
        demo.send_signal(signal.SIGTERM)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == INTERRUPTED


def test_nothing_outlives_a_demo_that_was_killed(mark: Mark) -> None:
    with subprocess.Popen(COMMAND, env=mark.environment, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        next(line for line in demo.stdout if "running" in line)
        assert len(listening(demo.pid)) > 4
        assert wider_than_loopback(demo.pid) == []
        demo.kill()
        assert demo.wait(60) == -signal.SIGKILL
