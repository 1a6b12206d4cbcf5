"""Rows may be long in coming, and then nobody looks at a task's connections: what that must not lead to."""

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from scripted_nsqd import Peer, ScriptedNsqd

from pyspark_nsq.connector import producer as module
from pyspark_nsq.connector.options import SinkOptions, parse_sink_options
from pyspark_nsq.connector.pool import PublishConnection
from pyspark_nsq.connector.producer import Producer, Shared
from pyspark_nsq.connector.publishing import Request
from pyspark_nsq.proto import commands
from pyspark_nsq.proto.frames import RESPONSE, encode_frame

StartPeer = Callable[..., ScriptedNsqd]

# More than the kernel takes for a peer that does not read.
LARGE = 32 * 2**20


def options(peer: ScriptedNsqd, **texts: str) -> SinkOptions:
    return parse_sink_options({"topic": "t", "nsqdTcpAddresses": str(peer.address), "retries": "0"} | texts)


def request(size: int = 4) -> Request:
    return Request("t", 1, 1, (commands.mpub("t", [b"x" * size]),))


def answer_all(peer: Peer) -> None:
    peer.identify()
    answer_more(peer)


def answer_more(peer: Peer) -> None:
    while True:
        peer.read_mpub()
        peer.answer()


class Clock:
    """The producer's ``time``, which a test moves on."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.passed_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the kernel has taken a part of a command and no more."""
    event = threading.Event()
    flush = PublishConnection.flush

    def tell(connection: PublishConnection) -> None:
        flush(connection)
        if connection.is_sending:
            event.set()

    monkeypatch.setattr(PublishConnection, "flush", tell)
    return event


@pytest.fixture
def one_task() -> Iterator[Shared]:
    """What belongs to this test alone."""
    return Shared()


def read_large(peer: Peer) -> None:
    """Faster than ``read_mpub``."""
    peer.read_line()
    left = int.from_bytes(peer.read(4), "big")
    buffer = bytearray(2**20)
    while left:
        size = peer.socket.recv_into(buffer, min(left, len(buffer)))
        if size == 0:
            raise EOFError
        left -= size


def test_a_command_leaves_although_no_rows_follow(
    start_peer: StartPeer, one_task: Shared, clock: Clock, stuck: threading.Event
) -> None:
    stored = threading.Event()

    def read_late(peer: Peer) -> None:
        peer.identify()
        assert stuck.wait(10)
        read_large(peer)
        peer.answer()
        stored.set()
        answer_more(peer)

    peer = start_peer(read_late)
    with Producer(options(peer), 0, one_task) as producer:
        producer.publish(request(LARGE))
        assert stored.wait(10), "nsqd never got the rest of the command"
        clock.passed_s = 3600
        producer.publish(request())
        producer.finish()
    assert (producer.books.stored.total(), producer.books.resent, peer.connection_count) == (2, 0, 1)


def test_nobody_waits_for_ever_for_an_nsqd_that_reads_no_more(
    start_peer: StartPeer, one_task: Shared, clock: Clock, stuck: threading.Event
) -> None:
    given_up = threading.Event()

    def read_nothing(peer: Peer) -> None:
        peer.identify()
        assert stuck.wait(10)
        clock.passed_s = 3600
        assert given_up.wait(10)

    def read_all(peer: Peer) -> None:
        given_up.set()
        peer.identify()
        read_large(peer)
        peer.answer()
        peer.read(1)

    with Producer(options(start_peer(read_nothing, read_all), retries="1"), 0, one_task) as producer:
        producer.publish(request(LARGE))
        producer.finish()
    assert (producer.books.stored.total(), producer.books.resent) == (1, 1)


@pytest.mark.parametrize("is_answer_seen", [True, False], ids=["idle", "answers under way"])
def test_a_connection_that_nsqd_closed_meanwhile_is_made_again(
    start_peer: StartPeer, one_task: Shared, caplog: pytest.LogCaptureFixture, is_answer_seen: bool
) -> None:
    closed = threading.Event()

    def wait_for_two_heartbeats(peer: Peer) -> None:
        peer.identify()
        peer.read_mpub()
        peer.answer()
        for _ in range(2):
            peer.answer(b"_heartbeat_")
        peer.socket.close()
        closed.set()

    peer = start_peer(wait_for_two_heartbeats, answer_all)
    with Producer(options(peer), 0, one_task) as producer:
        producer.publish(request())
        if is_answer_seen:
            producer.finish()
        assert closed.wait(10)
        producer.publish(request())
        producer.finish()
    assert (producer.books.stored.total(), producer.books.resent, peer.connection_count) == (2, 0, 2)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_all_answers_count_before_the_end_of_a_connection_does(start_peer: StartPeer, one_task: Shared) -> None:
    """There may be one for each deferred message: far more than one look at the connection finds."""
    count = 20_000
    closed = threading.Event()

    def answer_and_close(peer: Peer) -> None:
        peer.identify()
        read_large(peer)
        peer.send(count * encode_frame(RESPONSE, b"OK"))
        peer.socket.close()
        closed.set()

    peer = start_peer(answer_and_close, answer_all)
    with Producer(options(peer), 0, one_task) as producer:
        producer.publish(Request("t", count, count, request().pieces))
        assert closed.wait(10)
        producer.publish(request())
        producer.finish()
    assert (producer.books.stored.total(), producer.books.resent) == (count + 1, 0)


def test_an_nsqd_that_answers_what_it_never_read(
    start_peer: StartPeer, one_task: Shared, stuck: threading.Event
) -> None:
    """What it leaves here must neither be waited for nor pile up."""

    def answer_only(peer: Peer) -> None:
        peer.identify()
        assert stuck.wait(10)
        peer.answer()
        assert done.wait(10)

    done = threading.Event()
    peer = start_peer(answer_only, answer_all)
    with Producer(options(peer), 0, one_task) as producer:
        producer.publish(request(LARGE))
        producer.publish(request())
        producer.finish()
        done.set()
    assert peer.connection_count == 2
