"""Messages a channel must not deliver before a time."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from pyspark_nsq.broker.log import Log
from pyspark_nsq.broker.pins import Pins
from pyspark_nsq.broker.segment import Segment
from pyspark_nsq.broker.shared import NEVER


class Entry(NamedTuple):
    """Messages seq .. seq + count - 1, not before `due`, with `extra` attempts on top of the stored ones.

    `segment` is set where it is the only copy (no log): what waits for an hour should not stay in memory.
    """

    due: int
    number: int
    seq: int
    messages: int
    extra: int
    segment: Segment | None


class Deferred:
    """A heap by due time that also says what has changed since it was last saved."""

    def __init__(self, log: Log | None, *, tracked: bool) -> None:
        self._tracked = tracked  # somebody asks for `changes`
        self._pins = Pins(log)
        self._heap: list[Entry] = []
        self._number = 0
        self._added: dict[int, Entry] = {}  # by seq, not saved yet
        self._removed: list[int] = []  # saved, and gone since
        self._cleared = False  # since the last save
        self.count = 0

    def add(self, due: int, seq: int, count: int, extra: int, segment: Segment | None, *, saved: bool = False) -> None:
        self._number += 1
        entry = Entry(due, self._number, seq, count, extra, segment)
        heapq.heappush(self._heap, entry)
        self.count += count
        self._pins.add(seq, count)
        if self._tracked and not saved:
            self._added[seq] = entry

    def take_due(self, now: int, entries_max: int) -> list[Entry]:
        """Remove and return those whose time has come, or as many of them."""
        due: list[Entry] = []
        while self._heap and self._heap[0].due <= now and len(due) < entries_max:
            entry = heapq.heappop(self._heap)
            due.append(entry)
            self.count -= entry.messages
            self._pins.remove(entry.seq, entry.messages)
            if self._tracked and self._added.pop(entry.seq, None) is not entry:
                self._removed.append(entry.seq)
        return due

    def clear(self) -> None:
        self._heap.clear()
        self._pins.clear()
        self._added.clear()
        self._removed.clear()
        self._cleared = True
        self.count = 0

    @property
    def next_due(self) -> int:
        return self._heap[0].due if self._heap else NEVER

    def needed(self) -> list[tuple[int, int]]:
        """Ranges of messages that hold at least all of these."""
        return self._pins.ranges()

    def changes(self, *, everything: bool) -> tuple[list[list[int]], list[int], bool]:
        """([seq, count, extra, due] added, seqs removed, False) since the last call; or (all there is, [], True)."""
        everything = everything or self._cleared
        entries = self._heap if everything else list(self._added.values())
        added = [[entry.seq, entry.messages, entry.extra, entry.due] for entry in entries]
        removed = [] if everything else self._removed
        self._added = {}
        self._removed = []
        self._cleared = False
        return added, removed, everything
