"""The sockets of publishing: sends what ``Publishing`` assigns and tells it what came of it."""

import logging
import random
import select
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from pyspark_nsq.connector.discovery import Directory, PollPlan
from pyspark_nsq.connector.errors import ConnectError
from pyspark_nsq.connector.options import DiscoveryOptions, RetryOptions, SinkOptions
from pyspark_nsq.connector.pool import Pool, PublishConnection
from pyspark_nsq.connector.publishing import NodeHealth, Publishing, Request
from pyspark_nsq.connector.settings import Address

log = logging.getLogger(__name__)

# Poll again at least so often, so that a changed clock or a lost wake-up never means to wait for ever.
_WAIT_S_MAX: Final = 1.0
# What lies in the kernel after a pause is taken in so many pieces at most: more than its buffers hold.
_PIECES_MAX: Final = 256


class NodeFinder:
    """The nsqds to publish to, asked for again when it is time."""

    def __init__(self, options: DiscoveryOptions, retry: RetryOptions) -> None:
        self._directory = Directory(options)
        self._plan = PollPlan(options, retry.delay_s, random.Random())
        self._nodes: tuple[Address, ...] = ()
        self._lock = threading.Lock()

    def nodes(self, again: bool = False) -> tuple[Address, ...]:
        """In an order that is the same for all tasks. ``again``: what is known was not enough."""
        with self._lock:
            if again or time.monotonic() >= self._plan.due_s:
                self._nodes = tuple(sorted(nsqd.tcp for nsqd in self._directory.nodes()))
                self._plan.polled(time.monotonic(), self._directory.reached)
            return self._nodes


class Shared:
    """What all tasks of a Python worker have in common, by the options that it depends on."""

    def __init__(self) -> None:
        self.pool = Pool()
        self._finders: dict[DiscoveryOptions, NodeFinder] = {}
        self._health: dict[RetryOptions, NodeHealth] = {}

    def finder(self, options: SinkOptions) -> NodeFinder:
        found = self._finders.get(options.discovery)
        return found or self._finders.setdefault(options.discovery, NodeFinder(options.discovery, options.retry))

    def health(self, options: SinkOptions) -> NodeHealth:
        return self._health.setdefault(options.retry, NodeHealth(options.retry))


SHARED: Final = Shared()


