"""One client's socket: when it is read, and when it is given up. The loop is the test's, the socket is real."""

import itertools
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from simulation.session_world import SECOND, World

from pyspark_nsq.broker.auth import AuthState, parse_answer
from pyspark_nsq.broker.connections import Connection, Connections
from pyspark_nsq.broker.timers import Timers
from pyspark_nsq.broker.turn import UNSENT_SIZE_MAX
from pyspark_nsq.proto.commands import MAGIC_V2, NOP, auth, identify, mpub, pub, rdy, sub
from pyspark_nsq.proto.compression import Compressor, DeflateCompressor, SnappyCompressor
from pyspark_nsq.proto.frames import RESPONSE, encode_frame

OK = encode_frame(RESPONSE, b"OK")
GRANT = b'{"ttl":1000,"authorizations":[{"topic":".*","channels":[".*"],"permissions":["publish"]}]}'


class Watcher:
    """What the loop knows of a socket."""

    def __init__(self) -> None:
        self.callback: Callable[[], None] | None = None

    def start(self, callback: Callable[[], None]) -> None:
        self.callback = callback

    def stop(self) -> None:
        self.callback = None

    def close(self) -> None:
        """Nothing is left to do."""


class Peer:
    """A client and the connection that serves it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.timers = Timers()
        self.answers: list[Callable[[AuthState | None], None]] = []
        self.read_watcher, self.write_watcher = Watcher(), Watcher()
        watchers = itertools.chain((self.read_watcher, self.write_watcher), iter(Watcher, None))
        loop = SimpleNamespace(
            io=lambda _fd, _events: next(watchers),
            now=lambda: world.now / SECOND,
            idle=Watcher,
            timer=lambda _after: SimpleNamespace(start=world.scheduled.append),
        )
        connections = Connections(
            world,
            world.turn,
            self.timers,
            loop,
            lambda: world.now,
            lambda _question, answered: self.answers.append(answered),
            lambda _: None,
            10,
        )
        self.client, served = socket.socketpair()
        self.client.setblocking(False)
        connections._serve(served, ("10.0.0.1", 5000))
        self.connection: Connection = connections.sessions()[0].owner

    @property
    def is_read(self) -> bool:
        return self.read_watcher.callback is not None

    def say(self, data: bytes) -> None:
        self.client.sendall(data)
        assert self.read_watcher.callback
        self.read_watcher.callback()
        self.world.run()

    def heard(self) -> bytes:
        self.world.run()
        try:
            return self.client.recv(1 << 20)
        except BlockingIOError:
            return b"nothing"

    def wait(self, nanoseconds: int) -> None:
        end = self.world.now + nanoseconds
        while self.world.now < end:
            self.world.now = min(end, max(self.timers.next_deadline, self.world.now + 1))
            self.timers.run(self.world.now)
            self.world.run()


@pytest.fixture
def make_peer(make_world: Callable[..., World]) -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def make(**options: object) -> Peer:
        peers.append(Peer(make_world(**options)))
        return peers[-1]

    yield make
    for peer in peers:
        peer.connection.close()
        peer.client.close()


def test_a_publisher_that_is_not_read_while_the_disk_stands_still_is_not_late(make_peer: Callable[..., Peer]):
    peer = make_peer(sync_every=1)
    peer.say(MAGIC_V2)
    count = 0
    while peer.is_read:
        peer.say(pub("t", b"x"))
        count += 1
    peer.wait(200 * SECOND)
    assert peer.heard() == b"nothing"
    for fsync in peer.world.sync_jobs:  # each makes the next one due
        fsync.run()
        peer.world.turn.synced(fsync)
        peer.world.run()
    assert peer.heard().count(OK) == count
    assert peer.is_read
    peer.wait(59 * SECOND)
    assert peer.heard() != b""
    peer.wait(2 * SECOND)
    assert peer.heard() == b""


@pytest.mark.interpreted
def test_a_fault_of_ours_behind_an_auth_servers_answer_ends_the_connection(
    make_peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
):
    peer = make_peer(auth_http_addresses=("127.0.0.1:1",))
    peer.say(MAGIC_V2 + auth(b"secret"))
    assert not peer.is_read
    (answered,) = peer.answers
    monkeypatch.setattr(peer.connection.session, "answer", None)
    answered(parse_answer(GRANT, peer.world.now))
    assert peer.heard() == b""


def test_who_is_closed_in_the_turn_in_which_it_asks_for_more_gets_nothing(make_peer: Callable[..., Peer]):
    """What it got nobody would ever give to another: no time-out, no channel knows of it."""
    peer = make_peer()
    peer.say(MAGIC_V2 + sub("t", "c") + rdy(2500))
    topic = peer.world.engine.topics["t"]
    while not peer.connection.unsent_size:
        topic.publish([bytes(10_000)], peer.world.now)
        peer.world.turn.take()
    channel = topic.channels["c"]
    assert channel.depth == 0
    had = channel.in_flight_count
    topic.publish([b"one more"], peer.world.now)
    peer.client.sendall(rdy(2400))
    peer.client.close()
    assert peer.read_watcher.callback
    assert peer.write_watcher.callback
    peer.read_watcher.callback()
    peer.write_watcher.callback()
    peer.world.turn.take()
    assert peer.connection.session.finished
    assert (channel.depth, channel.in_flight_count) == (1, had)


@pytest.fixture(params=[DeflateCompressor, SnappyCompressor])
def bomber(request: pytest.FixtureRequest, make_peer: Callable[..., Peer]) -> Peer:
    """It has sent 2,000 messages of 1,000 zeros in a few bytes, and they have just been read."""
    peer = make_peer()
    kind = "deflate" if request.param is DeflateCompressor else "snappy"
    peer.say(MAGIC_V2 + identify({"feature_negotiation": True, kind: True}))
    compressor: Compressor = DeflateCompressor(6) if kind == "deflate" else SnappyCompressor()
    peer.client.sendall(compressor.compress(pub("t", bytes(1000)) * 2000))
    assert peer.read_watcher.callback
    peer.read_watcher.callback()
    return peer


def test_others_have_their_turn_while_what_few_bytes_expand_to_is_executed(bomber: Peer):
    scheduled, executed = bomber.world.scheduled, [0]
    while executed[-1] < 2000:
        executed.append(bomber.connection.session.pub_counts["t"])
        assert bomber.is_read == (executed[-1] == 0)
        bomber.connection.flush(bomber.world.now)
        assert len(scheduled) <= 2
        scheduled.pop()()
    assert max(after - before for before, after in itertools.pairwise(executed)) < 400
    bomber.world.run()
    assert bomber.is_read
    assert bomber.world.engine.topics["t"].message_count == 2000


def test_what_has_come_of_a_client_that_is_closed_is_executed_no_further(bomber: Peer):
    bomber.connection.close()
    bomber.world.run()
    assert bomber.world.engine.topics["t"].message_count < 400


def test_who_has_spoken_is_not_late_because_we_are_late_to_hear_it(make_peer: Callable[..., Peer]):
    """As after a pause of the whole process: the loop calls back what is due before what has come."""
    peer = make_peer()
    peer.say(MAGIC_V2)
    peer.client.sendall(NOP)
    peer.wait(61 * SECOND)
    assert peer.heard() != b""
    peer.wait(57 * SECOND)
    assert peer.heard() != b""
    peer.wait(3 * SECOND)
    assert peer.heard() == b""


def test_a_large_command_that_we_read_slowly_has_its_time(make_peer: Callable[..., Peer]):
    peer = make_peer()
    whole = mpub("t", [bytes(50_000)] * 20)
    peer.say(MAGIC_V2 + whole[:1000])
    at = 1000
    while at < len(whole):  # there is always something to read, and it is read twice a minute
        at += peer.client.send(whole[at : at + 100_000])
        peer.wait(61 * SECOND)
        assert not peer.connection.session.finished
    assert peer.world.engine.topics["t"].message_count == 20
    peer.say(whole[:1000])
    peer.wait(61 * SECOND)
    assert b"E_BAD_MESSAGE MPUB failed to read message body" in peer.heard()


def test_who_has_read_is_not_late_because_we_are_late_to_send_more(make_peer: Callable[..., Peer]):
    peer = make_peer()
    peer.say(MAGIC_V2 + identify({"heartbeat_interval": 30_000}) + sub("t", "c") + rdy(2500))
    topic = peer.world.engine.topics["t"]
    for is_read in (True, False):
        while not peer.connection.unsent_size:
            topic.publish([bytes(100_000)], peer.world.now)
            peer.world.turn.take()
        peer.client.sendall(NOP)
        while is_read and peer.heard() != b"nothing":
            pass
        peer.world.now += 61 * SECOND
        peer.timers.run(peer.world.now)
        assert peer.connection.session.finished != is_read


def test_what_has_closed_is_not_kept_until_it_would_have_been_due(make_peer: Callable[..., Peer]):
    peer = make_peer()
    connections = peer.connection._connections
    for _ in range(200):
        client, served = socket.socketpair()
        connections._serve(served, ("10.0.0.1", 5001))
        (connection,) = (session.owner for session in connections.sessions() if session.owner is not peer.connection)
        connection.close()
        client.close()
    assert len(peer.timers._heap) < 100


def test_a_consumer_that_does_not_read_is_given_little_however_often_it_times_out(make_peer: Callable[..., Peer]):
    peer = make_peer()
    peer.say(MAGIC_V2 + identify({"msg_timeout": 1000}) + sub("t", "c") + rdy(20))
    topic = peer.world.engine.topics["t"]
    for _ in range(500):
        topic.publish([bytes(4000)], peer.world.now)
        peer.world.run()
    connection, output = peer.connection, peer.connection.session.output
    for _ in range(40):
        peer.wait(SECOND)
        peer.world.turn.request()
        peer.world.run()
        assert connection.unsent_size + output.size < UNSENT_SIZE_MAX + 4034
    assert topic.channels["c"].timeout_count > 20
    heard = 0
    while (piece := peer.heard()) != b"nothing":
        heard += len(piece)
        if peer.write_watcher.callback:
            peer.write_watcher.callback()
    assert heard > 40 * 4034
    assert connection.unsent_size == 0
