"""A client of nsqd's TCP protocol, as small as a test needs.

It shares no code with the package: an error in the package's codec must not be able to hide itself here.
"""

import json
import os
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self, TypeVar

RESPONSE, ERROR, MESSAGE = 0, 1, 2
HEARTBEAT = b"_heartbeat_"
# A busy machine may be slow: no test waits this long unless it fails.
PATIENCE_SECONDS = float(os.environ.get("NSQ_PATIENCE_SECONDS") or 20)

Address = tuple[str, int] | str
Answer = TypeVar("Answer")


class Frame(NamedTuple):
    """One frame of the server, and when it was read (monotonic seconds)."""

    kind: int
    data: bytes
    arrived: float


class Message(NamedTuple):
    """A delivered message, and when it was read (monotonic seconds)."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes
    arrived: float


class Codec(Protocol):
    """A compression that wraps the stream in both directions."""

    def encode(self, data: bytes) -> bytes:
        """Plain bytes as they go over the wire."""
        ...

    def decode(self, data: bytes) -> bytes:
        """What the bytes of the wire complete, which may be nothing."""
        ...


class ClosedError(ConnectionError):
    """The server ended the connection."""


def with_length(body: bytes) -> bytes:
    """A body as commands carry it."""
    return struct.pack(">i", len(body)) + body


def mpub_body(*bodies: bytes) -> bytes:
    """The inner body of an MPUB."""
    return struct.pack(">i", len(bodies)) + b"".join(with_length(body) for body in bodies)


def open_socket(address: Address) -> socket.socket:
    """A connected socket: TCP for a pair, unix for a path."""
    if isinstance(address, tuple):
        return socket.create_connection(address, timeout=PATIENCE_SECONDS)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(PATIENCE_SECONDS)
    sock.connect(address)
    return sock


class Conn:
    """One connection: commands out, frames in. Messages that arrive while a reply is awaited are kept in order."""

    def __init__(self, address: Address, *, magic: bytes = b"  V2") -> None:
        self.sock: socket.socket | ssl.SSLSocket = open_socket(address)
        self.raw = bytearray()  # every byte the server sent, before decompression
        self.answer_heartbeats = True
        self.heartbeats: list[float] = []
        self._plain = bytearray()
        self._codec: Codec | None = None
        self._messages: deque[Message] = deque()
        if magic:
            self.send(magic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection without a word."""
        self.sock.close()

    # ---- bytes

    def send(self, data: bytes) -> None:
        """Send plain bytes through what was negotiated."""
        self.sock.sendall(self._codec.encode(data) if self._codec else data)

    def command(self, line: str | bytes, body: bytes | None = None) -> None:
        """Send a command line, and its body with a length in front of it."""
        text = line.encode() if isinstance(line, str) else line
        self.send(text + b"\n" + (b"" if body is None else with_length(body)))

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Take the TLS handshake, then the OK inside it."""
        self.sock = context.wrap_socket(self.sock, server_hostname="localhost")
        self.ok()

    def start_codec(self, codec: Codec) -> None:
        """From here on both directions are compressed; take the OK inside."""
        early = bytes(self._plain)  # the server does not wait between its answer and its first compressed byte
        self._codec = codec
        self.raw = bytearray(early)
        self._plain = bytearray(codec.decode(early))
        self.ok()

    def _receive(self, until: float) -> None:
        wait = until - time.monotonic()
        if wait <= 0:
            raise TimeoutError("nothing arrived in time")
        self.sock.settimeout(wait)
        try:
            data = self.sock.recv(65536)
        except (ConnectionResetError, ssl.SSLEOFError) as error:
            raise ClosedError(str(error)) from error
        if not data:
            raise ClosedError("end of stream")
        self.raw += data
        self._plain += self._codec.decode(data) if self._codec else data

    def read_raw(self, size: int, patience: float = PATIENCE_SECONDS) -> bytes:
        """Exactly `size` plain bytes, frames or not."""
        until = time.monotonic() + patience
        while len(self._plain) < size:
            self._receive(until)
        data = bytes(self._plain[:size])
        del self._plain[:size]
        return data

    # ---- frames

    def frame(self, patience: float = PATIENCE_SECONDS) -> Frame:
        """The next frame of any kind, heartbeats included."""
        until = time.monotonic() + patience
        while len(self._plain) < 4 or len(self._plain) < 4 + struct.unpack_from(">i", self._plain)[0]:
            self._receive(until)
        size, kind = struct.unpack_from(">ii", self._plain)
        data = bytes(self._plain[8 : 4 + size])
        del self._plain[: 4 + size]
        return Frame(kind, data, time.monotonic())

    def _next(self, until: float) -> Frame:
        """The next frame that is no heartbeat."""
        while True:
            frame = self.frame(until - time.monotonic())
            if frame.data != HEARTBEAT or frame.kind != RESPONSE:
                return frame
            self.heartbeats.append(frame.arrived)
            if self.answer_heartbeats:
                self.send(b"NOP\n")

    def heartbeat(self) -> None:
        """Wait for the next frame, a heartbeat, and answer it."""
        frame = self.frame()
        assert (frame.kind, frame.data) == (RESPONSE, HEARTBEAT), frame
        self.heartbeats.append(frame.arrived)
        self.send(b"NOP\n")

    def reply(self) -> Frame:
        """The next response or error."""
        until = time.monotonic() + PATIENCE_SECONDS
        while (frame := self._next(until)).kind == MESSAGE:
            self._messages.append(parse_message(frame))
        return frame

    def ok(self) -> None:
        """The next reply is OK."""
        frame = self.reply()
        assert (frame.kind, frame.data) == (RESPONSE, b"OK"), frame

    def error(self) -> str:
        """The text of the next reply, which is an error."""
        frame = self.reply()
        assert frame.kind == ERROR, frame
        return frame.data.decode()

    def fatal(self) -> str:
        """The text of the next reply, an error after which the server closes."""
        text = self.error()
        self.closed()
        return text

    def closed(self) -> None:
        """The server closes, and says nothing more but heartbeats and messages on their way."""
        until = time.monotonic() + PATIENCE_SECONDS
        try:
            while True:
                frame = self.frame(until - time.monotonic())
                assert frame.kind == MESSAGE or frame.data == HEARTBEAT, frame
        except ClosedError:
            return

    def message(self, patience: float = PATIENCE_SECONDS) -> Message:
        """The next message; any reply before it is a failure."""
        if self._messages:
            return self._messages.popleft()
        frame = self._next(time.monotonic() + patience)
        assert frame.kind == MESSAGE, frame
        return parse_message(frame)

    def messages(self, count: int) -> list[Message]:
        """The next messages."""
        return [self.message() for _ in range(count)]

    def round_trip(self) -> None:
        """All that was sent before has been handled, and no message was overlooked.

        An unknown id is the only question that any subscriber may ask at any time.
        """
        self.command("FIN ffffffffffffffff")
        assert self.error() == "E_FIN_FAILED FIN ffffffffffffffff failed ID not in flight"

    @property
    def held(self) -> list[Message]:
        """Messages that arrived while a reply was awaited."""
        return list(self._messages)

    # ---- commands

    def identify(self, **fields: Any) -> dict[str, Any]:
        """Negotiate; the upgrade itself is left to the caller."""
        self.command("IDENTIFY", json.dumps({"feature_negotiation": True} | fields).encode())
        frame = self.reply()
        assert frame.kind == RESPONSE, frame
        answer: dict[str, Any] = json.loads(frame.data)
        return answer

    def publish(self, topic: str, *bodies: bytes) -> None:
        """PUB one after the other, each answered."""
        for body in bodies:
            self.command(f"PUB {topic}", body)
            self.ok()

    def mpub(self, topic: str, *bodies: bytes) -> None:
        """MPUB, answered."""
        self.command(f"MPUB {topic}", mpub_body(*bodies))
        self.ok()

    def subscribe(self, topic: str, channel: str, ready: int = 0) -> None:
        """SUB, answered, and RDY unless it is 0."""
        self.command(f"SUB {topic} {channel}")
        self.ok()
        if ready:
            self.ready(ready)

    def ready(self, count: int) -> None:
        """RDY."""
        self.command(f"RDY {count}")

    def finish(self, *messages: Message) -> None:
        """FIN each."""
        self.send(b"".join(b"FIN " + message.id + b"\n" for message in messages))

    def requeue(self, message: Message, delay_ms: int) -> None:
        """REQ."""
        self.command(b"REQ " + message.id + b" %d" % delay_ms)

    def touch(self, message: Message) -> None:
        """TOUCH."""
        self.command(b"TOUCH " + message.id)


def parse_message(frame: Frame) -> Message:
    """A message frame as a value."""
    timestamp_ns, attempts = struct.unpack_from(">qH", frame.data)
    return Message(timestamp_ns, attempts, frame.data[10:26], frame.data[26:], frame.arrived)


def wait_until(what: Callable[[], Answer], patience: float = PATIENCE_SECONDS) -> Answer:
    """Ask until the answer is true, and return it."""
    until = time.monotonic() + patience
    while not (answer := what()):
        assert time.monotonic() < until, f"still {answer!r} after {patience} s"
        time.sleep(0.01)
    return answer
