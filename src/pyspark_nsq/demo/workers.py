"""What goes on beside the query, each in a thread of its own: somebody publishes events, somebody reads results."""

import threading
import time
from typing import Final

from pyspark_nsq.cli.reading import Reader
from pyspark_nsq.connector.options import parse_source_options
from pyspark_nsq.demo.books import Books
from pyspark_nsq.demo.query import EVENTS, RESULTS
from pyspark_nsq.demo.shop import Shop
from pyspark_nsq.testing import LocalNsq

_PORTIONS_A_SECOND: Final = 20
_WAIT_S: Final = 0.2


class Worker(threading.Thread):
    """Runs until it is told to stop; what went wrong meanwhile is raised by ``check`` and ``stop``."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.stopping = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self._error = error

    def work(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self.stopping.set()
        self.join()
        self.check()


class Publisher(Worker):
    """Publishes the shop's events at a steady rate."""

    def __init__(self, nsq: LocalNsq, shop: Shop, rate: int) -> None:
        super().__init__("publisher")
        self._nsq = nsq
        self._shop = shop
        self._rate = rate
        self.published = 0

    def work(self) -> None:
        start = time.monotonic()
        while not self.stopping.wait(1 / _PORTIONS_A_SECOND):
            due = int((time.monotonic() - start) * self._rate) - self.published
            # After a pause it goes on, and does not make up for what was missed all at once.
            self.published += self._nsq.publish(EVENTS, self._shop.events(min(due, self._rate), time.time()))


class ResultReader(Worker):
    """Reads the query's results as any client of NSQ could."""

    def __init__(self, nsq: LocalNsq, channel: str) -> None:
        super().__init__("results")
        self._options = parse_source_options(
            {"lookupdHttpAddresses": nsq.lookupd_http_address, "topic": RESULTS, "channel": channel}
        )
        self._lock = threading.Lock()
        self._books = Books()

    def work(self) -> None:
        with Reader(self._options) as reader:
            while not self.stopping.is_set():
                received = reader.receive(_WAIT_S)
                with self._lock:
                    for each in received:
                        self._books.enter(each.message.body)
                reader.finish(received)

    def books(self) -> Books:
        """As they are now."""
        copy = Books()
        with self._lock:
            copy.cells = dict(self._books.cells)
        return copy
