"""The sockets of publishing: sends what ``Publishing`` assigns and tells it what came of it."""

import logging
import random
import select
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from pyspark_nsq.connector.discovery import Directory, PollPlan
from pyspark_nsq.connector.errors import ConnectError, NsqError
from pyspark_nsq.connector.options import DiscoveryOptions, RetryOptions, SinkOptions
from pyspark_nsq.connector.pool import Pool, PublishConnection
from pyspark_nsq.connector.publishing import NodeHealth, Publishing, Request
from pyspark_nsq.connector.settings import Address, ConnectionSettings

log = logging.getLogger(__name__)

# Poll again at least so often, so that a changed clock or a lost wake-up never means to wait for ever.
_WAIT_S_MAX: Final = 1.0
# What lies in the kernel after a pause is taken in so many pieces at most: more than its buffers hold.
_PIECES_MAX: Final = 256


class NodeFinder:
    """The nsqds to publish to, asked for again when it is time.

    Who knows some does not wait for news of them, unless they are old: a lookupd that hangs costs its whole time-out.
    """

    def __init__(self, options: DiscoveryOptions, retry: RetryOptions) -> None:
        self._directory = Directory(options)
        self._plan = PollPlan(options, retry.delay_s, random.Random())
        self._stale_s = options.poll_interval_s
        self._nodes: tuple[Address, ...] = ()
        # Held by whoever asks.
        self._asking = threading.Lock()

    @property
    def failures(self) -> Sequence[NsqError]:
        """Why lookupds did not answer, of those that did not."""
        return self._directory.failures

    def nodes(self, again: bool = False) -> tuple[Address, ...]:
        """In an order that is the same for all tasks. ``again``: what is known was not enough."""
        late_s = time.monotonic() - self._plan.due_s
        if again or late_s >= self._stale_s:
            self._asking.acquire()
            self._ask()
        elif late_s >= 0 and self._asking.acquire(blocking=False):
            threading.Thread(target=self._ask, daemon=True, name="nsq-nodes").start()
        return self._nodes

    def doubt(self) -> None:
        """One of them has failed: lookupds may know of another."""
        self._plan.doubted()

    def _ask(self) -> None:
        try:
            self._nodes = tuple(sorted(nsqd.tcp for nsqd in self._directory.nodes()))
            self._plan.polled(time.monotonic(), self._directory.reached)
        finally:
            self._asking.release()


class Known(NamedTuple):
    """What is known of the nsqds by those who publish with the same options."""

    finder: NodeFinder
    health: NodeHealth


class Shared:
    """What all tasks of a Python worker have in common."""

    def __init__(self) -> None:
        self.pool = Pool()
        self._known: dict[tuple[DiscoveryOptions, ConnectionSettings, RetryOptions], Known] = {}

    def known(self, options: SinkOptions) -> Known:
        discovery, retry = options.discovery, options.retry
        # An nsqd that refuses one secret, or one certificate, is not to be left out by all.
        key = (discovery, options.connection, retry)
        return self._known.get(key) or self._known.setdefault(
            key, Known(NodeFinder(discovery, retry), NodeHealth(retry))
        )


SHARED: Final = Shared()


class Producer:
    """Publishes for one task. Nothing counts as published before ``finish`` has returned.

    ``turn`` says which nsqd comes first: tasks with different turns spread over the nsqds.
    """

    def __init__(self, options: SinkOptions, turn: int, shared: Shared = SHARED) -> None:
        self._options = options
        self._turn = turn
        self._pool = shared.pool
        self._finder, health = shared.known(options)
        self._nodes: Sequence[Address] = ()
        self._has_failed = False
        self._connections: dict[Address, PublishConnection] = {}
        self.books = Publishing((), health, options)

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
        """Those that were known when the first rows came, until something fails: then it counts what lookupds say."""
        if not self._nodes or self._has_failed:
            self._use(self._finder.nodes())
        if self.books.lacks_nodes() and (self.books.next_try_s() or 0.0) <= now_s:
            self._use(self._finder.nodes(again=True))
            if self.books.lacks_nodes():
                self.books.lacked_nodes(time.monotonic(), self._finder.failures)

    def _use(self, nodes: Sequence[Address]) -> None:
        first = self._turn % len(nodes) if nodes else 0
        self._nodes = nodes
        self.books.use_nodes([*nodes[first:], *nodes[:first]])

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
        self._has_failed = True
        self._finder.doubt()
        self.books.failed(address, error, time.monotonic(), was_connected=was_connected)
        log.warning("%s; what it had not acknowledged goes elsewhere", error)
