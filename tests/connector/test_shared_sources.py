"""Several receivers on one nsqd: what one of them has lost may come to another, and is emitted once all the same."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from model_nsqd import ModelNsqd, step

from pyspark_nsq.connector import arbiter
from pyspark_nsq.connector.arbiter import Arbiter, verdicts
from pyspark_nsq.connector.channels import Guard, listen, make_server, open_channel
from pyspark_nsq.connector.connection import Connection, Source
from pyspark_nsq.connector.receiver_core import ReceiverCore
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.connector.source_state import Limits
from pyspark_nsq.connector.wire import from_source
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc

LIMITS = Limits(
    channel="channel",
    in_flight_max=30,
    bytes_max=2**30,
    frame_size_max=2**20,
    attempts_max=None,
    dead_letter_topic=None,
    retry_delay_s=0.1,
    retry_delay_s_max=10.0,
)


class Receivers:
    """Two receivers with the same source, what each has emitted, and an arbiter between them."""

    def __init__(self, nsqd: ModelNsqd) -> None:
        self.nsqd = nsqd
        self.cores = [ReceiverCore(LIMITS, 0), ReceiverCore(LIMITS, 0)]
        self.emitted: Counter[bytes] = Counter()
        for core in self.cores:
            core.assign([nsqd.source], [nsqd.source])

    def run(self, *times: float, only: Sequence[int] = (0, 1)) -> None:
        for now in times:
            for index in only:
                step(self.cores[index], [self.nsqd], now)
                step(self.cores[index], [self.nsqd], now)
                self._close(self.cores[index], now)

    def _close(self, core: ReceiverCore, now: float) -> None:
        """Those that are closed in order."""
        for connection in self.connections(core):
            if connection.closed_by_nsqd and connection.in_flight == 0:
                self.nsqd.cut(connection)
                core.lost_connection(connection, now)

    def arbitrate(self, now: float) -> None:
        for core, other in (self.cores, self.cores[::-1]):
            for source, ids in core.suspects.ids().items():
                held, finished = other.judge(source, ids)
                known = {
                    bytes(each[start : start + 16]) for each in (held, finished) for start in range(0, len(each), 16)
                }
                unknown = [ids[start : start + 16] for start in range(0, len(ids), 16)]
                core.settle(source, finished, b"".join(each for each in unknown if each not in known), now)

    def emit(self, core: ReceiverCore, now: float) -> None:
        """A batch of all that there is, committed at once."""
        parts = core.read(core.lane.finished, core.lane.end)
        self.emitted.update(each for _, part in parts for each in part.column("id").to_pylist())
        core.finish(core.lane.end, now)
        # What is finished is sent in the same round.
        self.nsqd.obey(now)

    def connections(self, core: ReceiverCore) -> list[Connection]:
        return [connection for connection, client in self.nsqd.clients.items() if client.core is core]

    def cut(self, core: ReceiverCore, now: float) -> None:
        for connection in self.connections(core):
            self.nsqd.cut(connection)
            core.lost_connection(connection, now)


@pytest.fixture
def receivers() -> Receivers:
    """The first one holds ten messages."""
    made = Receivers(ModelNsqd(rdy_max=10, timeout_s=60))
    made.run(0.0, only=[0])
    made.nsqd.publish(10)
    made.run(1.0, only=[0])
    assert made.cores[0].lane.end == 10
    return made


def test_what_another_receiver_holds_waits_until_that_one_is_committed(receivers: Receivers) -> None:
    first, second = receivers.cores
    receivers.cut(first, 2.0)
    receivers.run(*range(3, 200, 10), only=[1])
    assert len(second.suspects) == 10
    receivers.arbitrate(200.0)
    assert second.lane.end == 0
    flights = [flight for client in receivers.nsqd.clients.values() for flight in client.in_flight.values()]
    assert [flight.message.attempts for flight in flights] == [2] * 10, "they were not touched meanwhile"
    receivers.emit(first, 201.0)
    receivers.arbitrate(202.0)
    receivers.run(203.0)
    assert second.lane.end == 0
    assert len(second.suspects) == second.suspects.size == 0
    assert receivers.nsqd.finished == receivers.emitted == Counter(receivers.emitted.keys())
    assert second.sources[receivers.nsqd.source].counts.redelivered == 10


def test_what_nobody_holds_any_more_is_emitted(receivers: Receivers) -> None:
    _, second = receivers.cores
    for connection in receivers.connections(receivers.cores[0]):
        receivers.nsqd.cut(connection)
    # Another process takes its place, which knows nothing.
    receivers.cores[0] = ReceiverCore(LIMITS, 0)
    receivers.run(*range(3, 100, 10), only=[1])
    assert second.lane.end == 0
    receivers.arbitrate(100.0)
    assert second.lane.end == 10


def test_a_fin_that_nsqd_never_read_is_given_by_the_other(receivers: Receivers) -> None:
    first, second = receivers.cores
    connection = receivers.connections(first)[0]
    first.finish(10, 2.0)
    receivers.nsqd.cut(connection)
    # The first has not even noticed that its connection is gone.
    receivers.run(*range(3, 100, 10), only=[1])
    receivers.arbitrate(100.0)
    receivers.run(101.0, only=[1])
    assert second.lane.end == 0
    assert len(receivers.nsqd.finished) == 10


def test_suspects_are_given_back_at_a_stop(receivers: Receivers) -> None:
    first, second = receivers.cores
    receivers.cut(first, 2.0)
    receivers.run(*range(3, 100, 10), only=[1])
    second.stop(100.0)
    receivers.nsqd.obey(100.0)
    assert len(receivers.nsqd.requeued) == 10
    assert receivers.nsqd.in_flight() == 0


def test_only_what_came_before_waits(receivers: Receivers) -> None:
    _, second = receivers.cores
    receivers.run(2.0)
    receivers.nsqd.publish(10)
    receivers.run(3.0, only=[1])
    assert second.lane.end == 10
    assert len(second.suspects) == 0


def test_what_comes_after_a_surplus_connection_was_closed_does_not_wait() -> None:
    receivers = Receivers(ModelNsqd(rdy_max=10))
    core = receivers.cores[0]
    receivers.nsqd.publish(300)
    counts = []
    for tick in range(400):
        receivers.run(tick * 0.25, only=[0])
        receivers.emit(core, tick * 0.25)
        counts.append(len(receivers.nsqd.clients))
    assert (max(counts), counts[-1]) == (3, 1)
    receivers.nsqd.publish(10)
    receivers.run(100.0, only=[0])
    assert (core.lane.held, len(core.suspects)) == (10, 0)


def test_where_no_connection_is_left_to_tell_of_a_crash_what_comes_waits() -> None:
    """The source was another receiver's for a while."""
    receivers = Receivers(ModelNsqd(rdy_max=10))
    core, source = receivers.cores[0], receivers.nsqd.source
    receivers.run(0.0, only=[0])
    core.assign([], [source], {source})
    receivers.run(1.0, 3.0, 5.0, only=[0])
    assert not receivers.nsqd.clients
    core.assign([source], [source])
    receivers.run(6.0, only=[0])
    receivers.nsqd.publish(10)
    receivers.run(7.0, only=[0])
    assert (core.lane.held, len(core.suspects)) == (0, 10)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_message_is_emitted_once(seed: int) -> None:
    """Broken connections, crashes of nsqd, long pauses; both receivers live on."""
    chance = random.Random(seed)
    nsqd = ModelNsqd(rdy_max=10, timeout_s=10, timeout_s_max=40)
    receivers = Receivers(nsqd)
    published: list[bytes] = []
    now = 0.0
    for _ in range(300):
        now += chance.choice([0.1, 0.1, 0.5, 3.0, 12.0 if chance.random() < 0.1 else 0.2])
        match chance.randrange(8):
            case 0 | 1:
                published += nsqd.publish(chance.randrange(1, 30))
            case 2:
                receivers.cut(chance.choice(receivers.cores), now)
            case 3 if chance.random() < 0.3:
                for core in receivers.cores:
                    receivers.cut(core, now)
                nsqd.crash()
            case 4:
                receivers.emit(chance.choice(receivers.cores), now)
            case 5:
                receivers.arbitrate(now)
        receivers.run(now)
    for _ in range(300):
        now += 0.5
        receivers.run(now)
        receivers.arbitrate(now)
        for core in receivers.cores:
            receivers.emit(core, now)
    receivers.run(now)
    assert set(receivers.emitted) == set(published) == set(nsqd.finished)
    assert max(receivers.emitted.values(), default=1) == 1, "a message was emitted by both"
    assert not nsqd.queue
    assert not nsqd.in_flight()