class Producer:
    """Publishes for one task. Nothing counts as published before ``finish`` has returned.

    ``turn`` says which nsqd comes first: tasks with different turns spread over the nsqds.
    """

    def __init__(self, options: SinkOptions, turn: int, shared: Shared = SHARED) -> None:
        self._options = options
        self._turn = turn
        self._pool = shared.pool
        self._finder = shared.finder(options)
        self._connections: dict[Address, PublishConnection] = {}
        self.books = Publishing(self._in_turn(self._finder.nodes()), shared.health(options), options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep the connections for the next task, where nothing is under way on them."""
        for address, connection in self._connections.items():
            if self.books.owes_answer(address) or connection.is_sending:
                connection.close()
            else:
                self._pool.give_back(connection, self._options.connection_idle_timeout_s)
        self._connections.clear()

    def publish(self, request: Request) -> None:
        """Returns once all of the request has left this process; it waits while too much is outstanding.

        Whoever has no rows yet calls again much later, and until then nobody sends or looks for answers.
        """
        self._catch_up()
        self.books.submit(request)
        self._assign()
        while self.books.is_waiting or self._is_leaving():
            self._wait()
            self._assign()

    def finish(self) -> None:
        """Wait for the last OK."""
        while not self.books.is_done:
            self._wait()
            self._assign()

    def _in_turn(self, nodes: Sequence[Address]) -> list[Address]:
        first = self._turn % len(nodes) if nodes else 0
        return [*nodes[first:], *nodes[:first]]

    def _catch_up(self) -> None:
        """Take what has come while nobody looked, and only then judge who is late, or gone."""
        for _ in range(_PIECES_MAX):
            if not self._exchange(0.0):
                break
        self._end_late(time.monotonic())

    def _assign(self) -> None:
        """Send what can be sent."""
        self._find_nodes(time.monotonic())
        while (job := self.books.assign(time.monotonic())) is not None:
            self._send(*job)

    def _is_leaving(self) -> bool:
        """Whether a part of a command waits here for the kernel to take it."""
        return any(connection.is_sending for connection in self._connections.values())

    def _wait(self) -> None:
        """Wait for something to happen, or for the time to do something."""
        self._exchange(self._wait_s(time.monotonic()))
        self._end_late(time.monotonic())

    def _find_nodes(self, now_s: float) -> None:
        if self.books.lacks_nodes() and (self.books.next_try_s() or 0.0) <= now_s:
            self.books.use_nodes(self._in_turn(self._finder.nodes(again=True)))
            if self.books.lacks_nodes():
                self.books.lacked_nodes(time.monotonic())

    def _wait_s(self, now_s: float) -> float:
        if any(connection.has_news for connection in self._connections.values()):
            return 0.0
        events = list(self.books.deadlines_s().values())
        if (next_try_s := self.books.next_try_s()) is not None:
            events.append(next_try_s)
        return min(max(0.0, min(events, default=now_s) - now_s), _WAIT_S_MAX)

    def _send(self, address: Address, request: Request) -> None:
        connection = self._connections.get(address)
        if connection is None:
            try:
                connection = self._pool.take(address, self._options.connection)
            except ConnectError as error:
                self._failed(address, error, was_connected=False)
                return
            self._connections[address] = connection
        connection.send(request.pieces)

    def _exchange(self, wait_s: float) -> bool:
        """Send and receive what is possible after at most this time; whether anything has come."""
        poll = select.poll()
        by_fd = {connection.fileno(): connection for connection in self._connections.values()}
        for fd, connection in by_fd.items():
            poll.register(fd, select.POLLIN | (select.POLLOUT if connection.is_sending else 0))
        # An entry too early is harmless, one too late would wait for nothing: round up to a millisecond.
        ready = dict(poll.poll(-(-wait_s * 1000 // 1)))
        has_come = False
        for fd, connection in by_fd.items():
            events = ready.get(fd, 0)
            if events & select.POLLOUT:
                connection.flush()
            if connection.has_news or events & ~select.POLLOUT:
                self._receive(connection)
                has_come = True
        return has_come

    def _receive(self, connection: PublishConnection) -> None:
        address = connection.address
        try:
            for _ in range(connection.receive()):
                if not self.books.owes_answer(address):
                    raise ConnectError(address, "does not behave like nsqd: it answered what nobody asked")
                self.books.answered(address, time.monotonic())
            connection.flush()
            if connection.is_sending and not self.books.owes_answer(address):
                raise ConnectError(address, "does not behave like nsqd: it answered what it had not read")
        except ConnectError as error:
            self._failed(address, error)

    def _end_late(self, now_s: float) -> None:
        for address, deadline_s in self.books.deadlines_s().items():
            if deadline_s <= now_s:
                timeout_s = self._options.request_timeout_s
                self._failed(
                    address, ConnectError(address, f"no answer within {timeout_s:g} s (option requestTimeout)")
                )

    def _failed(self, address: Address, error: ConnectError, was_connected: bool = True) -> None:
        if connection := self._connections.pop(address, None):
            connection.close()
        if was_connected and not self.books.owes_answer(address):
            # nsqd asks an idle client whether it lives, and nobody answers while rows are awaited.
            log.info("%s; nothing was outstanding, it is connected again when it is needed", error)
            return
        self.books.failed(address, error, time.monotonic(), was_connected=was_connected)
        log.warning("%s; what it had not acknowledged goes elsewhere", error)
        self.books.use_nodes(self._in_turn(self._finder.nodes()))
