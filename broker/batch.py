"""What one turn publishes to a topic, and how it becomes segments."""

from __future__ import annotations

from pyspark_nsq.broker.log import Checkpoint
from pyspark_nsq.broker.message_id import IdGenerator
from pyspark_nsq.broker.segment import (
    FRAME_OVERHEAD,
    SEGMENT_BYTES_MAX,
    SEGMENT_MESSAGES_MAX,
    Segment,
    new_segment,
)


class Ticket:
    """The outcome of all that was published to one topic in one turn; shared by its publishers."""

    __slots__ = ("done", "error")

    done: bool
    error: OSError | None


class Batch(Ticket):
    """Bodies, and after `build` segments."""

    __slots__ = ("_groups", "checkpoint", "messages", "nbytes", "segments")

    def __init__(self, bodies: list[bytes], due: int) -> None:
        self.done = False
        self.error = None
        self._groups: list[tuple[list[bytes], int]] = [(bodies[:], due)]
        self.segments: list[Segment] = []
        self.messages = 0
        self.nbytes = 0  # of bodies
        self.checkpoint: Checkpoint = (0, 0, 0, 0)  # of the log, right after this

    def add(self, bodies: list[bytes], due: int) -> None:
        groups = self._groups
        if not due and not groups[-1][1]:
            groups[-1][0].extend(bodies)
        else:
            groups.append((bodies[:], due))

    def build(self, base: int, ids: IdGenerator, now: int) -> None:
        """Make segments from message number `base` on."""
        for bodies, due in self._groups:
            lengths = list(map(len, bodies))
            total = sum(lengths)
            count = len(bodies)
            self.messages += count
            self.nbytes += total
            if count <= SEGMENT_MESSAGES_MAX and total + FRAME_OVERHEAD * count <= SEGMENT_BYTES_MAX:
                prefix, first = ids.take(count, now)
                self.segments.append(new_segment(bodies, lengths, base, prefix, first, now, due))
            else:
                self._build_pieces(bodies, lengths, base, ids, now, due)
            base += count
        self._groups.clear()

    def _build_pieces(
        self, bodies: list[bytes], lengths: list[int], base: int, ids: IdGenerator, now: int, due: int
    ) -> None:
        start = 0
        while start < len(bodies):
            stop = cut(lengths, start)
            prefix, first = ids.take(stop - start, now)
            piece, piece_lengths = bodies[start:stop], lengths[start:stop]
            self.segments.append(new_segment(piece, piece_lengths, base + start, prefix, first, now, due))
            start = stop


def cut(lengths: list[int], start: int) -> int:
    """Where a segment that begins at `start` ends: at its limits, but after one message at least."""
    total, stop = 0, start
    for length in lengths[start : start + SEGMENT_MESSAGES_MAX]:
        total += length + FRAME_OVERHEAD
        if total > SEGMENT_BYTES_MAX and stop > start:
            break
        stop += 1
    return stop