# The arbiter.

TOKEN = "the token of the query"
SOURCES = [Source("topic", Address("host", port)) for port in (1, 2)]


def messages(source: Source, *numbers: int) -> pb.SourceMessages:
    return pb.SourceMessages(source=from_source(source), ids=b"".join(b"%016d" % number for number in numbers))


def test_finished_anywhere_is_finished_and_known_nowhere_is_new() -> None:
    source = SOURCES[0]
    answers = [
        pb.Verdicts(held=[messages(source, 0, 1)]),
        pb.Verdicts(finished=[messages(source, 1, 2)]),
        pb.Verdicts(),
    ]
    found = verdicts(pb.Suspects(messages=[messages(source, 0, 1, 2, 3)]), answers)
    assert list(found.finished) == [messages(source, 1, 2)]
    assert list(found.unknown) == [messages(source, 3)]


@dataclass
class Party(receiver_pb2_grpc.ReceiverServicer):
    """A receiver that keeps these messages back, and says of others' what it is told to."""

    suspects: pb.Suspects = field(default_factory=pb.Suspects)
    verdicts: pb.Verdicts | None = field(default_factory=pb.Verdicts)
    address: str = ""
    settled: list[pb.Verdicts] = field(default_factory=list)
    asked: list[pb.Suspects] = field(default_factory=list)
    is_there: bool = True

    @property
    def status(self) -> pb.Status | None:
        return pb.Status(suspects=len(self.suspects.messages)) if self.is_there else None

    def Settle(self, request: pb.Verdicts, _context: grpc.ServicerContext) -> pb.Suspects:  # noqa: N802
        self.settled.append(request)
        return self.suspects

    def Judge(self, request: pb.Suspects, context: grpc.ServicerContext) -> pb.Verdicts:  # noqa: N802
        self.asked.append(request)
        if self.verdicts is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "this receiver gives back what it holds")
        assert self.verdicts
        return self.verdicts


