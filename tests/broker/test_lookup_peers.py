"""nsqd and nsqlookupds over real sockets: greeting, changes, a connection that ends, a list that changes."""

import errno
from collections.abc import Iterator

import gevent
import pytest
from gevent import socket
from gevent.event import Event
from gevent.server import StreamServer

from pyspark_nsq.broker import lookup_peers
from pyspark_nsq.broker.http_client import HttpClient
from pyspark_nsq.broker.logs import Logger
from pyspark_nsq.broker.lookup_peers import LookupPeers
from pyspark_nsq.proto.commands import sized

PATIENCE = 20


class FakeLookupd:
    """Says OK to everything, and remembers what it was told on each connection."""

    def __init__(self, port: int = 0, http_port: int = 1) -> None:
        self.connections: list[tuple[socket.socket, bytearray]] = []
        self._http_port = http_port
        self._changed = Event()
        self._server = StreamServer(("127.0.0.1", port), self._serve)
        with gevent.Timeout(PATIENCE):
            self._start()
        self.port: int = self._server.server_port
        self.address = f"127.0.0.1:{self.port}"

    def _start(self) -> None:
        """A connection of somebody else's may begin at a port that was let go, until it ends."""
        while not self._server.started:
            try:
                self._server.start()
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                gevent.sleep(0.1)

    def _serve(self, connection: socket.socket, _: object) -> None:
        heard = bytearray()
        self.connections.append((connection, heard))
        info = b'{"broadcast_address":"127.0.0.1","http_port":%d}' % self._http_port
        connection.sendall(sized(info))
        while data := connection.recv(4096):
            heard += data
            lines = data.count(b"REGISTER") + data.count(b"PING")
            connection.sendall(sized(b"OK") * lines)
            self._changed.set()

    def wait_for(self, text: bytes, connection: int = -1) -> bytes:
        with gevent.Timeout(PATIENCE):
            while len(self.connections) <= max(connection, 0) or text not in self.connections[connection][1]:
                self._changed.wait(0.05)
                self._changed.clear()
        return bytes(self.connections[connection][1])

    def cut(self) -> None:
        for connection, _ in self.connections:
            connection.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture
def lookupd() -> Iterator[FakeLookupd]:
    lookupd = FakeLookupd()
    yield lookupd
    lookupd.stop()


@pytest.fixture
def peers() -> Iterator[LookupPeers]:
    identity = {"broadcast_address": "b", "hostname": "h", "http_port": 2, "tcp_port": 1, "version": "1.3.0"}
    registrations = [("old", None), ("old2", "c")]
    log = Logger("", write=lambda _: None)
    peers = LookupPeers(identity, lambda: registrations, 1 << 20, HttpClient(1.0, 2.0), log)
    yield peers
    peers.stop()


def test_what_exists_is_registered_on_connecting_and_what_comes_after(lookupd: FakeLookupd, peers: LookupPeers):
    assert not peers
    peers.set_addresses([lookupd.address])
    assert peers
    greeting = lookupd.wait_for(b"REGISTER old2 c\n")
    assert greeting.startswith(b"  V1IDENTIFY\n")
    assert b"REGISTER old\n" in greeting
    peers.register("new", "c")
    peers.unregister("new", "c")
    assert lookupd.wait_for(b"UNREGISTER new c\n").endswith(b"REGISTER new c\nUNREGISTER new c\n")


def test_a_connection_that_ends_is_made_anew_at_once(lookupd: FakeLookupd, peers: LookupPeers):
    peers.set_addresses([lookupd.address])
    lookupd.wait_for(b"REGISTER old2 c\n")
    lookupd.cut()
    assert lookupd.wait_for(b"REGISTER old2 c\n", connection=1).startswith(b"  V1IDENTIFY\n")


def test_a_lookupd_that_comes_later_is_found(lookupd: FakeLookupd, peers: LookupPeers):
    lookupd.stop()
    peers.set_addresses([lookupd.address])
    gevent.sleep(0.3)
    later = FakeLookupd(lookupd.port)
    try:
        later.wait_for(b"REGISTER old2 c\n")
    finally:
        later.stop()


def test_the_list_changes(lookupd: FakeLookupd, peers: LookupPeers):
    other = FakeLookupd()
    try:
        peers.set_addresses([lookupd.address])
        lookupd.wait_for(b"REGISTER old2 c\n")
        peers.set_addresses([other.address])
        other.wait_for(b"REGISTER old2 c\n")
        peers.register("new")
        other.wait_for(b"REGISTER new\n")
        assert b"REGISTER new\n" not in lookupd.connections[0][1]
        with gevent.Timeout(PATIENCE):
            assert lookupd.connections[0][0].closed or lookupd.connections[0][0].recv(1) == b""
    finally:
        other.stop()


def test_pings_come_however_much_else_is_said(
    lookupd: FakeLookupd, peers: LookupPeers, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lookup_peers, "PING_SECONDS", 0.2)
    peers.set_addresses([lookupd.address])
    lookupd.wait_for(b"REGISTER old2 c\n")

    def talk() -> None:
        while True:
            peers.register("new", "c")
            gevent.sleep(0.01)

    talker = gevent.spawn(talk)
    try:
        assert lookupd.wait_for(b"PING\nREGISTER new c\n")
    finally:
        talker.kill()


def test_what_was_deleted_elsewhere_is_registered_again(
    lookupd: FakeLookupd, peers: LookupPeers, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lookup_peers, "PING_SECONDS", 0.02)
    peers.set_addresses([lookupd.address])
    told = lookupd.wait_for(b"PING\nREGISTER old\nREGISTER old2 c\n")
    assert told.count(b"PING\n") == 4
    assert len(lookupd.connections) == 1


def test_channels_of_a_topic_from_all_lookupds(peers: LookupPeers):
    def answer(connection: socket.socket, _: object) -> None:
        request = connection.recv(4096)
        assert request.startswith(b"GET /channels?topic=t HTTP/1.1")
        assert b"Accept: application/vnd.nsq; version=1.0" in request
        body = b'{"channels":["b","a","gone#ephemeral","not valid",7]}'
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    http = StreamServer(("127.0.0.1", 0), answer)
    http.start()
    with_channels, without = FakeLookupd(http_port=http.server_port), FakeLookupd(http_port=1)
    try:
        peers.set_addresses([with_channels.address, without.address])
        with_channels.wait_for(b"REGISTER old2 c\n")
        without.wait_for(b"REGISTER old2 c\n")
        with gevent.Timeout(PATIENCE):
            while not peers.channels_of("t"):
                gevent.sleep(0.01)
        assert peers.channels_of("t") == ["a", "b"]
    finally:
        for server in (http, with_channels, without):
            server.stop()
