"""Which connections are tried at once: few to each nsqd, and one to an nsqd that is not known to answer.

Trying blocks a thread until the time-out. Many topics on an nsqd that accepts and says nothing would take all threads,
and those who answer would have to wait. Whether it fails depends on the nsqd alone: one failure stands for all topics.
"""

from collections import Counter, deque
from typing import Final, NamedTuple

from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.settings import Address

# It may stop answering at any moment: some threads are left for others.
_AT_ONCE: Final = 4


class Attempt(NamedTuple):
    source: Source
    # Whether the source has no other connection.
    is_first: bool


class Attempts:
    def __init__(self) -> None:
        self._answering: set[Address] = set()
        self._running = Counter[Address]()
        self._waiting: dict[Address, deque[Attempt]] = {}

    def add(self, attempt: Attempt) -> list[Attempt]:
        """What to begin now: this, or nothing as long as its nsqd is being tried."""
        nsqd = attempt.source.nsqd
        self._waiting.setdefault(nsqd, deque()).append(attempt)
        return self._next(nsqd)

    def succeeded(self, nsqd: Address) -> list[Attempt]:
        """What to begin now that an attempt has ended so."""
        self._end(nsqd)
        self._answering.add(nsqd)
        return self._next(nsqd)

    def failed(self, nsqd: Address) -> list[Attempt]:
        """What has waited for an attempt, and has failed with it."""
        self._end(nsqd)
        self.doubt(nsqd)
        return list(self._waiting.pop(nsqd, ()))

    def doubt(self, nsqd: Address) -> None:
        """A connection to it has broken."""
        self._answering.discard(nsqd)

    def _end(self, nsqd: Address) -> None:
        self._running[nsqd] -= 1
        if not self._running[nsqd]:
            del self._running[nsqd]

    def _next(self, nsqd: Address) -> list[Attempt]:
        waiting = self._waiting.get(nsqd, deque())
        room = (_AT_ONCE if nsqd in self._answering else 1) - self._running[nsqd]
        begun = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        if begun:
            self._running[nsqd] += len(begun)
        if not waiting:
            self._waiting.pop(nsqd, None)
        return begun
