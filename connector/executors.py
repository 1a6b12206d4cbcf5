"""Receivers on executors, as Spark's tasks see them: each task makes sure that its host has one.

A host's receiver of a query has a private folder there: it holds a lock in it for as long as it lives, serves on a unix
socket in it, and reads in it which executors use it. Without any it ends.
"""

import hashlib
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from pyspark_nsq.connector.folders import lock, make_private
from pyspark_nsq.connector.hosts import identity_of
from pyspark_nsq.connector.spawning import environment
from pyspark_nsq.connector.ways import Way

log = logging.getLogger(__name__)

_COMMAND: Final = [sys.executable, "-P", "-m", "pyspark_nsq.connector.executor_receiver"]
_EXECUTOR_PREFIX: Final = "executor-"
# A worker that reads many partitions does not look each time.
_LOOK_S: Final = 1.0
# Where receivers do not last it starts them ever more rarely. One that lasted so long did not die of its start.
_PAUSE_S_MAX: Final = 60.0
_HEALTHY_S: Final = 120.0
_LOOKS_MAX: Final = 64
_START_S: Final = 30.0
_GATHER_LOOK_S: Final = 0.1
# The coordinator ends this sooner, where it can be reached.
_GATHER_S_MAX: Final = 40.0


class Executor(NamedTuple):
    """A process, and when it started: another may get its number later."""

    pid: int
    started: int


class StartPartition(InputPartition):
    """What a task gets that reads nothing: it makes sure that its host has a receiver, and keeps its place a while."""

    def __init__(self, number: int, way: Way) -> None:
        super().__init__(number)
        self.way = way

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value})"


def start_here(way: Way) -> None:
    """Wait until this host has a receiver at work."""
    from pyspark_nsq.connector.asking import gathered

    deadline = time.monotonic() + _GATHER_S_MAX
    while time.monotonic() < deadline:
        ensure_receiver(way)
        folder = folder_of(way.token)
        # Without a folder it has failed, and said why: other hosts have receivers.
        if not folder.exists() or gathered(way, identity_of(folder)):
            return
        time.sleep(_GATHER_LOOK_S)
    log.warning("this host has no receiver after %g s: see the log above", _GATHER_S_MAX)


@dataclass
class _Looks:
    """When this worker looks for a query's receiver again."""

    due_at: float = -math.inf
    started_at: float = -math.inf
    short_lives: int = 0

    def looked(self, now: float) -> None:
        self.due_at = now + _LOOK_S

    def started(self, now: float) -> None:
        """So the one that it started before has ended."""
        self.short_lives = self.short_lives + 1 if now - self.started_at < _HEALTHY_S else 0
        self.started_at = now
        self.due_at = now + min(_LOOK_S * 2**self.short_lives, _PAUSE_S_MAX)


_looks: dict[str, _Looks] = {}


def ensure_receiver(way: Way) -> None:
    """Start a receiver of the query on this host, unless it has one."""
    now = time.monotonic()
    if way.token not in _looks and len(_looks) == _LOOKS_MAX:
        _looks.clear()
    looks = _looks.setdefault(way.token, _Looks())
    if now < looks.due_at:
        return
    looks.looked(now)
    try:
        _ensure_receiver(way, looks, now)
    except (OSError, subprocess.SubprocessError) as error:
        # What there is to read can be read all the same.
        log.warning("no receiver can be started on this host: %r", error)


def _ensure_receiver(way: Way, looks: _Looks, now: float) -> None:
    folder = folder_of(way.token)
    make_private(folder)
    _note_executor(folder)
    lock_fd = lock(folder)
    if lock_fd is None:
        return
    looks.started(now)
    try:
        _start(way, folder, lock_fd)
    finally:
        # The receiver has its own, and with it the lock.
        os.close(lock_fd)


def _start(way: Way, folder: Path, lock_fd: int) -> None:
    process = subprocess.Popen(
        _COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment(),
        start_new_session=True,
        pass_fds=[lock_fd],
    )
    # Not in its arguments or environment: those can be read by others. It goes on in a child of its own.
    told = {"folder": str(folder), "lock_fd": lock_fd, "way": asdict(way)}
    process.communicate(json.dumps(told, default=_bounds).encode(), _START_S)
    log.info("started a receiver on this host")


def _bounds(ports: range) -> list[int]:
    return [ports.start, ports.stop]


# The folder.


def folder_of(token: str) -> Path:
    name = hashlib.sha256(token.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"{folder_prefix()}{name}"


def folder_prefix() -> str:
    return f"pyspark-nsq-{os.getuid()}-"


def _note_executor(folder: Path) -> None:
    executor = executor_of(os.getpid())
    (folder / f"{_EXECUTOR_PREFIX}{executor.pid}-{executor.started}").touch(mode=0o600)


def executors(folder: Path) -> list[Executor]:
    """The executors that were noted in the folder, and live."""
    noted = (path.name.removeprefix(_EXECUTOR_PREFIX) for path in folder.glob(f"{_EXECUTOR_PREFIX}*"))
    found = [Executor(*map(int, name.split("-"))) for name in noted]
    return [executor for executor in found if started_at(executor.pid) == executor.started]


# Processes.


def executor_of(pid: int) -> Executor:
    """The first of a worker's parents that is no Python: workers come and go, also the one that forks them."""
    own = _executable(pid)
    while _executable(pid) == own and (parent := _parent(pid)):
        pid = parent
    return Executor(pid, started_at(pid) or 0)


def _executable(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def _fields(pid: int) -> list[str]:
    """What /proc tells about a process, from its state on; nothing where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    fields = text.rpartition(")")[2].split()
    # One that is dead, and that nobody has asked about.
    return [] if fields[0] == "Z" else fields


def _parent(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[1]) if fields else 0


def started_at(pid: int) -> int | None:
    """When a living process started, in ticks of the machine."""
    fields = _fields(pid)
    return int(fields[19]) if fields else None


def way_from(fields: dict[str, Any]) -> Way:
    """The way that ``_start`` has written."""
    from pyspark_nsq.connector.receiver_tls import ReceiverTls
    from pyspark_nsq.connector.ways import Starting

    tls, starting = fields["tls"], fields["starting"]
    starting["ports"] = range(*starting["ports"])
    return Way(tls and ReceiverTls(**tls), fields["token"], fields["coordinator"], Starting(**starting))
