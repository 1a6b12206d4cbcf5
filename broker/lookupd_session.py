"""One nsqd's connection to nsqlookupd: bytes in, bytes out, no socket and no clock.

    session = LookupdSession("10.0.0.7:51234", registry, lambda: answer_to_identify, log)
    socket.sendall(session.receive(data, now_ns))      # until session.closing
    socket.sendall(session.receive_eof(now_ns))        # when the peer has finished
    session.end()                                      # whatever happened

The protocol: four bytes of magic, then lines of words; IDENTIFY is followed by a counted JSON body. An answer is a
size and the bytes, without a frame type. Every error is answered and ends the connection.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark_nsq.broker import json_go
from pyspark_nsq.broker.durations import format_duration
from pyspark_nsq.broker.logs import Logger
from pyspark_nsq.broker.lookupd_registry import Peer, Registry
from pyspark_nsq.proto.names import is_valid_name

MAGIC = b"  V1"
LINE_BYTES_MAX = 16 * 1024
"""nsqd's own limit. The longest line with a meaning, REGISTER with two names, has 140 bytes."""
BODY_BYTES_MAX = 64 * 1024
"""IDENTIFY bodies have some 200 bytes; the longest host name, twice, and a generous version still fit many times."""

_SIZE_BYTES = 4


class _FatalError(Exception):
    """Answered with its text; then the connection ends."""


@dataclass
class _Identity:
    """What nsqd says of itself in IDENTIFY."""

    broadcast_address: str = ""
    hostname: str = ""
    http_port: int = 0
    tcp_port: int = 0
    version: str = ""
    topology_zone: str = ""
    topology_region: str = ""

    @property
    def is_complete(self) -> bool:
        """Without these nobody could be sent to the peer."""
        return bool(self.broadcast_address and self.tcp_port and self.http_port and self.version)


