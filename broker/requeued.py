"""Messages that go to a channel's consumers once more: requeued, timed out, or deferred until now."""

from __future__ import annotations

from collections import deque
from typing import Final

from pyspark_nsq.broker.on_record import OnRecord
from pyspark_nsq.broker.pins import Pins
from pyspark_nsq.broker.segment import Buffer, Segment
from pyspark_nsq.broker.store import Store

_HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of what a channel gets back so much stays in memory: who never answers would bring all of a backlog there."""


class Again:
    """Messages seq .. seq + count - 1; `turn`: how many fresh deliveries of the channel go first."""

    __slots__ = ("count", "extra", "held", "segment", "seq", "turn")

    def __init__(self, segment: Segment | None, held: int, seq: int, count: int, extra: int, turn: int) -> None:
        self.segment = segment  # None: to be read from the log
        self.held = held  # bytes that are in memory because of it
        self.seq = seq
        self.count = count
        self.extra = extra
        self.turn = turn


class Requeued:
    """A queue of them."""

    __slots__ = ("_held", "_left", "_on_record", "_pins", "_queue", "_read", "_store", "count")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: deque[Again] = deque()
        self._read: list[Segment] = []  # the last piece of the log that was read for one of them
        self._held = 0  # bytes in memory because of all in the queue
        self._pins = Pins(store.log)
        self._left = 0  # messages that ever did
        self._on_record = OnRecord()
        self.count = 0

    def add(self, segment: Segment | None, seq: int, count: int, extra: int, turn: int) -> None:
        """At the end; joins the last entry where it goes on with the same segment. Without a segment, or with the
        shadow of one, they are read from the log when it is their turn."""
        self.count += count
        self._pins.add(seq, count)
        if segment is not None and not segment.nbytes:
            segment = None
        last = self._queue[-1] if self._queue else None
        held = 0 if segment is None or (last is not None and last.segment is segment) else segment.nbytes
        if self._held + held > _HELD_BYTES_MAX and self._store.log is not None:
            segment, held = None, 0
        if last is not None and last.segment is segment and last.extra == extra and last.seq + last.count == seq:
            last.count += count
            return
        self._held += held
        self._queue.append(Again(segment, held, seq, count, extra, turn))

    @property
    def turn(self) -> int:
        """When the first is to go (there must be one)."""
        return self._queue[0].turn

    def head(self) -> tuple[Segment, int, int, int] | None:
        """(segment, index, count, extra) of the first. Those whose data is gone are dropped."""
        while self._queue:
            first = self._queue[0]
            segment = first.segment
            if segment is None or first.seq >= segment.end:
                segment = first.segment = self._find(first.seq, first.seq + first.count)
                lost = first.count if segment is None else min(max(segment.base - first.seq, 0), first.count)
                if lost:
                    self.take(lost)
                    continue
                assert segment is not None
            index = first.seq - segment.base
            return segment, index, min(first.count, segment.count - index), first.extra
        return None

    def take(self, count: int) -> None:
        """`count` messages of the first are delivered."""
        first = self._queue[0]
        self._pins.remove(first.seq, count)
        first.seq += count
        first.count -= count
        self.count -= count
        self._left += count
        if not first.count:
            self._held -= self._queue.popleft().held
            if not self._queue:
                self._read = []

    def _find(self, seq: int, stop: int) -> Segment | None:
        for segment in self._read:
            if segment.base <= seq < segment.end:
                return segment
        found = self._store.find(seq, stop)
        for segment in found:
            segment.sealed = True
        self._read = found
        return next((segment for segment in found if segment.end > seq), None)

    def clear(self) -> None:
        self._queue.clear()
        self._held = 0
        self._read = []
        self._pins.clear()
        self._left += self.count
        self.count = 0

    def needed(self) -> list[tuple[int, int]]:
        """Ranges of messages that hold at least all of these."""
        return self._pins.ranges()

    def changes(self, *, everything: bool) -> tuple[int, list[list[int]]]:
        """See OnRecord; entries are [seq, count, extra]."""
        entries = ([entry.seq, entry.count, entry.extra] for entry in reversed(self._queue))
        return self._on_record.changes(self.count, self._left, entries, everything=everything)

    def restore(self, entries: list[list[int]]) -> None:
        """What is on record."""
        for seq, count, extra in entries:
            self.add(None, seq, count, extra, 0)
        self._on_record.note(self.count, self._left)


def frames_of(segment: Segment, index: int, count: int, extra: int) -> Buffer:
    """The frames to send, with their attempts."""
    return segment.redelivery(index, count, extra) if extra else segment.slice(index, count)
