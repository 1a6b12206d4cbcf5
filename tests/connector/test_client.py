"""Connections over real sockets, to peers that follow a script."""

import itertools
import socket
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest
from scripted_nsqd import Certificates, Peer, ScriptedNsqd

from pyspark_nsq.connector.client import NsqdStream, connect
from pyspark_nsq.connector.errors import ConnectError, SecurityError
from pyspark_nsq.connector.handshake import StartSnappy
from pyspark_nsq.connector.settings import Address, ConnectionSettings, Secret, Security
from pyspark_nsq.proto.compression import SnappyCompressor, SnappyDecompressor
from pyspark_nsq.proto.frames import ERROR, encode_frame

StartPeer = Callable[..., ScriptedNsqd]
BIG = bytes(range(256)) * 4096
SNAPPY_START, SNAPPY_PADDING = b"\xff\x06\x00\x00sNaPpY", b"\xfe\x04\x00\x00\x00\x00\x00\x00"


@contextmanager
def connected(peer: ScriptedNsqd, settings: ConnectionSettings | None = None) -> Iterator[NsqdStream]:
    with closing(connect(peer.address, settings or ConnectionSettings(), 10)) as stream:
        yield stream


def read_exactly(stream: NsqdStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        assert stream.wait_readable(10)
        piece = stream.read(size - len(data))
        assert piece
        data += piece
    return data


def echo(peer: Peer) -> None:
    """Say hello as nsqd does, then repeat all that comes."""
    peer.identify()
    while data := peer.socket.recv(65536):
        peer.send(data)


def test_bytes_go_both_ways(start_peer: StartPeer) -> None:
    with connected(start_peer(echo)) as stream:
        assert stream.facts.max_rdy_count == 2500
        stream.write(b"abc", memoryview(b"def"))
        assert read_exactly(stream, 6) == b"abcdef"


def test_without_blocking_what_does_not_go_out_is_queued(start_peer: StartPeer) -> None:
    def read_all_then_tell(peer: Peer) -> None:
        peer.identify()
        peer.read(1)
        peer.send(b"!")
        peer.read(8 * len(BIG) - 1)
        peer.send(b"?")

    with connected(start_peer(read_all_then_tell)) as stream:
        stream.settimeout(0)
        with pytest.raises(BlockingIOError):
            stream.read(1)
        stream.queue(*[BIG] * 8)
        assert stream.unsent_size == 8 * len(BIG)
        while not stream.flush():
            assert stream.unsent_size < 8 * len(BIG)
        assert read_exactly(stream, 2) == b"!?"


def test_what_waits_in_many_small_pieces_takes_little_more_than_its_size_and_goes_out_in_order() -> None:
    count, size = 100_000, len(b"FIN 0123456789abcdef\n")
    sock, peer = socket.socketpair()
    with peer, closing(NsqdStream(Address("127.0.0.1", 4150), sock)) as stream:
        stream.settimeout(0)
        tracemalloc.start()
        try:
            stream.queue(BIG)
            assert not stream.flush()
            for number in range(count):
                stream.queue(b"FIN %016d\n" % number)
            assert tracemalloc.get_traced_memory()[0] < 2 * count * size
        finally:
            tracemalloc.stop()
        received = b""
        while not stream.flush():
            received += peer.recv(2**20)
        sock.shutdown(socket.SHUT_WR)
        received += b"".join(iter(lambda: peer.recv(2**20), b""))
    assert received == BIG + b"".join(b"FIN %016d\n" % number for number in range(count))


def test_the_end_is_empty(start_peer: StartPeer) -> None:
    with connected(start_peer(lambda peer: peer.identify())) as stream:
        assert stream.wait_readable(10)
        assert stream.read(10) == b""


def test_what_follows_the_handshake_at_once_is_kept(start_peer: StartPeer) -> None:
    def eager(peer: Peer) -> None:
        peer.identify()
        peer.answer(b"_heartbeat_")
        peer.read(1)

    with connected(start_peer(eager)) as stream:
        assert read_exactly(stream, 19) == encode_frame(0, b"_heartbeat_")


def test_tls_is_verified(start_peer: StartPeer, certificates: Certificates) -> None:
    context = certificates.server_context()

    def secure_echo(peer: Peer) -> None:
        peer.identify(tls_v1=True)
        peer.start_tls(context)
        while data := peer.socket.recv(65536):
            peer.send(data)

    peer = start_peer(secure_echo)
    trusting = Security(tls=True, tls_ca_file=str(certificates.authority))
    with connected(peer, ConnectionSettings(security=trusting)) as stream:
        stream.settimeout(0)
        stream.queue(BIG)
        received = b""
        while len(received) < len(BIG):
            stream.flush()
            assert stream.wait_readable(10)
            with suppress(BlockingIOError):
                received += stream.read(1000)
        assert received == BIG


def test_under_tls_a_piece_that_waits_may_grow(start_peer: StartPeer, certificates: Certificates) -> None:
    context, may_read, received = certificates.server_context(), threading.Event(), bytearray()

    def read_late(peer: Peer) -> None:
        peer.identify(tls_v1=True)
        peer.start_tls(context)
        assert may_read.wait(20)
        while not received.endswith(b"end\n"):
            received.extend(peer.socket.recv(65536))
        peer.send(b"!")

    trusting = Security(tls=True, tls_ca_file=str(certificates.authority))
    with connected(start_peer(read_late), ConnectionSettings(security=trusting)) as stream:
        stream.settimeout(0)
        sent: list[bytes] = []

        def send(piece: bytes) -> bool:
            sent.append(piece)
            stream.queue(piece)
            return stream.flush()

        numbers = itertools.count()
        while send(b"%07d\n" % next(numbers) * 100):
            pass
        for _ in range(20):
            assert not send(b"%07d\n" % next(numbers) * 100)
        assert not send(b"end\n")
        may_read.set()
        stream.settimeout(10)
        assert stream.flush()
        assert read_exactly(stream, 1) == b"!"
    assert received == b"".join(sent)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: Security(tls=True), "certificate that is not accepted .*tlsCaFile"),
        (lambda ca: Security(tls=True, tls_ca_file=ca, tls_server_name="other.example"), "other.example"),
    ],
    ids=["unknown authority", "another name"],
)
def test_a_certificate_that_is_not_trusted_ends_it(
    start_peer: StartPeer, certificates: Certificates, make: Callable[[str], Security], words: str
) -> None:
    context = certificates.server_context()

    def script(peer: Peer) -> None:
        peer.identify(tls_v1=True)
        peer.start_tls(context)

    peer = start_peer(script)
    with pytest.raises(SecurityError, match=words) as caught:
        connect(peer.address, ConnectionSettings(security=make(str(certificates.authority))), 10)
    assert str(peer.address) in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda _: Security(tls=True, tls_insecure_skip_verify=True),
        lambda ca: Security(tls=True, tls_ca_file=ca, tls_server_name="nsqd.example.org"),
    ],
    ids=["not verified", "known by another name"],
)
def test_options_say_what_to_trust(
    start_peer: StartPeer, certificates: Certificates, make: Callable[[str], Security]
) -> None:
    context = certificates.server_context()

    def script(peer: Peer) -> None:
        peer.identify(tls_v1=True)
        peer.start_tls(context)
        peer.send(b"!")

    with connected(start_peer(script), ConnectionSettings(security=make(str(certificates.authority)))) as stream:
        assert read_exactly(stream, 1) == b"!"


