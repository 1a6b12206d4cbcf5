"""Receivers on an executor's host: one of them, in a private folder, seen to end with whoever needs it."""

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pyspark_nsq.connector import executors
from pyspark_nsq.connector.executors import StartPartition, ensure_receiver, folder_of, way_from
from pyspark_nsq.connector.folders import make_private
from pyspark_nsq.connector.hosts import address_in, address_toward, driver_address, identity_of
from pyspark_nsq.connector.receiver_tls import ReceiverTls
from pyspark_nsq.connector.ways import Starting, Way

WAY = Way(None, "the token that nobody sees", "127.0.0.1:9", Starting(None, range(1), 1.0))


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A host of the test's own; its path is short enough for a socket's. pytest chooses its folder before."""
    with tempfile.TemporaryDirectory(prefix="host-") as folder:
        monkeypatch.setattr(executors.tempfile, "gettempdir", lambda: folder)
        monkeypatch.setattr(executors, "_looks", {})
        yield Path(folder)


def test_one_starts_a_receiver_and_others_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    monkeypatch.setattr(executors, "_start", lambda _way, _folder, lock_fd: held.append(os.dup(lock_fd)))
    ensure_receiver(WAY)
    for _ in range(3):
        executors._looks.clear()
        ensure_receiver(WAY)
    assert len(held) == 1
    # It has died, and its lock with it.
    os.close(held[0])
    executors._looks.clear()
    ensure_receiver(WAY)
    assert len(held) == 2
    os.close(held[1])


class Clock:
    """The worker's ``time``, which stands still but for a test."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def started_at(monkeypatch: pytest.MonkeyPatch) -> tuple[Clock, list[float]]:
    """The clock, and when receivers were started that all end at once."""
    clock, started = Clock(), list[float]()
    monkeypatch.setattr(executors, "time", clock)
    monkeypatch.setattr(executors, "_start", lambda *_: started.append(clock.now))
    return clock, started


def look_each_second(clock: Clock, seconds: int, *ways: Way) -> None:
    for _ in range(seconds):
        for way in ways:
            ensure_receiver(way)
        clock.now += 1


def test_where_receivers_do_not_last_they_are_started_ever_more_rarely(started_at: tuple[Clock, list[float]]) -> None:
    clock, started = started_at
    look_each_second(clock, 200, WAY)
    assert started == [0, 1, 3, 7, 15, 31, 63, 123, 183]


def test_the_pauses_of_one_query_are_not_those_of_another(started_at: tuple[Clock, list[float]]) -> None:
    clock, started = started_at
    look_each_second(clock, 10, WAY, replace(WAY, token="of another query"))
    assert started == [0, 0, 1, 1, 3, 3, 7, 7]


def test_after_one_that_lasted_the_next_is_soon_replaced(started_at: tuple[Clock, list[float]]) -> None:
    clock, started = started_at
    look_each_second(clock, 63, WAY)
    clock.now += 200
    started.clear()
    look_each_second(clock, 2, WAY)
    assert started == [263, 264]


def test_a_host_that_cannot_start_one_can_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Path] = []

    def refuse(folder: Path) -> None:
        tried.append(folder)
        raise OSError(28, "no space")

    monkeypatch.setattr(executors, "make_private", refuse)
    ensure_receiver(WAY)
    assert tried


def test_executors_are_noted_and_seen_to_end(tmp_path: Path) -> None:
    make_private(tmp_path / "folder")
    with subprocess.Popen(["sleep", "100"]) as process:
        started = executors.started_at(process.pid)
        (tmp_path / "folder" / f"executor-{process.pid}-{started}").touch()
        # Another process that had this number once.
        (tmp_path / "folder" / f"executor-{process.pid}-1").touch()
        assert executors.executors(tmp_path / "folder") == [(process.pid, started)]
        process.kill()
        # Dead, and not yet waited for.
        while executors.started_at(process.pid):
            time.sleep(0.01)
        assert executors.executors(tmp_path / "folder") == []


def test_the_executor_is_the_first_parent_that_is_no_python() -> None:
    code = "from pyspark_nsq.connector.executors import executor_of; import os; print(executor_of(os.getpid()).pid)"
    daemon = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    shell = f'echo $$; "{sys.executable}" -c "$CODE"; true'
    done = subprocess.run(["sh", "-c", shell], env=os.environ | {"CODE": daemon}, capture_output=True, text=True)
    shell_pid, found = done.stdout.split()
    assert found == shell_pid


def test_a_receiver_whose_driver_cannot_be_reached_ends_and_leaves_nothing(temporary: Path) -> None:
    ensure_receiver(WAY)
    folder = folder_of(WAY.token)
    deadline = time.monotonic() + 60
    while folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not list(temporary.iterdir())


def test_a_receiver_listens_where_it_is_told_and_leaves_nothing_when_it_is_terminated() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port: int = server.getsockname()[1]
    patient = Way(None, WAY.token, "127.0.0.1:9", Starting(None, range(port, port + 1), 100.0))
    ensure_receiver(patient)
    folder = folder_of(WAY.token)
    deadline = time.monotonic() + 60
    while not list(folder.glob("*.sock")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    socket.create_connection(("127.0.0.1", port)).close()
    (receiver,) = holders(folder / "lock")
    for name in ("cmdline", "environ"):
        assert WAY.token.encode() not in Path(f"/proc/{receiver}/{name}").read_bytes()
    # A session of its own, and nobody's child: neither the end of a worker nor of its group takes it along.
    assert os.getsid(receiver) != os.getsid(0)
    os.kill(receiver, signal.SIGTERM)
    while folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def holders(path: Path) -> list[int]:
    """The processes that have a file open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.path.realpath(each) == str(path) for each in (process / "fd").iterdir()):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_a_way_goes_to_receivers_whole_and_takes_little_room() -> None:
    tls = ReceiverTls("ca.pem", "cert.pem", "key.pem", "name")
    for way in (WAY, Way(tls, "token", "h:1", Starting("10.0.0.0/8", range(1024, 65536), 2.5))):
        told = json.dumps(asdict(way), default=executors._bounds)
        assert way_from(json.loads(told)) == way
        # It goes along with every partition.
        assert len(told) + len(pickle.dumps(StartPartition(1, way))) < 2000


def test_nothing_shows_the_token() -> None:
    for shown in (repr(WAY), repr(StartPartition(1, WAY)), str(folder_of(WAY.token))):
        assert WAY.token not in shown


def test_addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    assert address_toward("127.0.0.1") == "127.0.0.1"
    assert address_in("127.0.0.0/8") == "127.0.0.1"
    with pytest.raises(ValueError, match=r"receiverHost: the host \S+ has no address in 203.0.113.0/24"):
        address_in("203.0.113.0/24")
    assert driver_address("driver.example.org") == "driver.example.org"
    assert driver_address("127.0.0.0/8") == "127.0.0.1"
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.1.2.3")
    assert driver_address(None) == "10.1.2.3"
    assert identity_of(tmp_path) == identity_of(tmp_path) != identity_of(tmp_path.parent)
