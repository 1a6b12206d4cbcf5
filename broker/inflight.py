"""What one consumer has been sent and has not answered, as runs of messages.

A run is a piece of a segment. Messages of one consumer share one time-out, so runs expire in the order of delivery and
a queue holds them; only a TOUCH that hits max-msg-timeout departs from that order and goes to a heap.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Final

from pyspark_nsq.broker.message_id import ID_BYTES, PREFIX_BYTES
from pyspark_nsq.broker.segment import Segment
from pyspark_nsq.broker.shared import NEVER

MERGE_WITHIN_NS: Final = 50_000_000
"""Deliveries this close together may share one deadline, the later one (late is allowed, early is not)."""
_DEAD_RUNS_KEPT: Final = 64


class Run:
    """Messages `start` .. `stop - 1` of a segment, delivered together; some may be gone (answered) already."""

    __slots__ = ("deadline", "delivered", "extra", "gone", "left", "low", "segment", "start", "stop")

    def __init__(self, segment: Segment, start: int, count: int, extra: int, delivered: int, deadline: int) -> None:
        self.segment = segment
        self.start = start
        self.stop = start + count
        self.low = start  # all below are gone
        self.left = count
        self.extra = extra  # attempts on top of those in the segment's frames
        self.delivered = delivered
        self.deadline = deadline
        self.gone: bytearray | None = None  # a byte for each message, once they are not answered from the front on

    def present(self, index: int) -> int:
        """How many messages from `index` on are all still in flight."""
        if not self.low <= index < self.stop:
            return 0
        if self.gone is None:
            return self.stop - index
        at = index - self.start
        end = self.gone.find(1, at)
        return (len(self.gone) if end < 0 else end) - at

    def take(self, index: int, count: int) -> None:
        """Messages index .. index + count - 1 (which are present) are gone."""
        self.left -= count
        if self.gone is None:
            if index == self.low:
                self.low += count
                return
            self.gone = bytearray(b"\x01" * (self.low - self.start) + bytes(self.stop - self.low))
        at = index - self.start
        self.gone[at : at + count] = b"\x01" * count
        if index == self.low:
            end = self.gone.find(0, at)
            self.low = self.stop if end < 0 else self.start + end

    def extend(self, count: int, now: int, deadline: int) -> None:
        """The messages that follow were delivered a moment later."""
        self.stop += count
        self.left += count
        self.delivered = now
        self.deadline = deadline
        if self.gone is not None:
            self.gone.extend(bytes(count))

    def pieces(self) -> Iterator[tuple[int, int]]:
        """(index, count) of what is still in flight."""
        index = self.low
        while index < self.stop:
            count = self.present(index)
            if count:
                yield index, count
                index += count
            else:
                assert self.gone is not None
                end = self.gone.find(0, index - self.start)
                index = self.stop if end < 0 else self.start + end


class InFlight:
    """The runs of one consumer."""

    __slots__ = ("_by_key", "_capped", "_dead", "_number", "_queue")

    def __init__(self) -> None:
        self._queue: deque[Run] = deque()  # by deadline
        self._capped: list[tuple[int, int, Run]] = []  # a heap
        self._number = 0
        self._by_key: dict[bytes, list[Run]] = {}  # see Segment.key
        self._dead = 0  # empty runs still queued

    def add(self, segment: Segment, index: int, count: int, extra: int, now: int, deadline: int) -> None:
        """Messages have just been delivered."""
        queue = self._queue
        if queue:
            last = queue[-1]
            if (
                last.segment is segment
                and last.stop == index
                and last.extra == extra
                and last.left
                and now - last.delivered <= MERGE_WITHIN_NS
                and last.deadline <= deadline
            ):
                last.extend(count, now, deadline)
                return
        self._insert(Run(segment, index, count, extra, now, deadline))

    def _insert(self, run: Run) -> None:
        runs = self._by_key.get(run.segment.key)
        if runs is None:
            self._by_key[run.segment.key] = [run]
        else:
            runs.append(run)
        if not self._queue or self._queue[-1].deadline <= run.deadline:
            self._queue.append(run)
        else:
            self._number += 1
            heapq.heappush(self._capped, (run.deadline, self._number, run))

    def match(self, ids: bytes, pos: int) -> tuple[Run, int, int] | None:
        """The longest run in flight that ids[pos:] names: (run, index, count); None when the first id is not here."""
        found = self.find(ids[pos : pos + ID_BYTES])
        if found is None:
            return None
        run, index = found
        count = min(run.present(index), (len(ids) - pos) // ID_BYTES)
        if count > 1:
            expected = run.segment.ids(index, count)
            if not ids.startswith(expected, pos):
                # Answers need not come in the order of delivery. Look for the part that does.
                count = _common(ids, pos, expected) // ID_BYTES
        return run, index, count

    def find(self, message_id: bytes) -> tuple[Run, int] | None:
        """Where a message is."""
        runs = self._by_key.get(message_id[:PREFIX_BYTES])
        if runs is not None:
            last3 = message_id[PREFIX_BYTES:]
            for run in runs:
                index = run.segment.index_of(last3)
                if run.low <= index < run.stop and (run.gone is None or not run.gone[index - run.start]):
                    return run, index
        runs = self._by_key.get(message_id)
        return (runs[0], 0) if runs else None

    def take(self, run: Run, index: int, count: int) -> None:
        """Messages of a run (as `match` gave them) are answered."""
        run.take(index, count)
        if not run.left:
            self._forget(run)
            queue = self._queue
            if queue and queue[0] is run:
                queue.popleft()
                while queue and not queue[0].left:
                    queue.popleft()
                    self._dead -= 1
            else:
                self._dead += 1
                if self._dead > _DEAD_RUNS_KEPT and self._dead > len(queue) // 2 + len(self._capped) // 2:
                    self._sweep()

    def _forget(self, run: Run) -> None:
        key = run.segment.key
        runs = self._by_key[key]
        if len(runs) == 1:
            del self._by_key[key]
        else:
            runs.remove(run)

    def _sweep(self) -> None:
        self._queue = deque(run for run in self._queue if run.left)
        self._capped = [entry for entry in self._capped if entry[2].left]
        heapq.heapify(self._capped)
        self._dead = 0

    def retime(self, run: Run, index: int, count: int, deadline: int) -> None:
        """Messages of a run get another deadline."""
        self.take(run, index, count)
        self._insert(Run(run.segment, index, count, run.extra, run.delivered, deadline))

    def expire(self, now: int) -> list[Run]:
        """Remove and return the runs whose deadline has come."""
        expired = []
        queue = self._queue
        while queue and (queue[0].deadline <= now or not queue[0].left):
            expired.append(queue.popleft())
        while self._capped and (self._capped[0][0] <= now or not self._capped[0][2].left):
            expired.append(heapq.heappop(self._capped)[2])
        alive = [run for run in expired if run.left]
        self._dead -= len(expired) - len(alive)
        for run in alive:
            self._forget(run)
        return alive

    def clear(self) -> None:
        """Forget everything."""
        self._queue.clear()
        self._capped.clear()
        self._by_key.clear()
        self._dead = 0

    def runs(self) -> Iterator[Run]:
        """All that have messages in flight."""
        for runs in self._by_key.values():
            yield from runs

    @property
    def next_deadline(self) -> int:
        """Not later than the first time-out."""
        deadline = self._queue[0].deadline if self._queue else NEVER
        return min(deadline, self._capped[0][0]) if self._capped else deadline


def _common(data: bytes, pos: int, text: bytes) -> int:
    """How many bytes from pos on equal `text` (which as a whole does not)."""
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        if data.startswith(text[low:middle], pos + low):
            low = middle
        else:
            high = middle
    return low
