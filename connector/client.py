"""A connection to an nsqd: a stream of bytes both ways, whatever TLS and compression do to them in between."""

import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from pyspark_nsq.connector.errors import ConnectError, OptionError, SecurityError
from pyspark_nsq.connector.handshake import (
    ANSWER_SIZE_MAX,
    Handshake,
    Send,
    ServerFacts,
    StartDeflate,
    StartSnappy,
    StartTls,
    Step,
)
from pyspark_nsq.connector.security import auth_secret, tls_context
from pyspark_nsq.connector.settings import Address, ConnectionSettings
from pyspark_nsq.proto import commands
from pyspark_nsq.proto.compression import (
    Compressor,
    Decompressor,
    DeflateCompressor,
    DeflateDecompressor,
    SnappyCompressor,
    SnappyDecompressor,
)
from pyspark_nsq.proto.errors import WireError
from pyspark_nsq.proto.frames import Frame, check_frame_size
from pyspark_nsq.proto.pieces import append_piece

Bytes = bytes | bytearray | memoryview

# How many bytes are taken from the socket at once to be decompressed.
_COMPRESSED_SIZE: Final = 256 * 1024
# So often at most before a byte comes out; five records of TLS make a chunk of Snappy.
_RECEIVES_MAX: Final = 16
# The most pieces that are handed to the kernel in one call; it takes at least 1,024.
_PIECES_MAX: Final = 512