MakeParties = Callable[..., list[Party]]


@pytest.fixture
def serve() -> Iterator[MakeParties]:
    servers: list[grpc.Server] = []

    def serve(*parties: Party) -> list[Party]:
        for party in parties:
            servers.append(make_server(4, [Guard(TOKEN)]))
            receiver_pb2_grpc.add_ReceiverServicer_to_server(party, servers[-1])  # type: ignore[no-untyped-call]
            party.address = f"127.0.0.1:{listen(servers[-1], '127.0.0.1', [0], None)}"
            servers[-1].start()
        return list(parties)

    yield serve
    for server in servers:
        server.stop(0).wait()


def everybody(parties: Sequence[Party]) -> Callable[[Source], range]:
    return lambda _source: range(len(parties))


def test_those_are_asked_who_may_hold_messages_of_the_source(serve: MakeParties) -> None:
    """Of thousands of receivers that is mostly one or two."""
    suspects = [messages(SOURCES[0], 1), messages(SOURCES[1], 2)]
    verdict = pb.Verdicts(finished=[messages(SOURCES[0], 1)])
    parties = serve(Party(pb.Suspects(messages=suspects)), Party(verdicts=verdict), Party(), Party())
    holders = {SOURCES[0]: {0, 1}, SOURCES[1]: {0, 2}}
    Arbiter(lambda: parties, lambda source: holders[source], TOKEN)._settle_all()
    assert [list(asked.messages) for party in parties for asked in party.asked] == [[suspects[0]], [suspects[1]]]
    assert [len(party.asked) for party in parties] == [0, 1, 1, 0]
    _, settled = parties[0].settled
    assert [each for each in settled.finished if each.ids] == [messages(SOURCES[0], 1)]
    assert [each for each in settled.unknown if each.ids] == [messages(SOURCES[1], 2)]


