"""Offsets in, batches out: the coordinator and the reader above it, with receivers that only say what they hold."""

import logging
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from scripted_nsqd import ScriptedNsqd

from pyspark_nsq.connector import crews
from pyspark_nsq.connector.available_now import Drain
from pyspark_nsq.connector.channels import listen, make_server
from pyspark_nsq.connector.connection import Connection, Source
from pyspark_nsq.connector.coordinator import Coordinator, RefusalError
from pyspark_nsq.connector.discovery import TopicStats
from pyspark_nsq.connector.errors import DiscoveryError, NsqError
from pyspark_nsq.connector.handshake import ServerFacts
from pyspark_nsq.connector.offsets import START, Offset, first_position
from pyspark_nsq.connector.options import parse_source_options
from pyspark_nsq.connector.report import Report
from pyspark_nsq.connector.schema import DEFAULT_SCHEMA
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.connector.stream_reader import NsqStreamReader, TriggerError
from pyspark_nsq.connector.wire import from_source
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc
from pyspark_nsq.proto.frames import encode_message

OPTIONS = {
    "topic": "topic",
    "channel": "channel",
    "nsqdTcpAddresses": "127.0.0.1:4150",
    "authSecret": "nobody may see this",
}


SOURCE = Source("topic", Address("127.0.0.1", 4150))


class FakeReceiver:
    """Holds what a test says, and notes what it is to finish."""

    def __init__(self, *_: Any) -> None:
        self.incarnation = 0
        self.address = "127.0.0.1:1"
        self.status: pb.Status | None = None
        self.past: list[pb.Status] = []
        self.failure: NsqError | None = None
        self.finished: list[int] = []

    def holds(self, end: int, **source: Any) -> None:
        sources = [pb.SourceStatus(source=from_source(SOURCE), connections=1, **source)] if source else []
        self.status = pb.Status(end=end, finished=end, sources=sources)

    def dies(self) -> None:
        assert self.status
        self.past.append(self.status)
        self.incarnation, self.status = self.incarnation + 1, None

    def finish(self, before: int) -> None:
        self.finished.append(before)

    def assign(self, *_: Any) -> None:
        pass


