"""A connection to publish on, with a peer at the other end of a socket pair."""

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from pyspark_nsq.connector.client import NsqdStream
from pyspark_nsq.connector.errors import ConnectError
from pyspark_nsq.connector.pool import PublishConnection
from pyspark_nsq.connector.settings import Address, ConnectionSettings
from pyspark_nsq.proto.commands import NOP
from pyspark_nsq.proto.frames import HEARTBEAT, HEARTBEATS_MAX, OK, RESPONSE, encode_frame

ASKED = encode_frame(RESPONSE, HEARTBEAT)


class Pair:
    """Both ends."""

    def __init__(self) -> None:
        sock, self.peer = socket.socketpair()
        self.stream = NsqdStream(Address("127.0.0.1", 4150), sock)
        self.connection = PublishConnection(self.stream.address, ConnectionSettings(), self.stream)

    def exchange(self) -> int:
        """As a producer does when something has come."""
        count = self.connection.receive()
        self.connection.flush()
        return count


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.connection.close()
    made.peer.close()


def test_each_heartbeat_of_one_who_reads_is_answered(pair: Pair) -> None:
    for _ in range(3):
        pair.peer.sendall(ASKED)
        assert pair.exchange() == 0
        assert pair.peer.recv(100) == NOP


def test_one_who_reads_nothing_gets_one_answer_to_all_heartbeats(pair: Pair) -> None:
    pair.peer.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            pair.stream._socket.send(bytes(2**16))
    for _ in range(1000):
        pair.peer.sendall(ASKED * HEARTBEATS_MAX)
        pair.exchange()
    assert pair.stream.unsent_size == len(NOP)
    with suppress(BlockingIOError):
        while pair.peer.recv(2**16):
            pair.connection.flush()
    assert pair.stream.unsent_size == 0


def test_what_waits_to_be_sent_answers_heartbeats(pair: Pair) -> None:
    pair.connection.send([bytes(2**24)])
    waiting = pair.stream.unsent_size
    assert waiting > 0
    for _ in range(10):
        pair.peer.sendall(ASKED)
        pair.exchange()
    assert pair.stream.unsent_size == waiting


def test_heartbeats_by_the_hundred_at_once_end_it(pair: Pair) -> None:
    pair.peer.sendall(ASKED * HEARTBEATS_MAX + encode_frame(RESPONSE, OK))
    assert pair.exchange() == 1
    pair.peer.sendall(ASKED * (HEARTBEATS_MAX + 1))
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:4150: .*101 heartbeats at once"):
        pair.exchange()