def test_one_that_does_not_answer_keeps_only_its_own_sources_waiting(serve: MakeParties) -> None:
    suspects = [messages(SOURCES[0], 1, 2), messages(SOURCES[1], 3)]
    finished = pb.Verdicts(finished=[messages(SOURCES[0], 1)])
    parties = serve(Party(pb.Suspects(messages=suspects)), Party(verdicts=None), Party(verdicts=finished))
    holders = {SOURCES[0]: {0, 1, 2}, SOURCES[1]: {0, 2}}
    arbiter = Arbiter(lambda: parties, lambda source: holders[source], TOKEN)
    arbiter._settle_all()
    _, settled = parties[0].settled
    assert [each for each in settled.finished if each.ids] == [messages(SOURCES[0], 1)]
    # Whether it has the other one of the first source nobody knows.
    assert [each for each in settled.unknown if each.ids] == [messages(SOURCES[1], 3)]
    parties[1].is_there = False
    arbiter._settle_all()
    assert [each for each in parties[0].settled[-1].unknown if each.ids] == [
        messages(SOURCES[0], 2),
        messages(SOURCES[1], 3),
    ]


def test_connections_last_as_long_as_receivers_are_there_and_answer(
    serve: MakeParties, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def count(address: str, tls: Any) -> grpc.Channel:
        opened.append(address)
        return open_channel(address, tls)

    monkeypatch.setattr(arbiter, "open_channel", count)
    parties = serve(Party(pb.Suspects(messages=[messages(SOURCES[0], 1)])), Party())
    first, second = (party.address for party in parties)
    settling = Arbiter(lambda: parties, everybody(parties), TOKEN)
    for _ in range(3):
        settling._settle_all()
    assert sorted(opened) == sorted([first, second])
    parties[1].is_there = False
    settling._settle_all()
    assert settling._channels.keys() == {first}
    # What it is to trust, or where it is, may have changed.
    parties[1].is_there, parties[1].verdicts = True, None
    settling._settle_all()
    assert settling._channels.keys() == {first}
    parties[0].is_there = parties[1].is_there = False
    settling._settle_all()
    assert not settling._channels


def test_suspects_are_settled_on_after_a_failure(serve: MakeParties, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a file of certificates is missing for a moment."""
    failed = threading.Event()

    def fail_at_first(address: str, tls: Any) -> grpc.Channel:
        if not failed.is_set():
            failed.set()
            raise FileNotFoundError
        return open_channel(address, tls)

    monkeypatch.setattr(arbiter, "open_channel", fail_at_first)
    settled = threading.Event()

    class Settled(Party):
        def Settle(self, request: pb.Verdicts, _context: grpc.ServicerContext) -> pb.Suspects:  # noqa: N802
            if request.unknown:
                settled.set()
            return self.suspects

    parties = serve(Settled(pb.Suspects(messages=[messages(SOURCES[0], 1)])), Party())
    Arbiter(lambda: parties, everybody(parties), TOKEN).start()
    assert settled.wait(60)
