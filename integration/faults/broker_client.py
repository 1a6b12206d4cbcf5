"""An NSQ client on asyncio that thousands can be made of, and that a broker may die under at any moment."""

import asyncio
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

RESPONSE, ERROR, MESSAGE = 0, 1, 2
_HEAD = Struct(">II")
_MESSAGE = Struct(">qH16s")
_BODY_AT = 8 + _MESSAGE.size


class Message(NamedTuple):
    attempts: int
    id: bytes
    body: bytes


class LostError(ConnectionError):
    """The connection ended before the answer came."""


class Link(asyncio.Protocol):
    """One connection. Requests are answered in order; messages and errors that nobody waits for go to handlers.

    What a handler raises ends the connection, and comes out of whatever is asked of it from then on.
    """

    def __init__(
        self,
        on_messages: Callable[["Link", list[Message]], None] | None = None,
        on_error: Callable[["Link", bytes], None] | None = None,
    ) -> None:
        self.closed = asyncio.Event()
        self._failure: Exception | None = None
        self._on_messages = on_messages
        self._on_error = on_error
        self._input = bytearray()
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(b"  V2")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        # The broker may end it, and asyncio tells nobody but us what was raised in data_received().
        if not isinstance(exc, OSError):
            self._failure = exc
        self.closed.set()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(self._failure or LostError("the connection is gone"))
                waiting.exception()  # nobody needs to have waited for it
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        self._input += data
        messages: list[Message] = []
        at, end = 0, len(self._input)
        while end - at >= _HEAD.size:
            size, kind = _HEAD.unpack_from(self._input, at)
            if end - at < 4 + size:
                break
            if kind == MESSAGE:
                _, attempts, message_id = _MESSAGE.unpack_from(self._input, at + _HEAD.size)
                messages.append(Message(attempts, message_id, bytes(self._input[at + _BODY_AT : at + 4 + size])))
            else:
                self._hear(kind, bytes(self._input[at + _HEAD.size : at + 4 + size]))
            at += 4 + size
        del self._input[:at]
        if messages and self._on_messages is not None:
            self._on_messages(self, messages)

    def _hear(self, kind: int, text: bytes) -> None:
        if text == b"_heartbeat_":
            self.send(b"NOP\n")
        elif kind == ERROR and self._on_error is not None:
            self._on_error(self, text)
        elif self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(text)

    def send(self, data: bytes) -> None:
        """Say something that has no answer. Into a dead connection it goes unheard."""
        if self._transport is not None:
            self._transport.write(data)

    def ask(self, data: bytes, answers: int = 1) -> "list[asyncio.Future[bytes]]":
        """Say something that has so many answers."""
        self.check()
        if self._transport is None:
            raise LostError("the connection is gone")
        futures = [asyncio.get_running_loop().create_future() for _ in range(answers)]
        self._waiting.extend(futures)
        self._transport.write(data)
        return futures

    async def request(self, data: bytes) -> bytes:
        return await self.ask(data)[0]

    def stop_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def read_on(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def check(self) -> None:
        """Raise what a handler has raised."""
        if self._failure is not None:
            raise self._failure

    async def ended(self) -> None:
        """Until the connection has ended."""
        try:
            await self.closed.wait()
        finally:
            self.check()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.check()


async def connect(
    address: tuple[str, int],
    on_messages: Callable[[Link, list[Message]], None] | None = None,
    on_error: Callable[[Link, bytes], None] | None = None,
    source: str | None = None,
) -> Link:
    """A new connection; ``source`` is a loopback address of its own, where ports run out."""
    loop = asyncio.get_running_loop()
    local = (source, 0) if source else None
    _, link = await loop.create_connection(lambda: Link(on_messages, on_error), *address, local_addr=local)
    return link
