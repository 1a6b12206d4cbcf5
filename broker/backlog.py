"""What a channel has not delivered yet: ranges of its topic's messages, most often one, and a cursor."""

from __future__ import annotations

from collections import deque
from typing import Final

from pyspark_nsq.broker.on_record import OnRecord
from pyspark_nsq.broker.segment import Segment
from pyspark_nsq.broker.store import Store

_SMALL_GAP: Final = 256


class Backlog:
    """Ascending ranges of messages; the cursor stands at the first."""

    __slots__ = ("_around", "_left", "_on_record", "_ranges", "_segment", "_store", "count")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ranges: deque[list[int]] = deque()  # [first, stop]
        self._segment: Segment | None = None  # at the cursor
        self._around: list[Segment] = []  # what was found with it
        self._left = 0  # messages that ever did
        self._on_record = OnRecord()
        self.count = 0

    def add(self, first: int, stop: int) -> None:
        """Messages first .. stop - 1, behind all others."""
        self.count += stop - first
        ranges = self._ranges
        if ranges and ranges[-1][1] == first:
            ranges[-1][1] = stop
        elif stop > first:
            ranges.append([first, stop])

    def head(self) -> tuple[Segment, int, int] | None:
        """What comes next: (segment, index in it, how many messages); None when nothing is left.

        Messages that are not in the log any more (damaged files) are passed over.
        """
        while self._ranges:
            first, stop = self._ranges[0]
            segment = self._segment
            if segment is None or not segment.base <= first < segment.base + segment.count:
                segment = self._segment = self._seek(first, stop)
                lost_before = stop if segment is None else min(max(segment.base, first), stop)
                if lost_before > first:
                    self._skip(lost_before - first)
                    continue
                assert segment is not None
                segment.sealed = True
            index = first - segment.base
            return segment, index, min(stop - first, segment.count - index)
        return None

    def advance(self, count: int) -> None:
        """`count` messages of what `head` gave are done with."""
        head = self._ranges[0]
        head[0] += count
        self.count -= count
        self._left += count
        segment = self._segment
        assert segment is not None
        finished = head[0] == head[1]
        if finished or head[0] == segment.base + segment.count:
            self._segment = None
            self._store.passed(segment)
        if finished:
            self._leave_range()

    def _skip(self, count: int) -> None:
        head = self._ranges[0]
        head[0] += count
        self.count -= count
        self._left += count
        if head[0] == head[1]:
            self._leave_range()

    def _seek(self, seq: int, stop: int) -> Segment | None:
        for segment in self._around:
            if segment.base <= seq < segment.end:
                return segment
        self._around = self._store.find(seq, stop)
        return next((segment for segment in self._around if segment.end > seq), None)

    def _leave_range(self) -> None:
        """The first is done with."""
        self._ranges.popleft()
        if not self._ranges:
            self._around = []

    def clear(self) -> None:
        """Drop everything."""
        self._store.released(self.ranges())
        self._ranges.clear()
        self._around = []
        self._segment = None
        self._left += self.count
        self.count = 0

    def changes(self, *, everything: bool) -> tuple[int, list[list[int]]]:
        """See OnRecord; entries are [seq, count]."""
        entries = ([first, stop - first] for first, stop in reversed(self._ranges))
        return self._on_record.changes(self.count, self._left, entries, everything=everything)

    def restore(self, entries: list[list[int]]) -> None:
        """What is on record."""
        for seq, count in entries:
            self.add(seq, seq + count)
        self._on_record.note(self.count, self._left)

    def ranges(self) -> list[tuple[int, int]]:
        return [(first, stop) for first, stop in self._ranges]

    def needed(self) -> list[tuple[int, int]]:
        """Ranges of messages that hold at least all of these, without small gaps: where every other message was to be
        delivered later there are as many ranges as messages."""
        joined: list[tuple[int, int]] = []
        for first, stop in self._ranges:
            if joined and first - joined[-1][1] <= _SMALL_GAP:
                joined[-1] = (joined[-1][0], stop)
            else:
                joined.append((first, stop))
        return joined