def test_a_client_certificate_is_shown_when_asked_for(start_peer: StartPeer, certificates: Certificates) -> None:
    context = certificates.server_context(ask_client=True)
    seen: list[object] = []

    def script(peer: Peer) -> None:
        peer.identify(tls_v1=True)
        peer.start_tls(context)
        seen.append(peer.socket.getpeercert())  # type: ignore[attr-defined]
        peer.send(b"!")

    security = Security(tls=True, tls_ca_file=str(certificates.authority), tls_cert_file=str(certificates.client))
    with connected(start_peer(script), ConnectionSettings(security=security)) as stream:
        assert read_exactly(stream, 1) == b"!"
    assert "client@example.org" in str(seen)
    without = Security(tls=True, tls_ca_file=str(certificates.authority))
    with pytest.raises(ConnectError):
        connect(start_peer(script).address, ConnectionSettings(security=without), 10)


def test_clear_text_behind_the_promise_of_tls_is_not_believed(start_peer: StartPeer) -> None:
    def inject(peer: Peer) -> None:
        peer.identify(tls_v1=True)
        peer.answer()
        peer.answer()

    with pytest.raises(SecurityError, match="did not agree on TLS"):
        connect(start_peer(inject).address, ConnectionSettings(security=Security(tls=True)), 10)


def test_snappy(start_peer: StartPeer) -> None:
    def script(peer: Peer) -> None:
        peer.identify(snappy=True)
        compressor, decompressor = SnappyCompressor(), SnappyDecompressor()
        peer.send(compressor.compress(encode_frame(0, b"OK") + b"early"))
        while data := peer.socket.recv(65536):
            for piece in decompressor.decompress(data):
                peer.send(compressor.compress(piece))

    with connected(start_peer(script), ConnectionSettings(snappy=True)) as stream:
        assert stream.pending
        assert read_exactly(stream, 5) == b"early"
        stream.write(BIG)
        assert read_exactly(stream, len(BIG)) == BIG


