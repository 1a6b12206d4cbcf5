"""TLS and compression between a session's bytes and the socket's: a client's side against ours, in memory."""

import ssl
import zlib

import cramjam
import pytest
from simulation.certificates import Certificates

from pyspark_nsq.broker.identify import Identity
from pyspark_nsq.broker.tls import TlsConfigError, TlsError, TlsFacts, server_context
from pyspark_nsq.broker.wire import Wire
from pyspark_nsq.proto.errors import WireError
from pyspark_nsq.proto.frames import RESPONSE, encode_frame

OK = encode_frame(RESPONSE, b"OK")
REPLY = encode_frame(RESPONSE, b"{}")


class TlsClient:
    """The peer of a wire: its bytes go straight into it, and the other way round."""

    def __init__(self, context: ssl.SSLContext, wire: Wire) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)
        self._wire = wire
        self.heard = b""

    def connect(self) -> None:
        for _ in range(5):
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.exchange()
            else:
                self.exchange()
                return
        raise AssertionError("no handshake in five rounds")

    def exchange(self) -> list[bytes]:
        """Our bytes to the wire, its bytes to us; what the wire has decoded."""
        decoded = list(self._wire.decode(self._outgoing.read()))
        self._incoming.write(b"".join(self._wire.encode([])))
        return decoded

    def say(self, data: bytes) -> bytes:
        self._tls.write(data)
        return b"".join(self.exchange())

    def hear(self, said: list[bytes]) -> bytes:
        self._incoming.write(b"".join(self._wire.encode(list(said))))
        heard = b""
        try:
            while piece := self._tls.read(1 << 16):
                heard += piece
        except ssl.SSLWantReadError:
            pass
        return heard


def granted(**fields: bool) -> Identity:
    return Identity("", "", **fields)  # type: ignore[arg-type]


def test_snappy_from_its_ok_on():
    wire = Wire(granted(snappy=True), None, [REPLY])
    stream = b"".join(wire.encode([]))
    assert stream == REPLY + bytes.fromhex("ff060000734e6150705901 0e0000 26982bcf") + OK
    stream = stream[len(REPLY) :] + b"".join(wire.encode([b"x" * 1000, b"y"]))
    assert bytes(cramjam.snappy.decompress(stream)) == OK + b"x" * 1000 + b"y"
    assert b"".join(wire.decode(bytes(cramjam.snappy.compress(b"NOP\n")))) == b"NOP\n"


def test_deflate_from_its_ok_on():
    wire = Wire(granted(deflate=True), None, [REPLY])
    stream = b"".join(wire.encode([]))[len(REPLY) :] + b"".join(wire.encode([b"x" * 1000]))
    assert zlib.decompressobj(-15).decompress(stream) == OK + b"x" * 1000
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    assert b"".join(wire.decode(compressor.compress(b"NOP\n") + compressor.flush(zlib.Z_SYNC_FLUSH))) == b"NOP\n"


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
def test_corrupt_input(compression: str):
    with pytest.raises(WireError):
        list(Wire(granted(**{compression: True}), None, []).decode(b"\xfe\xff" * 50))


def test_tls_says_ok_inside(certificates: Certificates):
    wire = Wire(granted(tls=True), certificates.server(), [REPLY])
    assert b"".join(wire.encode([])) == REPLY
    client = TlsClient(certificates.client(), wire)
    assert wire.handshaking
    client.connect()
    assert not wire.handshaking
    assert client.hear([b"more"]) == OK + b"more"
    assert client.say(b"NOP\n") == b"NOP\n"


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
def test_tls_then_compression_with_an_ok_each(certificates: Certificates, compression: str):
    wire = Wire(granted(tls=True, **{compression: True}), certificates.server(), [])
    client = TlsClient(certificates.client(), wire)
    client.connect()
    heard = client.hear([b"message"])
    assert heard.startswith(OK)
    compressed = heard[len(OK) :]
    if compression == "snappy":
        assert bytes(cramjam.snappy.decompress(compressed)) == OK + b"message"
    else:
        assert zlib.decompressobj(-15).decompress(compressed) == OK + b"message"


@pytest.mark.parametrize("maximum", [None, ssl.TLSVersion.TLSv1_2])
@pytest.mark.parametrize(
    ("policy", "root", "certificate", "reason"),
    [
        ("", "", "", ""),
        ("require", "", "", "did not return a certificate"),
        ("require", "", "client", ""),
        ("require-verify", "client", "client", ""),
        ("require-verify", "server", "client", "verify failed"),
    ],
)
def test_client_certificates(
    certificates: Certificates, policy: str, root: str, certificate: str, reason: str, maximum: ssl.TLSVersion | None
):
    wire = Wire(granted(tls=True), certificates.server(policy, root), [])
    client = TlsClient(certificates.client(certificate, maximum), wire)
    if reason:
        with pytest.raises(TlsError, match=reason):
            client.connect()
        return
    client.connect()
    assert wire.tls is not None
    facts = wire.tls.facts()
    assert facts.common_name == certificate
    assert facts.version == ("TLS1.2" if maximum else "TLS1.3")
    assert facts.cipher_suite.startswith("TLS_")


def test_versions_below_the_minimum(certificates: Certificates):
    wire = Wire(granted(tls=True), certificates.server(), [])
    with pytest.raises(TlsError):
        TlsClient(certificates.client(maximum=ssl.TLSVersion.TLSv1_1), wire).connect()
    wire = Wire(granted(tls=True), certificates.server(minimum=ssl.TLSVersion.TLSv1), [])
    TlsClient(certificates.client(maximum=ssl.TLSVersion.TLSv1), wire).connect()
    assert isinstance(wire.tls and wire.tls.facts(), TlsFacts)
    assert wire.tls is not None
    assert wire.tls.facts().version == "TLS1.0"


def test_a_failed_handshake_ends_in_plain_text(certificates: Certificates):
    wire = Wire(granted(tls=True), certificates.server(), [])
    with pytest.raises(TlsError):
        list(wire.decode(b"PUB t\nthis is no hello"))
    wire.abandon_tls()
    assert b"".join(wire.encode([b"error"])).endswith(b"error")


def test_certificates_that_are_not_there():
    with pytest.raises(TlsConfigError, match=r"nowhere\.pem"):
        server_context("nowhere.pem", "nowhere.key", "", "", ssl.TLSVersion.TLSv1_2)