class NsqdStream:
    """An open connection after its handshake.

    It is blocking with a timeout, or not, as ``settimeout`` says, like a socket. What is written is queued and goes
    out in order; only ``write`` waits until all of it is gone.
    """

    def __init__(self, address: Address, sock: socket.socket) -> None:
        self.address = address
        self.facts = ServerFacts("", 1, 1, 1)
        self._socket = sock
        self._compressor: Compressor | None = None
        self._decompressor: Decompressor | None = None
        # Bytes that were received and not read yet, and where more of them come from without the socket.
        self._received: memoryview = memoryview(b"")
        self._pieces: Iterator[bytes] = iter(())
        self._unsent: deque[bytes | memoryview] = deque()
        self.unsent_size = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def settimeout(self, seconds: float | None) -> None:
        """0 for never waiting, None for waiting without end."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._socket.close()

    # Reading.

    @property
    def pending(self) -> bool:
        """Whether bytes can be read although the socket may have none: select() does not know about these."""
        if len(self._received):
            return True
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return self._next_piece()

    def read_into(self, buffer: bytearray | memoryview) -> int:
        """Fill the start of the buffer with what there is, and say how much; 0 is the end of the stream.

        Without bytes ``BlockingIOError`` or ``TimeoutError``, as ``settimeout`` says. Who never waits receives a few
        times at most: of what is compressed any amount may hold no byte.
        """
        if not len(self._received) and self._decompressor is None:
            return self._receive(memoryview(buffer))
        receives = 0
        while not len(self._received) and not self._next_piece():
            if receives == _RECEIVES_MAX and self._socket.gettimeout() == 0:
                raise BlockingIOError
            if not self._decompress_more():
                return 0
            receives += 1
        size = min(len(buffer), len(self._received))
        memoryview(buffer)[:size] = self._received[:size]
        self._received = self._received[size:]
        return size

    def read(self, size: int) -> bytes:
        """What there is, up to so many bytes; empty at the end of the stream."""
        buffer = bytearray(size)
        return bytes(memoryview(buffer)[: self.read_into(buffer)])

    def wait_readable(self, timeout_s: float) -> bool:
        """Whether something has come within so long. Under TLS or compression it may be too little for a byte."""
        if self.pending:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))

    def _receive(self, view: memoryview) -> int:
        try:
            return self._socket.recv_into(view)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLEOFError:
            return 0

    def _next_piece(self) -> bool:
        """Whether bytes came out of what was received before."""
        self._received = memoryview(next(self._pieces, b""))
        return bool(len(self._received))

    def _decompress_more(self) -> bool:
        """Receive compressed bytes; False at the end of the stream."""
        assert self._decompressor is not None
        if isinstance(self._decompressor, DeflateDecompressor) and self._decompressor.ended:
            return False
        buffer = bytearray(_COMPRESSED_SIZE)
        size = self._receive(memoryview(buffer))
        if size == 0:
            return False
        self._pieces = self._decompressor.decompress(bytes(memoryview(buffer)[:size]))
        return True

    # Writing.

    def queue(self, *pieces: Bytes) -> None:
        """Add bytes to those that go out. They must not change until they are gone."""
        compressor = self._compressor
        if compressor is not None:
            pieces = (compressor.compress(b"".join(pieces)),)
        for piece in pieces:
            if len(piece):
                append_piece(self._unsent, memoryview(piece).cast("B"))
                self.unsent_size += len(piece)

    def answer_heartbeat(self) -> None:
        """Tell nsqd that we live, which whatever waits to be sent does as well: who reads nothing gets nothing more."""
        if not self.unsent_size:
            self.queue(commands.NOP)

    def flush(self) -> bool:
        """Send what the socket takes, and say whether that is all. A blocking one takes all, or ``TimeoutError``."""
        try:
            while self._unsent:
                self._sent(self._send())
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return False
        return True

    def write(self, *pieces: Bytes) -> None:
        """Send all of these bytes, and what is queued before them. Only for blocking streams."""
        self.queue(*pieces)
        if not self.flush():
            raise BlockingIOError(f"nsqd {self.address}: write() is for blocking streams, use queue() and flush()")

    def _send(self) -> int:
        if isinstance(self._socket, ssl.SSLSocket):
            return self._socket.send(self._unsent[0])
        return self._socket.sendmsg(list(islice(self._unsent, _PIECES_MAX)))

    def _sent(self, size: int) -> None:
        self.unsent_size -= size
        while size:
            piece = self._unsent.popleft()
            if size < len(piece):
                self._unsent.appendleft(memoryview(piece)[size:])
                return
            size -= len(piece)

    # The handshake's steps.

    def take(self, step: Step, settings: ConnectionSettings) -> None:
        """Do what the handshake asks for."""
        match step:
            case Send(data):
                self.write(data)
            case StartTls():
                self._start_tls(settings)
            case StartSnappy():
                self._compressor, self._decompressor = SnappyCompressor(), SnappyDecompressor()
            case StartDeflate(level):
                self._compressor, self._decompressor = DeflateCompressor(level), DeflateDecompressor()

    def _start_tls(self, settings: ConnectionSettings) -> None:
        security = settings.security
        name = security.tls_server_name or self.address.host
        self._socket = tls_context(security).wrap_socket(self._socket, server_hostname=name)


def connect(address: Address, settings: ConnectionSettings, timeout_s: float | None = None) -> NsqdStream:
    """A connection that is ready for commands; ``ConnectError`` names the address and what may help.

    It is blocking, with the timeout that the handshake had as a whole.
    """
    deadline = time.monotonic() + (timeout_s or settings.connect_timeout_s)
    try:
        sock = socket.create_connection(address, timeout=_left(deadline))
    except (OSError, UnicodeError) as error:
        raise ConnectError(address, f"cannot be reached ({_reason(error)}): is it running, at this address?") from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    stream = NsqdStream(address, sock)
    try:
        _shake_hands(stream, settings, deadline)
    except BaseException:
        stream.close()
        raise
    stream.settimeout(timeout_s or settings.connect_timeout_s)
    return stream


def _shake_hands(stream: NsqdStream, settings: ConnectionSettings, deadline: float) -> None:
    address = stream.address
    try:
        handshake = Handshake(address, settings, auth_secret(settings.security))
        step: Step | None = handshake.start()
        while step is not None:
            stream.settimeout(_left(deadline))
            stream.take(step, settings)
            step = handshake.receive(_read_frame(stream, deadline))
    except OptionError as error:
        raise SecurityError(address, str(error)) from error
    except ssl.SSLCertVerificationError as error:
        reason = f"has a certificate that is not accepted ({error.verify_message}): {_VERIFY_HELP}"
        raise SecurityError(address, reason) from error
    except ssl.SSLError as error:
        raise SecurityError(address, f"did not agree on TLS ({_reason(error)}): {_TLS_HELP}") from error
    except WireError as error:
        raise ConnectError(address, f"does not behave like nsqd ({error}): is this its TCP port?") from error
    except OSError as error:
        raise ConnectError(address, f"connected, but did not finish the handshake ({_reason(error)})") from error
    assert handshake.facts is not None
    stream.facts = handshake.facts


_VERIFY_HELP: Final = "option tlsCaFile says which authorities to trust, tlsServerName which name to expect"
_TLS_HELP: Final = "does it want a client's certificate? See option tlsCertFile"


def _read_frame(stream: NsqdStream, deadline: float) -> Frame:
    """The next frame and not a byte more: what follows may be in another form."""
    size = int.from_bytes(_read_exactly(stream, 4, deadline), "big")
    check_frame_size(size, ANSWER_SIZE_MAX)
    content = _read_exactly(stream, size, deadline)
    return Frame(int.from_bytes(content[:4], "big"), content[4:])


def _read_exactly(stream: NsqdStream, size: int, deadline: float) -> bytes:
    data = b""
    stream.settimeout(0)
    while len(data) < size:
        stream.wait_readable(_left(deadline))
        with suppress(BlockingIOError):
            piece = stream.read(size - len(data))
            if not piece:
                raise ConnectionResetError("it closed the connection")
            data += piece
    return data


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _reason(error: OSError | UnicodeError) -> str:
    if isinstance(error, TimeoutError):
        return "timed out, see option connectTimeout"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
