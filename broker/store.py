"""Where a topic's segments are: the newest in memory, all (but an ephemeral topic's) in the log."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final
from weakref import WeakValueDictionary

from pyspark_nsq.broker.arena import Arena
from pyspark_nsq.broker.log import Log
from pyspark_nsq.broker.portion import Portion
from pyspark_nsq.broker.segment import Segment
from pyspark_nsq.broker.unreadable import UnreadableError

_WARM_SEGMENTS: Final = 64
"""Segments behind the newest stay ready to send; those that wait longer are packed."""
_ARENA_SEGMENTS: Final = 256
"""From so many in memory on, those that are packed share large pieces of it; of fewer that would be a waste."""
_KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of a topic's large publishes memory keeps so much, whatever it is meant to hold. The log has them as they are, so the
system's cache of it gives them back as fast, and to keep them twice costs more than all the rest of a publish."""


class Store:
    """Segments by the sequence number of their first message."""

    def __init__(self, log: Log | None, messages_max: int) -> None:
        self.log = log
        self._messages_max = messages_max
        self._tail: dict[int, Segment] = {}  # in memory
        self._order: list[int] = []  # ascending; may name segments that have left the tail
        self._oldest = 0  # in _order
        self._last: Segment | None = None
        self._arena = Arena()
        self._read: WeakValueDictionary[int, Portion] = WeakValueDictionary()  # shared by channels at the same place
        self.resident = 0  # messages in memory
        self._kept_bytes = 0  # of large publishes in memory

    def append(self, segment: Segment) -> None:
        """New messages, in the log already."""
        self.resident += segment.count
        last = self._last
        if last is not None and last.base in self._tail and last.absorb(segment):
            pass
        else:
            self._tail[segment.base] = segment
            self._order.append(segment.base)
            self._last = segment
            if segment.is_large:
                self._kept_bytes += segment.content_size
            self._tidy_waiting()
        if self.log is not None and self.resident > self._messages_max:
            self._evict()

    def _tidy_waiting(self) -> None:
        """Pack the one that is no longer among the newest, or leave it to the log."""
        if len(self._order) <= _WARM_SEGMENTS:
            return
        waiting = self._tail.get(self._order[-_WARM_SEGMENTS - 1])
        if waiting is None:
            return
        if waiting.is_large and self.log is not None and self._kept_bytes > _KEPT_BYTES_MAX:
            del self._order[-_WARM_SEGMENTS - 1]
            self._drop(waiting)
        else:
            waiting.pack(self._arena if len(self._tail) >= _ARENA_SEGMENTS else None)

    def seal(self) -> None:
        """The set of readers changes: what is in memory takes nothing in any more."""
        self._last = None

    def _evict(self) -> None:
        while self.resident > self._messages_max and self._oldest < len(self._order):
            segment = self._tail.get(self._order[self._oldest])
            self._oldest += 1
            if segment is not None:
                self._drop(segment)
        if self._oldest > 256 and self._oldest > len(self._order) // 2:
            del self._order[: self._oldest]
            self._oldest = 0

    def _drop(self, segment: Segment) -> None:
        del self._tail[segment.base]
        self.resident -= segment.count
        if segment.is_large:
            self._kept_bytes -= segment.content_size
        if len(self._order) > 2 * len(self._tail) + 256:
            self._order = list(self._tail)
            self._oldest = 0

    def passed(self, segment: Segment) -> None:
        """One of the segment's readers needs it no longer."""
        segment.readers -= 1
        if segment.readers <= 0 and self._tail.get(segment.base) is segment:
            self._drop(segment)

    def set_readers(self, segment: Segment, readers: int) -> None:
        """So many channels are going to read it."""
        segment.readers = readers
        if not readers and segment.base in self._tail:
            self._drop(segment)

    def released(self, ranges: list[tuple[int, int]]) -> None:
        """A reader that had these messages (ascending ranges) before it has gone."""
        for segment in list(self._tail.values()):
            before = bisect_left(ranges, (segment.end,))  # so many ranges begin before the segment ends
            if before and ranges[before - 1][1] > segment.base:
                self.passed(segment)

    def between(self, first: int, stop: int) -> list[Segment]:
        """Those in memory that hold some of these messages."""
        return [segment for segment in self._tail.values() if segment.base < stop and segment.end > first]

    def find(self, seq: int, stop: int) -> list[Segment]:
        """Segments in order, of which one holds message `seq`, or the first behind it is the next that still exists. []
        when nothing before `stop` does. To be kept as long as it is read: others may come to the same place."""
        segment = self._tail.get(seq) or self._containing(seq)
        if segment is not None:
            return [segment]
        if self.log is None:
            bases = sorted(base for base in self._tail if seq < base < stop)
            return [self._tail[base] for base in bases[:1]]
        portion = self._read.get(seq)
        if portion is not None:
            return portion
        following = self._following(seq)
        # What is in memory is not read as well: it waits there until its readers have passed it.
        portion = Portion(self.log.read(seq, stop, None if following is None else following.base))
        for segment in portion:
            self._read[segment.base] = portion
        if not portion and following is not None and following.base < stop:
            return [following]
        return portion

    def step_over(self, error: UnreadableError) -> None:
        """`find` has failed with this for long enough."""
        if self.log is not None:
            self.log.step_over(error)

    def _following(self, seq: int) -> Segment | None:
        """The first in memory that begins behind this message."""
        order = self._order
        for position in range(bisect_right(order, seq), len(order)):
            segment = self._tail.get(order[position])
            if segment is not None:
                return segment
        return None

    def _containing(self, seq: int) -> Segment | None:
        position = bisect_right(self._order, seq) - 1
        segment = self._tail.get(self._order[position]) if position >= 0 else None
        return segment if segment is not None and seq < segment.end else None
