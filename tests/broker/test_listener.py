"""Addresses, and connections as they are accepted."""

import errno
from collections.abc import Iterator

import gevent
import pytest
from gevent import socket
from gevent.event import Event

from pyspark_nsq.broker.listener import Acceptor, bind, join_host_port, local_port, local_text, split_host_port
from pyspark_nsq.broker.logs import Level, Logger


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:4150", ("127.0.0.1", "4150")),
        (":4150", ("", "4150")),
        ("host:", ("host", "")),
        ("[::1]:0", ("::1", "0")),
        ("::1:0", None),
        ("[::1]", None),
        ("[[::1]]:0", None),
        ("/tmp/nsqd.sock", None),
        ("nsqd.sock", None),
        ("", None),
    ],
)
def test_addresses_in_parts(address: str, parts: tuple[str, str] | None) -> None:
    assert split_host_port(address) == parts


def test_addresses_put_together() -> None:
    assert join_host_port("::1", 1) == "[::1]:1"
    assert join_host_port("host", 1) == "host:1"


@pytest.mark.parametrize("address", ["0.0.0.0:0", ":0", "[::]:0"])
def test_a_wildcard_serves_both_families(address: str) -> None:
    listener = bind(address)
    assert local_text(listener) == f"[::]:{local_port(listener)}"
    for host in ("127.0.0.1", "::1"):
        socket.create_connection((host, local_port(listener))).close()
    listener.close()


def test_one_address_serves_one() -> None:
    listener = bind("127.0.0.1:0")
    assert local_text(listener) == f"127.0.0.1:{local_port(listener)}"
    with pytest.raises(OSError, match="in use"):
        bind(local_text(listener))
    listener.close()


@pytest.mark.parametrize(
    "address", ["/tmp/x.sock", "nonsense", "127.0.0.1:70000", "127.0.0.1:nonsense", "host.invalid:1"]
)
def test_what_cannot_be_had(address: str) -> None:
    with pytest.raises(OSError, match=r".+"):
        bind(address)


class Server:
    """Says each peer's address back, then waits to be let go."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.served: list[socket.socket] = []
        self.failure: Exception | None = None
        self.go = Event()
        self.acceptor = Acceptor(bind("0.0.0.0:0"), self.serve, Logger("", Level.DEBUG, write=self.lines.append))
        self.port = local_port(self.acceptor.listener)
        self.acceptor.start()

    def serve(self, connection: socket.socket, peer: str) -> None:
        self.served.append(connection)
        connection.sendall(peer.encode())
        self.go.wait()
        if self.failure is not None:
            raise self.failure

    def connect(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port))
        client.settimeout(30)
        return client


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.acceptor.stop_accepting()
    server.acceptor.kill_connections()


def test_peers_are_named_as_ipv4_and_closed_when_done(server: Server) -> None:
    client = server.connect()
    host, port = client.getsockname()
    assert client.recv(100).decode() == f"{host}:{port}"
    server.go.set()
    assert client.recv(100) == b""
    gevent.joinall(list(server.acceptor.connections), timeout=30)
    assert not server.acceptor.connections


@pytest.mark.parametrize(("failure", "level"), [(OSError("gone"), "DEBUG"), (ValueError("a bug"), "ERROR")])
def test_a_connection_that_fails_is_closed_and_logged(server: Server, failure: Exception, level: str) -> None:
    server.failure = failure
    client = server.connect()
    assert client.recv(100)
    server.go.set()
    assert client.recv(100) == b""
    gevent.joinall(list(server.acceptor.connections), timeout=30)
    (line,) = [line for line in server.lines if str(failure) in line]
    assert f" {level}: " in line


def test_connections_outlive_the_listener_until_they_are_killed(server: Server) -> None:
    client = server.connect()
    assert client.recv(100)
    server.acceptor.stop_accepting()
    server.acceptor.stop_accepting()
    with pytest.raises(OSError, match=r".+"):
        server.connect()
    server.acceptor.kill_connections()
    assert client.recv(100) == b""


def test_a_failing_accept_is_tried_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def __init__(self, real: socket.socket) -> None:
            self.real = real
            self.failures = [errno.EMFILE, errno.ECONNABORTED]

        def accept(self) -> object:
            if self.failures:
                raise OSError(self.failures.pop(), "no")
            return self.real.accept()

    real = server.acceptor.listener
    server.connect().close()  # the loop is in accept() of the real listener: let it come round
    server.acceptor.listener = Failing(real)
    server.connect().close()
    assert server.connect().recv(100)
    assert sum("temporary Accept() failure" in line for line in server.lines) == 2
    server.acceptor.listener = real


def test_a_peer_whose_host_is_gone_is_missed_soon(server: Server) -> None:
    client = server.connect()
    assert client.recv(100)
    (served,) = server.served
    assert served.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        assert served.getsockopt(socket.IPPROTO_TCP, option) == 15
