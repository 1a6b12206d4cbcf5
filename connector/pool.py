"""Connections to publish on, which outlive the task that made them: a Python worker runs many tasks."""

import select
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_nsq.connector.client import NsqdStream, connect
from pyspark_nsq.connector.errors import ConnectError
from pyspark_nsq.connector.handshake import ANSWER_SIZE_MAX, refused
from pyspark_nsq.connector.settings import Address, ConnectionSettings
from pyspark_nsq.proto.errors import WireError
from pyspark_nsq.proto.frames import ERROR, HEARTBEAT, OK, RESPONSE, Frame, check_heartbeats, split_frames

_READ_SIZE: Final = 64 * 1024
# More than this waiting on an idle connection is no heartbeat.
_IDLE_READS_MAX: Final = 4


class PublishConnection:
    """Commands out, OKs in, never waiting. Heartbeats are answered on the way."""

    def __init__(self, address: Address, settings: ConnectionSettings, stream: NsqdStream) -> None:
        self.address = address
        self.settings = settings
        self._stream = stream
        self._received = b""
        # A failure that was seen before all that came earlier had been handed out.
        self._failure: ConnectError | None = None
        stream.settimeout(0)

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def is_sending(self) -> bool:
        """Whether bytes wait for the socket to take them."""
        return self._failure is None and self._stream.unsent_size > 0

    @property
    def has_news(self) -> bool:
        """Whether ``receive`` has something to say that poll() cannot see."""
        try:
            return self._failure is not None or self._stream.pending
        except WireError as error:
            self._failure = self._broken(error)
            return True

    def send(self, pieces: Sequence[bytes | memoryview]) -> None:
        self._stream.queue(*pieces)
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes. That it takes none ever again is told by ``receive``, after all OKs."""
        try:
            self._stream.flush()
        except OSError as error:
            self._failure = self._broken(error)

    def receive(self) -> int:
        """How many OKs have come; ``ConnectError`` once nothing else can follow."""
        try:
            piece = self._stream.read(_READ_SIZE)
        except BlockingIOError:
            if self._failure:
                raise self._failure from None
            return 0
        except (OSError, WireError) as error:
            raise self._failure or self._broken(error) from error
        if not piece:
            raise self._failure or ConnectError(self.address, "it closed the connection")
        return self._take(piece)

    def _take(self, piece: bytes) -> int:
        try:
            frames, used = split_frames(self._received + piece, ANSWER_SIZE_MAX)
            check_heartbeats(frames.count(Frame(RESPONSE, HEARTBEAT)))
        except WireError as error:
            raise self._broken(error) from error
        self._received = (self._received + piece)[used:]
        oks = 0
        for frame in frames:
            if frame == (RESPONSE, HEARTBEAT):
                self._stream.answer_heartbeat()
            elif frame == (RESPONSE, OK):
                oks += 1
            else:
                self._failure = self._explain(frame)
                break
        return oks

    def _explain(self, frame: Frame) -> ConnectError:
        if frame.type == ERROR:
            return refused(self.address, frame.data)
        return ConnectError(self.address, f"does not behave like nsqd: it sent {frame.data[:60]!r} to a producer")

    def _broken(self, error: Exception) -> ConnectError:
        return ConnectError(self.address, f"the connection broke ({error})")

    def is_usable(self) -> bool:
        """Whether a connection that lay idle is still good; what nsqd asked meanwhile is answered."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        try:
            for _ in range(_IDLE_READS_MAX):
                if not self.has_news and not poll.poll(0):
                    self.flush()
                    return self._failure is None
                if self.receive():
                    return False
        except ConnectError:
            pass
        return False

    def close(self) -> None:
        self._stream.close()


_Key = tuple[Address, ConnectionSettings]


@dataclass
class _Idle:
    connection: PublishConnection
    expires_s: float


class Pool:
    """Idle connections by address and settings. Any thread may use it."""

    def __init__(self) -> None:
        self._idle: dict[_Key, list[_Idle]] = {}
        self._changed = threading.Condition()
        self._closer: threading.Thread | None = None

    def take(self, address: Address, settings: ConnectionSettings) -> PublishConnection:
        """A connection that works, as far as can be known."""
        while idle := self._pop(address, settings):
            if idle.is_usable():
                return idle
            idle.close()
        return PublishConnection(address, settings, connect(address, settings))

    def give_back(self, connection: PublishConnection, idle_timeout_s: float) -> None:
        """Nothing may be outstanding on it."""
        with self._changed:
            idle = _Idle(connection, time.monotonic() + idle_timeout_s)
            self._idle.setdefault((connection.address, connection.settings), []).append(idle)
            if self._closer is None:
                self._closer = threading.Thread(target=self._close_expired, daemon=True, name="nsq-pool")
                self._closer.start()
            self._changed.notify()

    def _pop(self, address: Address, settings: ConnectionSettings) -> PublishConnection | None:
        with self._changed:
            idle = self._idle.get((address, settings))
            return idle.pop().connection if idle else None

    def _close_expired(self) -> None:
        """Runs as long as there are connections, in a thread of its own."""
        with self._changed:
            while entries := [entry for group in self._idle.values() for entry in group]:
                now_s = time.monotonic()
                for entry in entries:
                    if entry.expires_s <= now_s:
                        self._idle[entry.connection.address, entry.connection.settings].remove(entry)
                        entry.connection.close()
                self._changed.wait(max(0.01, min(entry.expires_s for entry in entries) - now_s))
            self._idle.clear()
            self._closer = None
