"""What of a queue the journal has. Messages join at its end and leave at its front: two counts say what is new."""

from __future__ import annotations

from collections.abc import Iterable


class OnRecord:
    """Of one queue, which counts all messages that ever left it."""

    __slots__ = ("_count", "_left")

    def __init__(self) -> None:
        self._count = 0  # messages that were in the queue when it was last noted
        self._left = 0  # that had left it until then

    def note(self, count: int, left: int) -> None:
        """All of the queue is on record."""
        self._count = count
        self._left = left

    def changes(
        self, count: int, left: int, entries_from_end: Iterable[list[int]], *, everything: bool
    ) -> tuple[int, list[list[int]]]:
        """How many messages have left the front since the queue was last noted, then which entries ([seq, count, ...])
        have joined at its end; or (0, all there are). All of the queue is on record then."""
        gone = min(left - self._left, self._count)
        new = count if everything else count - (self._count - gone)
        self.note(count, left)
        return 0 if everything else gone, _last(entries_from_end, new)


def _last(entries_from_end: Iterable[list[int]], count: int) -> list[list[int]]:
    """What holds the last `count` messages."""
    found: list[list[int]] = []
    for entry in entries_from_end:
        older = entry[1] - count
        if older >= 0:
            if count:
                found.append([entry[0] + older, count, *entry[2:]])
            break
        found.append(entry)
        count -= entry[1]
    found.reverse()
    return found