def test_deflate_ends_where_the_peer_ends_it(start_peer: StartPeer) -> None:
    def script(peer: Peer) -> None:
        peer.identify(deflate=True)
        compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
        peer.send(compressor.compress(encode_frame(0, b"OK") + BIG) + compressor.flush(zlib.Z_FINISH))
        peer.read(1)

    with connected(start_peer(script), ConnectionSettings(deflate=True)) as stream:
        assert read_exactly(stream, len(BIG)) == BIG
        assert stream.read(1) == b""


def test_the_secret_is_sent_when_asked_for(start_peer: StartPeer) -> None:
    def script(peer: Peer) -> None:
        peer.identify(auth_required=True)
        assert peer.read_line() == b"AUTH"
        assert peer.read_body() == b"sesame"
        peer.answer(b'{"identity":"","identity_url":"","permission_count":1}')
        peer.send(b"!")

    security = Security(auth_secret=Secret("sesame"))
    with connected(start_peer(script), ConnectionSettings(security=security)) as stream:
        assert read_exactly(stream, 1) == b"!"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (lambda peer: peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "is this its TCP port"),
        (lambda peer: peer.send(b"\x00\x00\x00\x00"), "does not behave like nsqd"),
        (lambda peer: peer.send(b"\x7f\xff\xff\xff\x00\x00\x00\x00"), "does not behave like nsqd"),
        (lambda peer: peer.answer(b"E_BAD_PROTOCOL", ERROR), "E_BAD_PROTOCOL"),
        (lambda _: None, "did not finish the handshake"),
    ],
    ids=["HTTP", "too small", "too large", "an error", "gone"],
)
def test_peers_that_are_no_nsqd(start_peer: StartPeer, script: Callable[[Peer], None], words: str) -> None:
    peer = start_peer(script)
    with pytest.raises(ConnectError, match=words) as caught:
        connect(peer.address, ConnectionSettings(), 10)
    assert str(peer.address) in str(caught.value)


class EndlessWrapping:
    """A socket to which Snappy's padding comes without end."""

    def __init__(self) -> None:
        self.reads = 0

    def gettimeout(self) -> float:
        return 0.0

    def recv_into(self, view: memoryview) -> int:
        self.reads += 1
        assert self.reads < 100, "nothing else gets its turn"
        data = SNAPPY_START + SNAPPY_PADDING if self.reads == 1 else SNAPPY_PADDING
        view[: len(data)] = data
        return len(data)


def test_what_holds_no_byte_however_much_of_it_comes_does_not_keep_anybody_waiting() -> None:
    stream = NsqdStream(Address("127.0.0.1", 4150), EndlessWrapping())  # type: ignore[arg-type]
    stream.take(StartSnappy(), ConnectionSettings())
    with pytest.raises(BlockingIOError):
        stream.read(1)


def drip_padding(peer: Peer) -> None:
    peer.identify(snappy=True)
    peer.send(SNAPPY_START)
    while True:
        peer.send(SNAPPY_PADDING)
        time.sleep(0.02)


def test_padding_without_end_is_no_part_of_a_handshake(start_peer: StartPeer) -> None:
    with pytest.raises(ConnectError, match="connectTimeout"):
        connect(start_peer(drip_padding).address, ConnectionSettings(snappy=True), 0.3)


def drip(peer: Peer) -> None:
    """Never end, never stand still."""
    peer.send(b"\x00\x00\x80\x00\x00\x00\x00\x00")
    while True:
        peer.send(b"x")
        peer.socket.settimeout(0.02)
        try:
            peer.socket.recv(1000)
        except TimeoutError:
            continue


@pytest.mark.parametrize("script", [drip, lambda peer: peer.read(1000)], ids=["drips", "silent"])
def test_the_handshake_as_a_whole_has_a_time_limit(start_peer: StartPeer, script: Callable[[Peer], None]) -> None:
    with pytest.raises(ConnectError, match="connectTimeout"):
        connect(start_peer(script).address, ConnectionSettings(), 0.3)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
    with pytest.raises(ConnectError, match=f"nsqd {address}: cannot be reached .*refused"):
        connect(address, ConnectionSettings(), 10)


def test_the_name_is_unknown() -> None:
    with pytest.raises(ConnectError, match=r"nsqd nowhere\.invalid:4150: cannot be reached"):
        connect(Address("nowhere.invalid", 4150), ConnectionSettings(), 10)


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "\udc80"])
def test_a_host_that_no_name_server_can_be_asked_for(host: str) -> None:
    with pytest.raises(ConnectError, match="cannot be reached"):
        connect(Address(host, 4150), ConnectionSettings())