MakeCoordinator = Callable[..., tuple[Coordinator, list[FakeReceiver]]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> MakeCoordinator:
    monkeypatch.setattr(crews, "ReceiverProcess", FakeReceiver)

    def made(available_now: bool = False, **options: str) -> tuple[Coordinator, list[FakeReceiver]]:
        coordinator = Coordinator(parse_source_options(OPTIONS | options), available_now)
        return coordinator, coordinator._receivers  # type: ignore[return-value]

    return made


@pytest.fixture
def reader(make: MakeCoordinator) -> tuple[NsqStreamReader, FakeReceiver]:
    """A reader that has started, and its one receiver."""
    coordinator, (receiver,) = make()
    found = NsqStreamReader(parse_source_options(OPTIONS), DEFAULT_SCHEMA)
    found._coordinator = coordinator
    return found, receiver


def test_a_batch_is_finished_when_the_next_is_asked_for_and_not_before(
    reader: tuple[NsqStreamReader, FakeReceiver],
) -> None:
    source, receiver = reader
    limit = source.getDefaultReadLimit()
    receiver.holds(10)
    first = source.latestOffset(source.initialOffset(), limit)
    assert first["ends"] == [10]
    assert source.partitions(source.initialOffset(), first)
    receiver.holds(25)
    # Asked again before the batch was logged.
    assert source.latestOffset(source.initialOffset(), limit)["ends"] == [25]
    assert receiver.finished == []
    second = source.latestOffset(first, limit)
    assert receiver.finished == [10]
    # An idle poll is enough, and a commit of the same says nothing new.
    assert source.latestOffset(second, limit) is second
    source.commit(second)
    assert receiver.finished == [10, 25]


def test_the_initial_offset_is_always_the_same_and_does_nothing() -> None:
    source = NsqStreamReader(parse_source_options(OPTIONS), DEFAULT_SCHEMA)
    assert source.initialOffset() == source.initialOffset() == START.to_json()
    assert source._coordinator is None


def test_a_batch_of_another_run_has_nothing_and_finishes_nothing(make: MakeCoordinator) -> None:
    coordinator, (receiver,) = make()
    receiver.holds(500)
    theirs = Offset("another run", (100,))
    assert coordinator.partitions(START, theirs) == []
    coordinator.finish(theirs)
    assert receiver.finished == []
    # What is here comes in the batch after it, all of it.
    end = coordinator.latest(theirs, 1000)
    assert end == Offset(coordinator.session, (500,))
    parts = coordinator.partitions(theirs, end)
    assert (parts[0].first, parts[-1].end) == (0, 500)


def test_a_range_that_died_with_its_receiver_is_left_out_and_counted(make: MakeCoordinator) -> None:
    coordinator, (receiver,) = make()
    receiver.holds(100)
    end = coordinator.latest(START, 1000)
    receiver.dies()
    assert coordinator.latest(end, 1000) == end
    assert coordinator.partitions(START, end) == []
    coordinator._count()
    assert coordinator.report()["lost"] == 100
    receiver.holds(first_position(1) + 7)
    after = coordinator.latest(end, 1000)
    parts = coordinator.partitions(end, after)
    assert sum(part.end - part.first for part in parts) == 7
    assert parts[0].first == first_position(1)


def test_batches_are_limited_and_divided(make: MakeCoordinator) -> None:
    coordinator, receivers = make(receivers="2", numPartitions="4")
    receivers[0].holds(100)
    receivers[1].holds(300)
    end = coordinator.latest(START, 100)
    assert end.ends == (50, 50)
    parts = coordinator.partitions(START, end)
    assert sorted(part.end - part.first for part in parts) == [25, 25, 25, 25]
    assert coordinator.partitions(end, end) == []


def test_a_batch_waits_for_the_minimum_but_not_for_ever(make: MakeCoordinator) -> None:
    coordinator, (receiver,) = make(minMessagesPerTrigger="10", maxTriggerDelay="300ms")
    receiver.holds(3)
    begin = time.monotonic()
    assert coordinator.latest(START, 1000) == START
    while coordinator.latest(START, 1000) == START:
        assert time.monotonic() - begin < 30
    assert time.monotonic() - begin >= 0.3
    end = coordinator.latest(START, 1000)
    receiver.holds(13)
    assert coordinator.latest(end, 1000).ends == (13,)


def test_a_batch_does_not_wait_for_the_minimum_where_a_receiver_is_full(make: MakeCoordinator) -> None:
    coordinator, receivers = make(minMessagesPerTrigger="10", receivers="2")
    receivers[0].status = pb.Status(end=3)
    receivers[1].status = pb.Status(end=4, full=True)
    assert coordinator.latest(START, 1000).ends == (3, 4)
    receivers[1].status = pb.Status(end=4)
    assert coordinator.latest(START, 1000) == START


def test_a_batch_does_not_wait_for_the_minimum_until_nsqd_gives_up_its_messages(make: MakeCoordinator) -> None:
    coordinator, receivers = make(minMessagesPerTrigger="10", receivers="2")
    receivers[0].status = pb.Status(end=3)
    receivers[1].status = pb.Status(end=4, due=2)
    end = coordinator.latest(START, 1000)
    assert end.ends == (3, 4)
    # What that batch held is not finished there yet.
    receivers[0].status = pb.Status(end=5)
    receivers[1].status = pb.Status(end=6, due=4)
    assert coordinator.latest(end, 1000) == end
    receivers[1].status = pb.Status(end=6, due=5)
    assert coordinator.latest(end, 1000).ends == (5, 6)


def there(count: int) -> Drain:
    """So many messages waited when Trigger.AvailableNow's run began."""
    return Drain({SOURCE: TopicStats(count, None)}, set(), 0.0)


def test_available_now_ends_although_messages_go_on_coming(make: MakeCoordinator) -> None:
    coordinator, receivers = make(available_now=True, receivers="2")
    coordinator._drain = there(15)
    receivers[0].holds(10, received_until_mark=10)
    receivers[1].holds(0)
    first = coordinator.latest(START, 4)
    assert first.ends == (4, 0)
    receivers[0].holds(20, received_until_mark=15)
    second = coordinator.latest(first, 1000)
    assert second.ends == (20, 0)
    receivers[0].holds(30, received_until_mark=15)
    receivers[1].holds(5)
    assert coordinator.latest(second, 1000) == second
    # What came after the end is not read, nor finished.
    coordinator.finish(second)
    assert [receiver.finished for receiver in receivers] == [[20], [0]]


def test_available_now_reads_what_it_was_to_read_in_batches_of_the_limit(make: MakeCoordinator) -> None:
    coordinator, (receiver,) = make(available_now=True)
    coordinator._drain = there(10)
    receiver.holds(10, received_until_mark=10)
    ends = [coordinator.latest(START, 4)]
    for published in range(10, 100, 10):
        receiver.holds(10 + published, received_until_mark=10)
        ends.append(coordinator.latest(ends[-1], 4))
    assert [offset.ends for offset in ends] == [(4,), (8,)] + [(10,)] * 8


def test_available_now_reads_again_what_died_with_a_receiver(make: MakeCoordinator) -> None:
    coordinator, (receiver,) = make(available_now=True)
    coordinator._drain = there(10)
    receiver.holds(10, received_until_mark=10)
    first = coordinator.latest(START, 4)
    receiver.dies()
    receiver.holds(first_position(1) + 6, received_until_mark=10)
    after = coordinator.latest(first, 1000)
    assert after.ends == (first_position(1) + 6,)
    assert coordinator.latest(after, 1000) == after


def test_available_now_names_the_nsqds_that_it_did_not_reach(
    make: MakeCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator, (receiver,) = make(available_now=True)
    coordinator._drain = there(10)
    receiver.status = pb.Status(
        sources=[pb.SourceStatus(source=from_source(SOURCE), counters=pb.Counters(failed_connections=3))]
    )
    assert coordinator.latest(START, 1000) == START
    assert "nsqd 127.0.0.1:4150 could not be reached: what it has of topic topic was not read" in caplog.text


def test_available_now_fails_where_no_lookupd_says_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "ReceiverProcess", FakeReceiver)
    monkeypatch.setattr("pyspark_nsq.connector.coordinator.STATS_TIMEOUT_S", 0.0)
    options = {"topic": "t", "channel": "c", "lookupdHttpAddresses": "lookupd.example:4161", "connectTimeout": "10ms"}
    coordinator = Coordinator(parse_source_options(options), available_now=True)
    # As the watcher does where none answers, nobody says that the first look has come.
    with pytest.raises(DiscoveryError, match=r"lookupd\.example:4161: neither this lookupd nor another one"):
        coordinator.prepare_drain()


def test_receivers_that_never_last_end_the_query(make: MakeCoordinator) -> None:
    coordinator, (receiver,) = make()
    receiver.failure = NsqError("died five times")
    with pytest.raises(NsqError, match="died five times"):
        coordinator.latest(START, 10)


def test_what_one_receiver_cannot_do_for_good_ends_the_query(make: MakeCoordinator) -> None:
    coordinator, receivers = make(receivers="2")
    receivers[0].holds(3)
    receivers[1].status = pb.Status(failure="E_UNAUTHORIZED for deadLetterTopic")
    with pytest.raises(RefusalError, match="E_UNAUTHORIZED for deadLetterTopic"):
        coordinator.latest(START, 10)


def test_answers_come_from_what_is_known(reader: tuple[NsqStreamReader, FakeReceiver]) -> None:
    source, receiver = reader
    receiver.holds(10)
    start = source.latestOffset(source.initialOffset(), ReadMaxRows(5))
    assert start["ends"] == [5]
    assert source.reportLatestOffset() is source.reportLatestOffset()


class HangingReceiver(receiver_pb2_grpc.ReceiverServicer):
    """Says what it holds, and does nothing that it is told to."""

    def __init__(self, released: threading.Event) -> None:
        self._released = released

    def Control(self, _commands: object, _context: grpc.ServicerContext) -> Iterator[pb.Status]:  # noqa: N802
        while True:
            yield pb.Status(end=10)
            if self._released.wait(1):
                return


def test_spark_is_answered_while_receivers_and_lookupds_hang(
    start_peer: Callable[..., ScriptedNsqd], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It would be the test's own process that no longer ends.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    released = threading.Event()
    lookupd = start_peer(lambda _peer: released.wait(200))
    server = make_server(4)
    receiver_pb2_grpc.add_ReceiverServicer_to_server(HangingReceiver(released), server)  # type: ignore[no-untyped-call]
    receiver = f"127.0.0.1:{listen(server, '127.0.0.1', [0], None)}"
    server.start()
    (tmp_path / "token").write_text("0123456789abcdef")
    options = {
        "topic": "topic",
        "channel": "channel",
        "lookupdHttpAddresses": str(lookupd.address),
        "receivers": receiver,
        "receiverTokenFile": str(tmp_path / "token"),
        # Whoever waited for an answer would do so for longer than a test may take.
        "connectTimeout": "10m",
    }
    source = NsqStreamReader(parse_source_options(options), DEFAULT_SCHEMA)
    limit, start = source.getDefaultReadLimit(), source.initialOffset()
    try:
        while (end := source.latestOffset(start, limit)) == start or not lookupd.connection_count:
            time.sleep(0.01)
        assert end["ends"] == [10]
        assert source.partitions(start, end)
        # It is to finish them, and does not.
        assert source.latestOffset(end, limit) is end
        source.commit(end)
        assert source.reportLatestOffset()
    finally:
        released.set()
        source.stop()
        server.stop(0).wait()


def test_what_spark_asks_does_not_wait_for_sums_over_all_topics(
    reader: tuple[NsqStreamReader, FakeReceiver], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source, receiver = reader
    coordinator = source._coordinator
    assert coordinator
    limit = source.getDefaultReadLimit()
    receiver.holds(10, counters=pb.Counters(received=10, emitted=7))
    coordinator._count()
    monkeypatch.setattr(Report, "add", None)
    with caplog.at_level(logging.INFO):
        end = source.latestOffset(source.latestOffset(source.initialOffset(), limit), limit)
        source.commit(end)
    assert "a batch of 10 messages is committed; backlog 0, received 10, emitted 7" in caplog.text
    report = source.reportLatestOffset()
    assert report
    assert (report["ends"], report["totals"]["received"]) == ([10], 10)


def test_a_termination_in_the_middle_of_a_stop_leaves_it_alone() -> None:
    """Spark sends SIGTERM to a process that is ending already; waiting for a lock twice would never end."""
    source = NsqStreamReader(parse_source_options(OPTIONS), DEFAULT_SCHEMA)
    stops: list[str] = []

    class Stopping:
        def stop(self) -> None:
            stops.append("stop")
            source._terminate(signal.SIGTERM, None)

    source._coordinator = Stopping()  # type: ignore[assignment]
    source.stop()
    assert stops == ["stop"]


# A reader's process as Spark starts it, with a coordinator that only says what is asked of it.
# The signal may come while "start" is being written, where print would refuse to write in between.
READER = f"""
import os, time
from pyspark_nsq.connector import coordinator
from pyspark_nsq.connector.options import parse_source_options
from pyspark_nsq.connector.schema import DEFAULT_SCHEMA
from pyspark_nsq.connector.stream_reader import NsqStreamReader

class Telling:
    def __init__(self, *_): pass
    def start(self): os.write(1, b"start\\n")
    def stop(self): os.write(1, b"stop\\n")

coordinator.Coordinator = Telling
NsqStreamReader(parse_source_options({OPTIONS!r}), DEFAULT_SCHEMA)._started()
while True:
    # Not signal.pause(), which a signal that comes just before does not end.
    time.sleep(0.01)
"""


def test_a_termination_ends_the_process_when_all_is_given_back() -> None:
    with subprocess.Popen([sys.executable, "-c", READER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "start\n"
        process.terminate()
        assert process.stdout.read() == "stop\n"
    assert process.returncode == -signal.SIGTERM


def test_trigger_once_is_refused(reader: tuple[NsqStreamReader, FakeReceiver]) -> None:
    with pytest.raises(TriggerError, match="availableNow"):
        reader[0].latestOffset(START.to_json(), ReadAllAvailable())


def test_tasks_and_offsets_get_no_secret(reader: tuple[NsqStreamReader, FakeReceiver]) -> None:
    source, receiver = reader
    receiver.holds(10)
    end = source.latestOffset(source.initialOffset(), ReadMaxRows(5))
    for shown in (pickle.dumps(source), repr(end), repr(source.reportLatestOffset()), repr(source)):
        assert "nobody may see this" not in str(shown)


@pytest.mark.parametrize("size", [2**20, 2**20 + 1, 3 * 2**20])
def test_a_message_larger_than_the_budget_is_received_all_the_same(make: MakeCoordinator, size: int) -> None:
    """Its nsqd could never send anything else."""
    coordinator, _ = make(maxInFlightBytes="1m")
    limits = coordinator._crew._query.limits  # type: ignore[attr-defined]
    facts = ServerFacts("1.3.0", 2500, 60_000, 900_000)
    connection = Connection(Source("t", Address("h", 1)), facts, limits.channel, limits.frame_size_max)
    connection.set_rdy(1, 0.0, 1.0)
    assert len(connection.receive(encode_message(1, 1, b"0" * 16, b"x" * size)).messages) == 1


def test_sources_that_nobody_holds_are_forgotten(make: MakeCoordinator) -> None:
    """Topics of a pattern come and go for as long as the query lasts."""
    coordinator, (receiver,) = make()
    sources = [Source(f"t{number}", Address("h", 1)) for number in range(50)]
    receiver.holds(0)
    assert receiver.status
    receiver.status.sources.add(source=from_source(sources[0]))
    for source in sources:
        coordinator._sources_changed([source])
    # One that the receiver may still have messages of, and the last two.
    assert coordinator._holders.keys() == {sources[0], *sources[-2:]}


def test_those_hold_messages_of_a_source_that_were_ever_connected_to_it(make: MakeCoordinator) -> None:
    coordinator, _ = make(receivers="3")
    sources = [Source("t", Address("h", port)) for port in range(6)]
    coordinator._sources_changed(sources[:1])
    assert coordinator._holders_of(sources[0]) == {0, 1, 2}
    coordinator._sources_changed(sources)
    assert coordinator._holders_of(sources[0]) == {0, 1, 2}
    assert sorted(len(coordinator._holders_of(source)) for source in sources) == [1, 1, 1, 1, 1, 3]
    # Of what is not known anybody might.
    assert coordinator._holders_of(Source("t", Address("h", 7))) == {0, 1, 2}