class LookupdSession:
    """``closing`` says that the answers so far are the last; ``peer`` is set once the nsqd has identified itself."""

    def __init__(self, peer_id: str, registry: Registry, identity: Callable[[], bytes], log: Logger) -> None:
        self.closing = False
        self.peer: Peer | None = None
        self.greeted = False
        self._id = peer_id
        self._registry = registry
        self._identity = identity
        self._log = log
        self._buffer = bytearray()
        self._in_identify = False
        self._now_ns = 0

    def receive(self, data: bytes, now_ns: int) -> bytes:
        """The answers to all commands that these bytes complete."""
        self._now_ns = now_ns
        self._buffer += data
        answers: list[bytes] = []
        try:
            while not self.closing and self._step(answers):
                pass
        except _FatalError as error:
            self._fail(str(error), answers)
        return b"".join(answers)

    def receive_eof(self, now_ns: int) -> bytes:
        """The peer sends no more. Half a line is dropped, half an IDENTIFY is an error."""
        self._now_ns = now_ns
        answers: list[bytes] = []
        if self._in_identify and not self.closing:
            part = "body" if len(self._buffer) >= _SIZE_BYTES else "body size"
            self._fail(f"E_BAD_BODY IDENTIFY failed to read {part}", answers)
        elif not self.greeted and not self.closing:
            self._log.error("failed to read protocol version - EOF")
        self.closing = True
        return b"".join(answers)

    def end(self) -> None:
        """The connection is gone: the peer produces nothing any more."""
        self.closing = True
        if self.peer is not None:
            for topic, channel in self._registry.disconnect(self.peer):
                self._log_change("UNREGISTER", topic, channel)
            self.peer = None

    # Input

    def _step(self, answers: list[bytes]) -> bool:
        """Take the next thing from the buffer; False if it is incomplete."""
        if not self.greeted:
            return self._take_magic()
        if self._in_identify:
            body = self._take_body()
            if body is None:
                return False
            self._in_identify = False
            answers.append(_framed(self._identify(body)))
            return True
        end = self._buffer.find(b"\n", 0, LINE_BYTES_MAX)
        if end < 0:
            if len(self._buffer) >= LINE_BYTES_MAX:
                self._log.error("[%s] - a line of more than %d bytes", self._id, LINE_BYTES_MAX)
                self.closing = True
            return False
        line = bytes(self._buffer[:end]).strip().decode("utf-8", "surrogateescape")
        del self._buffer[: end + 1]
        reply = self._execute(line.split(" "))
        if reply:
            answers.append(_framed(reply))
        return True

    def _take_magic(self) -> bool:
        if len(self._buffer) < len(MAGIC):
            return False
        magic = bytes(self._buffer[: len(MAGIC)])
        del self._buffer[: len(MAGIC)]
        self._log.info("CLIENT(%s): desired protocol magic %r", self._id, magic)
        if magic != MAGIC:
            raise _FatalError("E_BAD_PROTOCOL")
        self.greeted = True
        return True

    def _take_body(self) -> bytes | None:
        if len(self._buffer) < _SIZE_BYTES:
            return None
        size = int.from_bytes(self._buffer[:_SIZE_BYTES], "big", signed=True)
        if size < 0:
            raise _FatalError(f"E_BAD_BODY IDENTIFY invalid body size {size}")
        if size > BODY_BYTES_MAX:
            raise _FatalError(f"E_BAD_BODY IDENTIFY body too big {size} > {BODY_BYTES_MAX}")
        if len(self._buffer) < _SIZE_BYTES + size:
            return None
        body = bytes(self._buffer[_SIZE_BYTES : _SIZE_BYTES + size])
        del self._buffer[: _SIZE_BYTES + size]
        return body

    # Commands

    def _execute(self, words: list[str]) -> bytes:
        command = words[0]
        if command == "PING":
            return self._ping()
        if command == "IDENTIFY":
            if self.peer is not None:
                raise _FatalError("E_INVALID cannot IDENTIFY again")
            self._in_identify = True
            return b""
        if command not in ("REGISTER", "UNREGISTER"):
            raise _FatalError(f"E_INVALID invalid command {command}")
        if self.peer is None:
            raise _FatalError("E_INVALID client must IDENTIFY")
        change = self._registry.register if command == "REGISTER" else self._registry.unregister
        for topic, channel in change(self.peer, *_topic_and_channel(words)):
            self._log_change(command, topic, channel)
        return b"OK"

    def _ping(self) -> bytes:
        if self.peer is not None:
            since = format_duration(self._now_ns - self.peer.last_update_ns)
            self._log.info("CLIENT(%s): pinged (last ping %s)", self._id, since)
            self.peer.last_update_ns = self._now_ns
        return b"OK"

    def _identify(self, body: bytes) -> bytes:
        try:
            said = json_go.decode(_Identity, body)
        except json_go.DecodeError as error:
            self._log.error("[%s] - %s", self._id, error)
            raise _FatalError("E_BAD_BODY IDENTIFY failed to decode JSON body") from None
        if not said.is_complete:
            raise _FatalError("E_BAD_BODY IDENTIFY missing fields")
        self.peer = Peer(
            self._id,
            said.hostname,
            said.broadcast_address,
            said.tcp_port,
            said.http_port,
            said.version,
            said.topology_zone,
            said.topology_region,
            self._now_ns,
        )
        self._registry.connect(self.peer)
        self._log.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            self._id,
            said.broadcast_address,
            said.tcp_port,
            said.http_port,
            said.version,
        )
        return self._identity()

    # Output

    def _fail(self, text: str, answers: list[bytes]) -> None:
        self._log.error("[%s] - %s", self._id, text)
        answers.append(_framed(text.encode("utf-8", "surrogateescape")))
        self._buffer.clear()
        self.closing = True

    def _log_change(self, command: str, topic: str, channel: str) -> None:
        category = "channel" if channel else "topic"
        self._log.info("DB: client(%s) %s category:%s key:%s subkey:%s", self._id, command, category, topic, channel)


def _topic_and_channel(words: list[str]) -> tuple[str, str]:
    command, *names = words
    if not names:
        raise _FatalError(f"E_INVALID {command} insufficient number of params")
    topic, channel = names[0], names[1] if len(names) > 1 else ""
    if not is_valid_name(topic):
        raise _FatalError(f"E_BAD_TOPIC {command} topic name '{topic}' is not valid")
    if channel and not is_valid_name(channel):
        raise _FatalError(f"E_BAD_CHANNEL {command} channel name '{channel}' is not valid")
    return topic, channel


def _framed(answer: bytes) -> bytes:
    return len(answer).to_bytes(_SIZE_BYTES, "big") + answer
