"""The receiver's one thread: sockets, time and other threads' calls brought to the core, its output to nsqd."""

import logging
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from pyspark_nsq.connector.attempts import Attempt, Attempts
from pyspark_nsq.connector.client import NsqdStream, connect
from pyspark_nsq.connector.connection import Connection, Source
from pyspark_nsq.connector.errors import NsqError, RefusedError, SecurityError
from pyspark_nsq.connector.receiver_core import TICK_S, ReceiverCore
from pyspark_nsq.connector.settings import ConnectionSettings
from pyspark_nsq.proto.errors import WireError

log = logging.getLogger(__name__)

# Decoding costs least a message in large pieces.
_READ_SIZE: Final = 1024 * 1024
# A round in which something came is followed by so long a pause, so that more comes at once in the next.
_PAUSE_S: Final = 0.005
_CONNECT_THREADS: Final = 8
# How long nsqd has to answer CLS, and then to read the last commands.
_CLOSE_S: Final = 2.0
# So many bytes may wait for an nsqd that reads nothing: the FINs of three million messages. With one that reads, but
# more slowly than it makes us answer, nothing more is received meanwhile.
_UNSENT_MAX: Final = 64 * 1024 * 1024
# nsqd sends heartbeats; after so many intervals without a whole frame the connection is dead, whatever TCP says.
_SILENT_INTERVALS: Final = 2.5

# Larger pieces than nsqd's default, which it allows unless it is told otherwise.
_OUTPUT_BUFFER_SIZE: Final = 64 * 1024
# How long nsqd keeps messages that do not fill a piece. In quiet times a source has one connection, which is to be
# quick; those that it gets when it is busy keep to nsqd's default, their pieces are worth waiting for.
_QUICK_MS: Final = 25

_Result = TypeVar("_Result")


class Observer(Protocol):
    def changed(self, core: ReceiverCore, now: float) -> None:
        """Called in the loop's thread after each round."""


class _Link:
    """A connection and the stream it goes over."""

    __slots__ = ("connection", "heard_at", "stream", "writes")

    def __init__(self, connection: Connection, stream: NsqdStream, now: float) -> None:
        self.connection = connection
        self.stream = stream
        self.heard_at = now
        self.writes = False


