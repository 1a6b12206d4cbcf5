"""What the faults stand on: a report that cannot look better than it is, a proxy that does what it says."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rig.daemons import wait_until

from faults.crash import duplicates_allowed, named
from faults.gates import BEFORE_FIN, FIN_SENT, HALF_WAY, MOMENTS, RECEIVED, Gates
from faults.proxy import Proxy, Rules
from faults.queries import FILES, NSQ, SINKS
from faults.report import Row, append, load, merged, table, write
from faults.sampling import Sampler, slope_per_h
from faults.scenario import Context, Scenario, found, own_brokers, run
from faults.sinks import committed_files
from faults.victims import DRIVER, NSQDS, RECEIVER, VICTIMS
from pyspark_nsq.connector.settings import Address

ROW = Row("kill -9: sink written", "receiver", "go", 1, 250, 0, 7, True, 1.5, 3, "crash:receiver:sink written:files@go")


def test_rows_of_several_writers_make_one_report(tmp_path: Path) -> None:
    writers = [threading.Thread(target=append, args=(replace(ROW, seed=seed), tmp_path)) for seed in range(20)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(row.seed for row in load(tmp_path)) == list(range(20))
    write(tmp_path, "Title", {"seed": 3})
    text = (tmp_path / "report.md").read_text()
    assert "| kill -9: sink written | receiver | go | 20 | 5,000 | 0 | 140 | yes | 30 | ok |" in text
    content = json.loads((tmp_path / "report.json").read_text())
    assert [row["passed"] for row in content["rows"]] == [True] * 20


@pytest.mark.parametrize(
    ("change", "passed"),
    [
        ({}, True),
        ({"lost": 1}, False),
        ({"failure": "it hung"}, False),
        ({"duplicates_allowed": False}, False),
        ({"duplicates_allowed": False, "duplicated": 0}, True),
    ],
)
def test_when_a_row_has_passed(change: dict[str, object], passed: bool) -> None:
    row = replace(ROW, **change)  # type: ignore[arg-type]
    assert row.passed is passed
    assert ("FAILED" in table([row])) is not passed


def test_a_failed_run_does_not_disappear_among_good_ones() -> None:
    rows = merged([ROW, ROW, replace(ROW, lost=2), ROW])
    assert [(row.runs, row.lost) for row in rows] == [(3, 0), (1, 2)]


def test_an_exception_is_a_failed_row_that_can_be_repeated(tmp_path: Path) -> None:
    def fail(_context: Context) -> Row:
        raise RuntimeError("oh")

    (row,) = run(Scenario("some name", fail, "fault", "victim"), Context(own_brokers(), tmp_path, 77))
    assert not row.passed
    assert (row.name, row.seed, row.failure) == ("some name@ours", 77, "RuntimeError: oh")


def test_the_matrix_is_complete() -> None:
    assert len(found()) >= 24
    for victim in VICTIMS:
        for moment in MOMENTS:
            for sink in SINKS:
                assert named(f"crash:{victim}:{moment}:{sink}")
    assert named("crash:nobody:never:files") is None


def test_duplicates_are_allowed_only_where_they_cannot_be_helped() -> None:
    assert duplicates_allowed(DRIVER, BEFORE_FIN, FILES)
    assert duplicates_allowed(RECEIVER, HALF_WAY, FILES)
    assert duplicates_allowed(NSQDS, HALF_WAY, NSQ)
    assert not any(duplicates_allowed(victim, FIN_SENT, sink) for victim in VICTIMS for sink in SINKS)
    assert not any(duplicates_allowed(NSQDS, moment, FILES) for moment in MOMENTS)


def test_a_gate_holds_until_it_is_opened(tmp_path: Path) -> None:
    gates = Gates(tmp_path)
    gates.wait(RECEIVED)
    gates.close(RECEIVED, "12")
    assert gates.text(RECEIVED) == "12"
    visitor = threading.Thread(target=gates.wait, args=(RECEIVED,))
    visitor.start()
    wait_until(lambda: gates.arrived(RECEIVED) == [psutil.Process().pid], "the visitor")
    assert visitor.is_alive()
    gates.open(RECEIVED)
    visitor.join(10)
    assert not visitor.is_alive()


def test_only_files_that_the_log_names_count(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    entries = [json.dumps({"path": f"file://{tmp_path}/{name}", "action": "add"}) for name in "abc"]
    (log / "8").write_text("v1\n" + entries[0])
    (log / "9.compact").write_text("\n".join(["v1", *entries[:2]]))
    (log / "10").write_text("v1\n" + entries[2])
    (log / ".10.crc").write_bytes(b"\0")
    assert sorted(path.name for path in committed_files(tmp_path)) == ["a", "b", "c"]


def test_slopes_are_within_each_process() -> None:
    hour = 3600.0
    assert slope_per_h([[(0, 5), (hour, 7)], [(0, 100), (hour, 102)]]) == pytest.approx(2)
    assert slope_per_h([[(0, 5)], [(hour, 100)]]) == 0


def test_a_process_is_sampled() -> None:
    sampler = Sampler()
    sampler.look({"me": [psutil.Process()]})
    (sample,) = sampler.samples
    assert sample.memory_mib > 1
    assert sample.files > 1


class Echo:
    """Sends back what it gets."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, suppress(ConnectionError):
            while data := sock.recv(65536):
                sock.sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    echo = Echo()
    proxy = Proxy(lambda: echo.address)
    yield proxy
    proxy.close()
    echo.close()


def dial(proxy: Proxy) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", proxy.port), timeout=20)
    sock.settimeout(20)
    return sock


def test_a_proxy_passes_on(proxy: Proxy) -> None:
    proxy.rules = Rules(piece_size=3, jitter_s=0.001)
    with dial(proxy) as sock:
        sock.sendall(b"hello, world")
        got = b""
        while len(got) < 12:
            got += sock.recv(100)
        assert got == b"hello, world"


def test_a_stalled_proxy_loses_nothing(proxy: Proxy) -> None:
    with dial(proxy) as sock:
        proxy.rules = Rules(stall_up=True)
        sock.sendall(b"late")
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(100)
        sock.settimeout(20)
        proxy.heal()
        assert sock.recv(100) == b"late"


def test_a_reset_is_a_reset(proxy: Proxy) -> None:
    with dial(proxy) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


def test_a_forgotten_connection_is_silent(proxy: Proxy) -> None:
    with dial(proxy) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        proxy.forget()
        sock.sendall(b"is anybody there?")
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sock.recv(1)


def test_fins_of_a_topic_are_kept_back(proxy: Proxy) -> None:
    proxy.keep_fins("mine")
    with dial(proxy) as mine, dial(proxy) as other:
        mine.sendall(b"SUB mine c\n")
        other.sendall(b"SUB other c\n")
        assert mine.recv(100) == b"SUB mine c\n"
        assert other.recv(100) == b"SUB other c\n"
        mine.sendall(b"FIN 0123456789abcdef\n")
        other.sendall(b"FIN 0123456789abcdef\n")
        assert other.recv(100).startswith(b"FIN")
        wait_until(lambda: proxy.kept_fins("mine") == 1, "a kept FIN")
        assert proxy.kept_fins("other") == 0
        proxy.release_fins("mine", drop=False)
        assert mine.recv(100).startswith(b"FIN")
