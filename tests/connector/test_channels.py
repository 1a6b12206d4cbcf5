"""Where receivers listen, and whom tasks believe: ports, unix sockets and TLS, with a receiver of three messages."""

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from pyspark_nsq.connector import channels, rows
from pyspark_nsq.connector.channels import Guard, ListenError, listen, make_server, open_channel
from pyspark_nsq.connector.receiver_tls import ReceiverTls
from pyspark_nsq.connector.rows import Place, RangePartition, ReadError, fetch
from pyspark_nsq.connector.ways import Way
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc

TOKEN = "a token that nobody sees"
# Nobody listens there.
NOWHERE = "127.0.0.1:1"


class Three(receiver_pb2_grpc.ReceiverServicer):
    def Read(self, _request: pb.ReadRequest, _context: grpc.ServicerContext) -> Iterator[pb.Rows]:  # noqa: N802
        yield pb.Rows(message_count=3)


@pytest.fixture
def server() -> Iterator[grpc.Server]:
    made = make_server(4, [Guard(TOKEN)])
    receiver_pb2_grpc.add_ReceiverServicer_to_server(Three(), made)  # type: ignore[no-untyped-call]
    yield made
    made.stop(0).wait()


@pytest.fixture(autouse=True)
def stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections end with the test, not with the process: those that are refused would be tried again and again."""
    monkeypatch.setattr(rows, "_stubs", {})


def count_at(place: Place) -> int:
    """How many messages a task gets there."""
    return sum(piece.rows.message_count for piece in fetch(RangePartition(place, TOKEN, 0, 3), []))


def successive_ports(count: int) -> range:
    """Ports of which nobody has any."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            try:
                for port in range(first + 1, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except (OSError, OverflowError):
                continue
            return range(first, first + count)


# Ports.


def test_the_first_port_that_is_free_is_used(server: grpc.Server) -> None:
    ports = successive_ports(3)
    with closing(socket.create_server(("127.0.0.1", ports[0]))):
        assert listen(server, "127.0.0.1", ports, None) == ports[1]
    server.start()
    assert count_at(Place(f"127.0.0.1:{ports[1]}")) == 3


def test_ports_that_are_all_taken_are_told_with_the_option_s_name(server: grpc.Server) -> None:
    ports = successive_ports(2)
    with ExitStack() as stack:
        for port in ports:
            stack.enter_context(closing(socket.create_server(("127.0.0.1", port))))
        tried = rf"receiverPorts.*: cannot listen at 127.0.0.1:{ports[0]}, nor at the 1 ports after it"
        with pytest.raises(ListenError, match=tried):
            listen(server, "127.0.0.1", ports, None)
        with pytest.raises(ListenError, match=f"^--listen: cannot listen at 127.0.0.1:{ports[0]}: "):
            listen(server, "127.0.0.1", ports[:1], None, named="--listen")


# Peers that are gone.


@pytest.fixture
def silent() -> Iterator[str]:
    """Where connections are taken, as gRPC's are, and nothing is said after that."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take() -> None:
            with listener.accept()[0] as sock:
                sock.sendall(b"\0\0\0\4\0\0\0\0\0")  # settings, none of which differs
                while sock.recv(4096):
                    pass

        thread = threading.Thread(target=take)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_a_call_over_a_connection_that_only_this_side_knows_ends(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pings = {"grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"}
    options = [(name, 200 if name in pings else value) for name, value in channels._CHANNEL_OPTIONS]
    monkeypatch.setattr(channels, "_CHANNEL_OPTIONS", options)
    with open_channel(silent, None) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/receiver/Anything")(b"", timeout=20)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_receiver_is_tried_again_after_such_a_call() -> None:
    """Both pings have been waited for by then: the one of a connection in use, and the one of an idle one."""
    options = dict(channels._CHANNEL_OPTIONS)
    given_up_ms = options["grpc.keepalive_time_ms"] + options["grpc.http2.ping_timeout_ms"]
    assert given_up_ms / 1000 < rows._UNREACHABLE_S


# Unix sockets.


def test_a_task_on_the_receiver_s_host_comes_by_its_socket(server: grpc.Server) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/a.sock"
        assert server.add_insecure_port(f"unix:{path}")
        server.start()
        # Private as it is, it needs no TLS.
        for way in (None, Way(ReceiverTls("no such file"), TOKEN)):
            assert Place(NOWHERE, 0, path, way).targets == (f"unix:{path}", NOWHERE)
            assert count_at(Place(NOWHERE, 0, path, way)) == 3


def test_a_task_elsewhere_does_not_see_the_socket() -> None:
    assert Place(NOWHERE, 0, "/nowhere/a.sock").targets == (NOWHERE,)
    assert Place(NOWHERE).targets == (NOWHERE,)


def test_a_socket_that_was_left_over_is_passed_by(server: grpc.Server, tmp_path: Path) -> None:
    (tmp_path / "a.sock").touch()
    port = listen(server, "127.0.0.1", range(1), None)
    server.start()
    assert count_at(Place(f"127.0.0.1:{port}", 0, str(tmp_path / "a.sock"))) == 3


# TLS.


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ReceiverTls:
    """The files of a receiver with a name that is not its address."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    pair = authority.issue_cert("receivers.example.org")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    trustme.CA().cert_pem.write_to_path(folder / "other-ca.pem")
    pair.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    pair.private_key_pem.write_to_path(folder / "key.pem")
    return ReceiverTls(*(str(folder / f"{name}.pem") for name in ("ca", "cert", "key")), "receivers.example.org")


Change = Callable[[ReceiverTls], Any]


@pytest.fixture
def place(server: grpc.Server, tls: ReceiverTls) -> Place:
    """A receiver that speaks TLS."""
    port = listen(server, "127.0.0.1", range(1), tls)
    server.start()
    return Place(f"127.0.0.1:{port}", way=Way(tls, TOKEN))


def test_tls_is_spoken_with_a_receiver_that_bears_the_name(place: Place) -> None:
    assert count_at(place) == 3


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (lambda tls: replace(tls, ca_file=tls.ca_file.replace("ca.pem", "other-ca.pem")), "receiverTlsCaFile"),
        (lambda tls: replace(tls, server_name=None), "receiverTlsServerName"),
        (lambda tls: replace(tls, server_name="another.example.org"), "receiverTlsServerName"),
        # Nothing tells that apart from a host that cannot be reached.
        (lambda _: None, "receiverHost"),
    ],
    ids=["another authority", "its address for a name", "another name", "no TLS"],
)
def test_nothing_is_read_from_a_receiver_that_cannot_be_believed(
    place: Place, tls: ReceiverTls, change: Change, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_UNREACHABLE_S", 0.0)
    with pytest.raises(ReadError, match="UNAVAILABLE") as caught:
        count_at(replace(place, way=Way(change(tls), TOKEN)))
    assert hint in str(caught.value)
    assert ("receiverHost" in str(caught.value)) == (hint == "receiverHost")


def test_a_host_that_lacks_the_authorities_is_told_so(place: Place, tls: ReceiverTls) -> None:
    with pytest.raises(ReadError, match=r"option receiverTlsCaFile: .*'/nowhere/ca.pem', on this host"):
        count_at(replace(place, way=Way(replace(tls, ca_file="/nowhere/ca.pem"), TOKEN)))


def test_a_task_that_wants_tls_reads_nothing_in_clear(
    server: grpc.Server, tls: ReceiverTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_UNREACHABLE_S", 0.0)
    port = listen(server, "127.0.0.1", range(1), None)
    server.start()
    with pytest.raises(ReadError, match="UNAVAILABLE"):
        count_at(Place(f"127.0.0.1:{port}", way=Way(tls, TOKEN)))