class ReceiverLoop:
    def __init__(
        self, core: ReceiverCore, settings: ConnectionSettings, lifeline_fd: int | None, observer: Observer
    ) -> None:
        self._core = core
        self._settings = settings
        self._observer = observer
        self._selector = selectors.DefaultSelector()
        self._buffer = memoryview(bytearray(_READ_SIZE))
        self._links: dict[Connection, _Link] = {}
        # Links with bytes that the selector cannot see, as TLS and decompression hold them.
        self._pending: set[_Link] = set()
        # Links for whose bytes there is no room.
        self._held: set[_Link] = set()
        self._calls: deque[tuple[Callable[[float], Any], Future[Any]]] = deque()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._attempts = Attempts()
        self._connector = ThreadPoolExecutor(_CONNECT_THREADS, "connect")
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, self._woken)
        if lifeline_fd is not None:
            self._selector.register(lifeline_fd, selectors.EVENT_READ, partial(self._lifeline_ended, lifeline_fd))
        self._stopped = False
        # No command follows those that wait to be sent.
        self._ending = False
        self._closed = False

    # For other threads, and for signal handlers.

    def call(self, function: Callable[[float], _Result]) -> "Future[_Result]":
        """Have a function called with the time in the loop's thread, which alone may touch the core."""
        future: Future[_Result] = Future()
        self._calls.append((function, future))
        with suppress(OSError):  # It will wake up anyway, or is closed.
            self._wake_sender.send(b"\0")
        if self._closed:
            self._refuse_calls()
        return future

    def stop(self) -> None:
        """Give back all that is unfinished, and let ``run`` return."""
        self.call(lambda _now: self._stop())

    def _stop(self) -> None:
        self._stopped = True

    def _woken(self) -> None:
        self._wake_receiver.recv(65536)

    def _lifeline_ended(self, lifeline_fd: int) -> None:
        """Its other end is the coordinator's: it is gone, or wants this process to go."""
        if not os.read(lifeline_fd, 65536):
            self._selector.unregister(lifeline_fd)
            self._stop()

    # The loop.

    def run(self) -> None:
        """Work until stopped, and end in order."""
        while not self._stopped:
            self._round(TICK_S)
        self._core.stop(time.monotonic())
        self._close(lambda link: link.connection.closed_by_nsqd)
        self._ending = True
        self._core.requeue()
        self._send()
        self._close(lambda _link: False)
        log.info("gave back what was unfinished, and stopped")

    def close(self) -> None:
        """After ``run``, however it ended: let go of everything, where the process lives on."""
        for link in self._links.values():
            link.stream.close()
        self._connector.shutdown(wait=False, cancel_futures=True)
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()
        self._closed = True
        self._refuse_calls()

    def _refuse_calls(self) -> None:
        with suppress(IndexError):  # Others may do the same.
            while True:
                self._calls.popleft()[1].set_exception(NsqError("the receiver has ended"))

    def _close(self, is_done: Callable[[_Link], bool]) -> None:
        """Let nsqd read what was sent, until every link is closed or done, or for as long as it is worth."""
        deadline = time.monotonic() + _CLOSE_S
        while not all(map(is_done, self._links.values())) and time.monotonic() < deadline:
            self._round(0.05)

    def _round(self, timeout_s: float) -> None:
        ready = self._selector.select(0 if self._pending or self._calls else timeout_s)
        now = time.monotonic()
        # What is due comes before what came: after a long silence nsqd may have given up messages.
        self._core.tick(now)
        self._run_calls(now)
        has_read = False
        waiting, self._pending, self._held = self._pending | self._held, set(), set()
        for link in waiting:
            self._read(link, now)
        for key, mask in ready:
            if isinstance(key.data, _Link):
                if mask & selectors.EVENT_READ and key.data not in waiting:
                    has_read = True
                    self._read(key.data, now)
            else:
                key.data()
        self._open(now)
        self._send()
        self._close_silent(now)
        self._observer.changed(self._core, now)
        if has_read or self._held:
            time.sleep(_PAUSE_S)

    def _run_calls(self, now: float) -> None:
        while self._calls:
            function, future = self._calls.popleft()
            try:
                future.set_result(function(now))
            except Exception as error:
                future.set_exception(error)

    # Connections.

    def _open(self, now: float) -> None:
        for source in self._core.to_connect(now):
            is_first = not self._core.sources[source].connections
            self._begin(self._attempts.add(Attempt(source, is_first)))

    def _begin(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            self._connector.submit(self._connect, *attempt)

    def _connect(self, source: Source, is_first: bool) -> None:
        """Runs in a thread of its own: connecting and its handshake block."""
        try:
            stream = self._stream(source, is_first)
        except Exception as error:
            # Whatever it is, it must not end the receiver: nsqd may be there an hour later.
            reason = str(error) if isinstance(error, NsqError) else repr(error)
            refusal = reason if isinstance(error, SecurityError) else ""
            self.call(lambda now: self._connect_failed(source, reason, refusal, now))
            return
        stream.settimeout(0)
        self.call(lambda now: self._connected(source, stream, now))

    def _connect_failed(self, source: Source, reason: str, refusal: str, now: float) -> None:
        for waiting in self._attempts.failed(source.nsqd):
            self._core.connect_failed(waiting.source, now, refusal)
        failures = self._core.connect_failed(source, now, refusal)
        # The first time, and ever more rarely.
        if failures.bit_count() == 1:
            log.warning("%s; it has failed %d times in a row and will be tried again", reason, failures)

    def _stream(self, source: Source, is_first: bool) -> NsqdStream:
        settings = replace(
            self._settings,
            output_buffer_size=_OUTPUT_BUFFER_SIZE,
            output_buffer_timeout_ms=_QUICK_MS if is_first else None,
        )
        try:
            return connect(source.nsqd, settings)
        except RefusedError as error:
            # This nsqd was told to allow less.
            if "output buffer" not in error.text:
                raise
            return connect(source.nsqd, self._settings)

    def _connected(self, source: Source, stream: NsqdStream, now: float) -> None:
        waiting = self._attempts.succeeded(source.nsqd)
        if self._stopped:
            stream.close()
            return
        self._begin(waiting)
        connection = self._core.connected(source, stream.facts)
        link = self._links[connection] = _Link(connection, stream, now)
        self._selector.register(stream, selectors.EVENT_READ, link)
        self._pending.add(link)
        log.debug("connected to %s for topic %s", source.nsqd, source.topic)

    def _read(self, link: _Link, now: float) -> None:
        if link.connection not in self._links:
            return
        if link.stream.unsent_size > _UNSENT_MAX or not self._core.may_read(link.connection, now):
            link.heard_at = now
            self._held.add(link)
            return
        try:
            size = link.stream.read_into(self._buffer)
            if size:
                if self._core.received(link.connection, self._buffer[:size], now):
                    link.heard_at = now
                if link.stream.pending:
                    self._pending.add(link)
        except BlockingIOError:
            return
        except (OSError, NsqError, WireError) as error:
            self._lose(link, error, now)
            return
        if not size:
            self._lose(link, ConnectionError("the connection was closed by nsqd"), now)

    def _send(self) -> None:
        now = time.monotonic()
        for link in list(self._links.values()):
            try:
                if link.connection.has_output or link.writes:
                    self._flush(link)
                if self._ending and not link.stream.unsent_size:
                    _end_sending(link.stream)
            except OSError as error:
                self._lose(link, error, now)
            connection = link.connection
            if connection.closed_by_nsqd and connection.in_flight == 0 and not self._stopped:
                self._lose(link, None, now)

    def _flush(self, link: _Link) -> None:
        link.stream.queue(*link.connection.take_output(is_sending=link.stream.unsent_size > 0))
        waiting = link.stream.unsent_size
        writes = not link.stream.flush()
        if link.stream.unsent_size == waiting > _UNSENT_MAX:
            raise ConnectionError(f"it does not read: {waiting} bytes wait to be sent")
        if writes != link.writes:
            link.writes = writes
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writes else 0)
            self._selector.modify(link.stream, events, link)

    def _close_silent(self, now: float) -> None:
        silence_s = self._settings.heartbeat_interval_ms / 1000 * _SILENT_INTERVALS
        for link in [link for link in self._links.values() if now - link.heard_at > silence_s]:
            self._lose(link, ConnectionError(f"nothing whole came from it for {silence_s:g} s"), now)

    def _lose(self, link: _Link, error: Exception | None, now: float) -> None:
        del self._links[link.connection]
        self._pending.discard(link)
        self._held.discard(link)
        self._selector.unregister(link.stream)
        link.stream.close()
        if error and not self._stopped:
            source = link.connection.source
            self._attempts.doubt(source.nsqd)
            log.warning("nsqd %s, topic %s: %s; connecting again", source.nsqd, source.topic, error)
        self._core.lost_connection(link.connection, now, error)


def _end_sending(stream: NsqdStream) -> None:
    """Say that no command follows: nsqd closes when it has read all before, and our close cannot overtake them."""
    # It may have been closed by the other side already.
    with socket.socket(fileno=os.dup(stream.fileno())) as sock, suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
