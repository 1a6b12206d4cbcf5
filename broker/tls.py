"""TLS for the broker: a context from options, and a layer that turns bytes into bytes, without a socket."""

import _ssl
import ctypes
import ssl
from dataclasses import dataclass
from typing import Final

from gevent.ssl import SSLContext as GeventContext

from pyspark_nsq.proto.errors import WireError

POLICY_REQUIRE: Final = "require"
POLICY_REQUIRE_VERIFY: Final = "require-verify"
_READ_SIZE: Final = 256 * 1024


class TlsConfigError(ValueError):
    """Options that no TLS context can be made of."""


class TlsError(WireError):
    """The handshake failed, or what came later is no sound TLS."""


def server_context(cert: str, key: str, root_ca: str, policy: str, min_version: int) -> ssl.SSLContext:
    """The context for clients of both TCP and HTTPS. Policies besides the two known ones ask for no certificate."""
    # HTTPS wraps sockets with it, and only gevent's let others go on while they wait.
    context: ssl.SSLContext = GeventContext(ssl.PROTOCOL_TLS_SERVER)
    if min_version < ssl.TLSVersion.TLSv1_2:
        # OpenSSL's default security level has no cipher left for what these versions can do.
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion(min_version)
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(cert, key, "")
        if root_ca:
            context.load_verify_locations(root_ca)
    except OSError as error:
        raise TlsConfigError(f"failed to build TLS config: {error} (certificate {cert}, CA {root_ca})") from error
    if policy == POLICY_REQUIRE_VERIFY:
        context.verify_mode = ssl.CERT_REQUIRED
    elif policy == POLICY_REQUIRE:
        _require_any_certificate(context)
    return context


class _SslContextHead(ctypes.Structure):
    """How CPython lays out an SSLContext: an object's head, then OpenSSL's own context."""

    _fields_ = (("refcount", ctypes.c_ssize_t), ("type", ctypes.c_void_p), ("ssl_ctx", ctypes.c_void_p))


_VERIFY_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
_accept_any = _VERIFY_CALLBACK(lambda _preverified, _store: 1)
_VERIFY_PEER_AND_FAIL_WITHOUT: Final = 0x01 | 0x02


def _require_any_certificate(context: ssl.SSLContext) -> None:
    """Demand a client certificate but accept whoever signed it.

    Python's ssl has no name for that, OpenSSL has: its verify callback, set behind Python's back.
    """
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        set_verify = ctypes.CDLL(_ssl.__file__).SSL_CTX_set_verify
    except (OSError, AttributeError) as error:
        raise TlsConfigError(
            f"tls-client-auth-policy 'require' needs a Python whose ssl module links OpenSSL dynamically ({error});"
            " use 'require-verify' with tls-root-ca-file"
        ) from error
    set_verify.argtypes = (ctypes.c_void_p, ctypes.c_int, _VERIFY_CALLBACK)
    set_verify.restype = None
    set_verify(_SslContextHead.from_address(id(context)).ssl_ctx, _VERIFY_PEER_AND_FAIL_WITHOUT, _accept_any)


@dataclass(frozen=True, slots=True)
class TlsFacts:
    """What /stats and auth servers are told of a client's TLS."""

    cipher_suite: str
    version: str
    common_name: str


class TlsLayer:
    """One client's TLS as a pair of byte streams. A ``TlsError`` of its methods ends the connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.established = False
        self.ended = False

    def receive(self, data: bytes) -> bytes:
        """The plain text of these bytes; empty while the handshake is going on."""
        self._incoming.write(data)
        try:
            if not self.established:
                self._tls.do_handshake()
                self.established = True
            return self._read_all()
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLError as error:
            raise TlsError(_reason(error)) from error

    def _read_all(self) -> bytes:
        pieces = []
        try:
            while piece := self._tls.read(_READ_SIZE):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        return b"".join(pieces)

    def send(self, data: bytes) -> None:
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise TlsError(_reason(error)) from error

    def take_output(self) -> bytes:
        """Bytes for the socket: of the handshake as well as of what was sent."""
        return self._outgoing.read()

    def facts(self) -> TlsFacts:
        cipher = self._tls.cipher()
        name = _GO_CIPHER_NAMES.get(cipher[0], cipher[0]) if cipher else ""
        version = (self._tls.version() or "").replace("TLSv1", "TLS1")
        return TlsFacts(name, "TLS1.0" if version == "TLS1" else version, self._common_name())

    def _common_name(self) -> str:
        certificate = self._tls.getpeercert() or {}
        for relative_name in certificate.get("subject", ()):
            for pair in relative_name:
                if pair[0] == "commonName":
                    return str(pair[1])
        return ""


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's reason in words, as Go's texts are; without its file names and numbers."""
    return f"tls: {error.reason.lower().replace('_', ' ') if error.reason else error}"


# OpenSSL's names for the suites that Go's clients negotiate, as IANA and Go spell them. TLS 1.3's are the same.
_GO_CIPHER_NAMES: Final = {
    f"ECDHE-{signature}-{openssl}": f"TLS_ECDHE_{signature}_WITH_{iana}"
    for signature in ("RSA", "ECDSA")
    for openssl, iana in {
        "AES128-GCM-SHA256": "AES_128_GCM_SHA256",
        "AES256-GCM-SHA384": "AES_256_GCM_SHA384",
        "CHACHA20-POLY1305": "CHACHA20_POLY1305_SHA256",
        "AES128-SHA": "AES_128_CBC_SHA",
        "AES256-SHA": "AES_256_CBC_SHA",
        "AES128-SHA256": "AES_128_CBC_SHA256",
    }.items()
} | {
    "AES128-GCM-SHA256": "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "AES256-GCM-SHA384": "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "AES128-SHA": "TLS_RSA_WITH_AES_128_CBC_SHA",
    "AES256-SHA": "TLS_RSA_WITH_AES_256_CBC_SHA",
}
