"""Publishing over real sockets, to nsqds that follow a script."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from fake_http import Answers, FakeLookupd
from scripted_nsqd import Peer, ScriptedNsqd

from pyspark_nsq.connector import producer as module
from pyspark_nsq.connector.discovery import Nsqd
from pyspark_nsq.connector.options import DiscoveryOptions, SinkOptions, parse_sink_options
from pyspark_nsq.connector.producer import NodeFinder, Producer, Shared
from pyspark_nsq.connector.publishing import PublishError, Request
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.proto import commands
from pyspark_nsq.proto.compression import SnappyCompressor
from pyspark_nsq.proto.frames import ERROR, RESPONSE, encode_frame

StartPeer = Callable[..., ScriptedNsqd]
StartLookupd = Callable[[Answers], FakeLookupd]


def options(*peers: ScriptedNsqd, **texts: str) -> SinkOptions:
    addresses = ",".join(str(peer.address) for peer in sorted(peers, key=lambda peer: peer.address))
    return parse_sink_options({"topic": "t", "nsqdTcpAddresses": addresses, "retryDelay": "1ms"} | texts)


def request(body: bytes = b"body") -> Request:
    return Request("t", 1, 1, (commands.mpub("t", [body]),))


def answer_all(peer: Peer) -> None:
    peer.identify()
    while True:
        peer.read_mpub()
        peer.answer()


def vanish_at_first_mpub(peer: Peer) -> None:
    peer.identify()
    peer.read_mpub()


def never_answer(peer: Peer) -> None:
    peer.identify()
    while True:
        peer.read_mpub()


@pytest.fixture
def shared() -> Iterator[Shared]:
    """What the tasks of a test have in common, and no other test has."""
    return Shared()


def publish(chosen: SinkOptions, shared: Shared, *requests: Request, turn: int = 0) -> Producer:
    with Producer(chosen, turn, shared) as producer:
        for each in requests:
            producer.publish(each)
        producer.finish()
    return producer


def test_everything_is_acknowledged(start_peer: StartPeer, shared: Shared) -> None:
    peer = start_peer(answer_all)
    producer = publish(options(peer, maxOutstanding="3"), shared, *(request() for _ in range(50)))
    assert producer.books.stored == {("t", peer.address): 50}
    assert producer.books.resent == 0


def test_several_commands_are_outstanding(start_peer: StartPeer, shared: Shared) -> None:
    def answer_three_at_a_time(peer: Peer) -> None:
        peer.identify()
        while True:
            for _ in range(3):
                peer.read_mpub()
            for _ in range(3):
                peer.answer()

    peer = start_peer(answer_three_at_a_time)
    publish(options(peer, maxOutstanding="3"), shared, *(request() for _ in range(9)))


def test_a_heartbeat_is_answered_while_waiting(start_peer: StartPeer, shared: Shared) -> None:
    def ask_before_answering(peer: Peer) -> None:
        peer.identify()
        peer.read_mpub()
        peer.answer(b"_heartbeat_")
        assert peer.read_line() == b"NOP"
        peer.answer()
        peer.read(1)

    publish(options(start_peer(ask_before_answering)), shared, request())


def test_a_heartbeat_is_no_answer(start_peer: StartPeer, shared: Shared) -> None:
    def only_ask(peer: Peer) -> None:
        peer.identify()
        peer.read_mpub()
        while True:
            peer.answer(b"_heartbeat_")
            assert peer.read_line() == b"NOP"

    with pytest.raises(PublishError, match=r"no answer within 0\.1 s"):
        publish(options(start_peer(only_ask), requestTimeout="100ms", retries="0"), shared, request())


def test_one_who_only_asks_and_never_reads_is_given_up(start_peer: StartPeer, shared: Shared) -> None:
    def only_ask(peer: Peer) -> None:
        peer.identify()
        while True:
            peer.send(1000 * encode_frame(RESPONSE, b"_heartbeat_"))

    with pytest.raises(PublishError, match="heartbeats at once"):
        publish(options(start_peer(only_ask), requestTimeout="5s", retries="0"), shared, request())


@pytest.mark.parametrize(
    ("script", "texts"),
    [
        (vanish_at_first_mpub, {}),
        (never_answer, {"requestTimeout": "100ms"}),
        (lambda _: None, {}),
        (lambda peer: peer.read(1000), {"connectTimeout": "1s"}),
    ],
    ids=["vanishes", "does not answer", "closes at once", "accepts only"],
)
def test_a_failing_nsqd_is_replaced(
    start_peer: StartPeer, shared: Shared, script: Callable[[Peer], None], texts: dict[str, str]
) -> None:
    bad, good = start_peer(script), start_peer(answer_all)
    chosen = options(bad, good, retryDelay="30s", retryDelayMax="30s", **texts)
    turn = chosen.discovery.nsqds.index(bad.address)
    producer = publish(chosen, shared, *(request() for _ in range(5)), turn=turn)
    assert producer.books.stored == {("t", good.address): 5}
    assert bad.connection_count == 1


def test_an_nsqd_that_comes_back_is_used_again(start_peer: StartPeer, shared: Shared) -> None:
    peer = start_peer(vanish_at_first_mpub, lambda _: None, answer_all)
    producer = publish(options(peer), shared, request())
    assert producer.books.stored == {("t", peer.address): 1}
    assert producer.books.resent == 1
    assert peer.connection_count == 3


def test_a_refused_message_ends_the_task(
    start_peer: StartPeer, shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse_the_second(peer: Peer) -> None:
        peer.identify()
        peer.read_mpub()
        peer.read_mpub()
        peer.answer()
        peer.answer(b"E_BAD_MESSAGE MPUB message too big 5 > 4", ERROR)

    peer = start_peer(refuse_the_second)
    with pytest.raises(PublishError, match=f"nsqd {peer.address}: E_BAD_MESSAGE MPUB message too big 5 > 4"):
        publish(options(peer), shared, request(), request(b"12345"))
    assert peer.connection_count == 1
    assert "goes elsewhere" not in caplog.text, "it does not, and the error has said all"


def test_an_answer_that_nobody_asked_for(start_peer: StartPeer, shared: Shared) -> None:
    def answer_twice(peer: Peer) -> None:
        peer.identify()
        peer.read_mpub()
        peer.send(2 * encode_frame(RESPONSE, b"OK"))
        with suppress(OSError):
            peer.read(1000)

    peer = start_peer(answer_twice, answer_all)
    publish(options(peer), shared, request())
    publish(options(peer), shared, request())
    assert peer.connection_count == 2


def test_a_corrupt_stream_is_a_broken_connection(start_peer: StartPeer, shared: Shared) -> None:
    def corrupt(peer: Peer) -> None:
        peer.identify(snappy=True)
        compressor = SnappyCompressor()
        peer.send(compressor.compress(encode_frame(RESPONSE, b"OK")))
        peer.read(1)
        # Behind a good piece, so that it is found where nobody reads from the socket.
        peer.send(compressor.compress(encode_frame(RESPONSE, b"_heartbeat_")) + b"\x00\x06\x00\x00garbage")
        peer.socket.recv(1000)

    with pytest.raises(PublishError, match="corrupt snappy stream"):
        publish(options(start_peer(corrupt), snappy="true", retries="0"), shared, request())


def test_the_quorum(start_peer: StartPeer, shared: Shared) -> None:
    peers = [start_peer(answer_all) for _ in range(3)]
    producer = publish(options(*peers, publishQuorum="2"), shared, request(), request())
    assert producer.books.stored.total() == 4
    assert len(producer.books.stored) == 2


def test_turns_spread_over_the_nsqds(start_peer: StartPeer, shared: Shared) -> None:
    peers = [start_peer(answer_all) for _ in range(3)]
    used = {
        address
        for turn in range(3)
        for _, address in publish(options(*peers), shared, request(), turn=turn).books.stored
    }
    assert used == {peer.address for peer in peers}


def test_connections_outlive_the_task(start_peer: StartPeer, shared: Shared) -> None:
    peer = start_peer(answer_all)
    for _ in range(3):
        publish(options(peer), shared, request())
    assert peer.connection_count == 1
    publish(options(peer, clientId="another"), shared, request())
    assert peer.connection_count == 2


def test_a_connection_that_died_in_the_pool_is_not_used(start_peer: StartPeer, shared: Shared) -> None:
    closed = threading.Event()

    def answer_one(peer: Peer) -> None:
        peer.identify()
        peer.read_mpub()
        peer.answer()
        peer.socket.close()
        closed.set()

    peer = start_peer(answer_one, answer_all)
    publish(options(peer), shared, request())
    assert closed.wait(10)
    producer = publish(options(peer), shared, request())
    assert producer.books.resent == 0
    assert peer.connection_count == 2


def test_a_heartbeat_in_the_pool_is_answered_before_the_next_use(start_peer: StartPeer, shared: Shared) -> None:
    asked = threading.Event()

    def ask_when_idle(peer: Peer) -> None:
        peer.identify()
        peer.read_mpub()
        peer.answer()
        peer.answer(b"_heartbeat_")
        asked.set()
        assert peer.read_line() == b"NOP"
        peer.read_mpub()
        peer.answer()
        peer.read(1)

    peer = start_peer(ask_when_idle)
    publish(options(peer), shared, request())
    assert asked.wait(10)
    publish(options(peer), shared, request())
    assert peer.connection_count == 1


def test_idle_connections_are_closed(start_peer: StartPeer, shared: Shared) -> None:
    ended = threading.Event()

    def watch_the_end(peer: Peer) -> None:
        peer.identify()
        peer.read_mpub()
        peer.answer()
        assert peer.socket.recv(1) == b""
        ended.set()

    publish(options(start_peer(watch_the_end), connectionIdleTimeout="1s"), shared, request())
    assert ended.wait(10)


def test_after_a_failure_nothing_half_done_is_pooled(start_peer: StartPeer, shared: Shared) -> None:
    peer = start_peer(never_answer, answer_all)
    chosen = options(peer)
    with Producer(chosen, 0, shared) as producer:
        producer.publish(request())
    publish(chosen, shared, request())
    assert peer.connection_count == 2


def test_nobody_is_there_for_long(start_peer: StartPeer, shared: Shared) -> None:
    peer = start_peer(lambda _: None)
    with pytest.raises(PublishError, match="tried 3 times .option retries.*" + str(peer.address)):
        publish(options(peer, retries="2"), shared, request())
    assert peer.connection_count == 3


def nodes(*peers: ScriptedNsqd) -> dict[str, object]:
    """What lookupds say of these."""
    known = [{"broadcast_address": peer.address.host, "tcp_port": peer.address.port, "http_port": 1} for peer in peers]
    return {"producers": [each | {"topics": []} for each in known]}


def looked_up(*lookupds: FakeLookupd, **texts: str) -> SinkOptions:
    addresses = ",".join(str(lookupd.address) for lookupd in lookupds)
    defaults = {"topic": "t", "lookupdHttpAddresses": addresses, "lookupdPollInterval": "1h", "retryDelay": "1ms"}
    return parse_sink_options(defaults | texts)


def test_an_nsqd_that_came_back_elsewhere_is_found(
    start_peer: StartPeer, start_lookupd: StartLookupd, shared: Shared
) -> None:
    answers: Answers = {}
    successor = start_peer(answer_all)

    def move(peer: Peer) -> None:
        peer.identify()
        peer.read_mpub()
        answers["/nodes"] = nodes(successor)

    former = start_peer(move, lambda _: None)
    answers["/nodes"] = nodes(former)
    producer = publish(looked_up(start_lookupd(answers)), shared, request(), request())
    assert producer.books.stored == {("t", successor.address): 2}


def test_a_task_s_next_attempt_finds_it_too(start_peer: StartPeer, start_lookupd: StartLookupd, shared: Shared) -> None:
    former, successor = start_peer(lambda _: None), start_peer(answer_all)
    answers: Answers = {"/nodes": nodes(former)}
    chosen = looked_up(start_lookupd(answers), retries="0")
    with pytest.raises(PublishError):
        publish(chosen, shared, request())
    answers["/nodes"] = nodes(successor)
    wait_until_it_knows(shared.known(chosen).finder, successor.address)
    publish(chosen, shared, request())


def test_a_task_without_rows_asks_nobody(start_lookupd: StartLookupd, shared: Shared) -> None:
    lookupd = start_lookupd({"/nodes": {"producers": []}})
    publish(looked_up(lookupd), shared)
    assert lookupd.asked == []


def test_the_error_says_why_no_nsqd_is_known(start_lookupd: StartLookupd, shared: Shared) -> None:
    lookupd = start_lookupd({"/nodes": b"out of order"})
    with pytest.raises(PublishError, match=f"no nsqd is known; {lookupd.address}: the answer .* is not JSON"):
        publish(looked_up(lookupd, retries="1"), shared, request())


def test_what_one_query_may_not_do_another_one_may(start_peer: StartPeer, shared: Shared) -> None:
    def answer_who_knows_the_secret(peer: Peer) -> None:
        peer.identify(auth_required=True)
        assert peer.read_line() == b"AUTH"
        if peer.read_body() == b"wrong":
            peer.answer(b"E_AUTH_FAILED AUTH failed", ERROR)
            return
        peer.answer(b'{"identity": ""}')
        while True:
            peer.read_mpub()
            peer.answer()

    peer = start_peer(answer_who_knows_the_secret)
    patient = {"retryDelay": "1h", "retryDelayMax": "1h"}
    with pytest.raises(PublishError, match="E_AUTH_FAILED"):
        publish(options(peer, authSecret="wrong", **patient), shared, request())
    publish(options(peer, authSecret="right", **patient), shared, request())


class GrowingDirectory:
    """Knows one nsqd more each time that it is asked."""

    reached = True

    def __init__(self, _: DiscoveryOptions) -> None:
        self._asked = 0

    def nodes(self) -> frozenset[Nsqd]:
        self._asked += 1
        return frozenset(Nsqd(Address("h", 1 + number), None) for number in range(self._asked))


@pytest.fixture
def make_finder(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], NodeFinder]:
    """Finders that look every so often into a directory that grows."""
    monkeypatch.setattr(module, "Directory", GrowingDirectory)

    def make(interval: str) -> NodeFinder:
        chosen = parse_sink_options({"topic": "t", "lookupdHttpAddresses": "h:1", "lookupdPollInterval": interval})
        return NodeFinder(chosen.discovery, chosen.retry)

    return make


def wait_until_it_knows(finder: NodeFinder, address: Address) -> None:
    deadline = time.monotonic() + 10
    while address not in finder.nodes():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nsqds_are_looked_up_again_when_it_is_time(make_finder: Callable[[str], NodeFinder]) -> None:
    wait_until_it_knows(make_finder("100ms"), Address("h", 2))


def test_before_it_is_time_they_are_looked_up_when_they_are_too_few_or_in_doubt(
    make_finder: Callable[[str], NodeFinder],
) -> None:
    finder = make_finder("1h")
    assert len(finder.nodes()) == 1
    assert len(finder.nodes()) == 1
    assert len(finder.nodes(again=True)) == 2
    finder.doubt()
    wait_until_it_knows(finder, Address("h", 3))


def test_a_lookupd_that_hangs_keeps_nobody_waiting_who_knows_some(
    make_finder: Callable[[str], NodeFinder], monkeypatch: pytest.MonkeyPatch
) -> None:
    finder = make_finder("1h")
    (known,) = finder.nodes()
    asked, answered = threading.Event(), threading.Event()

    def hang(directory: GrowingDirectory) -> frozenset[Nsqd]:
        asked.set()
        assert answered.wait(30)
        return frozenset({Nsqd(Address("new", 1), None)})

    monkeypatch.setattr(GrowingDirectory, "nodes", hang)
    finder.doubt()
    deadline = time.monotonic() + 10
    while not asked.is_set():
        assert finder.nodes() == (known,)
        assert time.monotonic() < deadline
    assert finder.nodes() == (known,)
    answered.set()
    wait_until_it_knows(finder, Address("new", 1))
