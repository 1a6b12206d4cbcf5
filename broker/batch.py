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
    uniform_segment,
)
from pyspark_nsq.proto.uniform import SIZE_FIELD_SIZE, UniformBodies

Bodies = list[bytes] | UniformBodies


class Ticket:
    """The outcome of all that was published to one topic in one turn; shared by its publishers."""

    __slots__ = ("done", "error")

    done: bool
    error: OSError | None


class Batch(Ticket):
    """Bodies, and after `build` segments."""

    __slots__ = ("_groups", "checkpoint", "messages", "nbytes", "segments")

    def __init__(self, bodies: Bodies, due: int) -> None:
        self.done = False
        self.error = None
        # A list may be used again by the caller.
        self._groups: list[tuple[Bodies, int]] = [(bodies[:] if isinstance(bodies, list) else bodies, due)]
        self.segments: list[Segment] = []
        self.messages = 0
        self.nbytes = 0  # of bodies
        self.checkpoint: Checkpoint = (0, 0, 0, 0)  # of the log, right after this

    def add(self, bodies: Bodies, due: int) -> None:
        last, last_due = self._groups[-1]
        if not due and not last_due and isinstance(last, list) and isinstance(bodies, list):
            last.extend(bodies)
        else:
            self._groups.append((bodies[:] if isinstance(bodies, list) else bodies, due))

    def build(self, base: int, ids: IdGenerator, now: int) -> None:
        """Make segments from message number `base` on."""
        for bodies, due in self._groups:
            if isinstance(bodies, UniformBodies):
                self._build_uniform(bodies, base, ids, now, due)
                base += bodies.count
                continue
            count = len(bodies)
            lengths = list(map(len, bodies)) if count > 1 else [len(bodies[0])]
            total = sum(lengths)
            self.messages += count
            self.nbytes += total
            if count <= SEGMENT_MESSAGES_MAX and total + FRAME_OVERHEAD * count <= SEGMENT_BYTES_MAX:
                prefix, first = ids.take(count, now)
                self.segments.append(new_segment(bodies, lengths, base, prefix, first, now, due))
            else:
                self._build_pieces(bodies, lengths, base, ids, now, due)
            base += count
        self._groups.clear()

    def _build_uniform(self, bodies: UniformBodies, base: int, ids: IdGenerator, now: int, due: int) -> None:
        size = bodies.stride - SIZE_FIELD_SIZE
        count_max = min(SEGMENT_MESSAGES_MAX, max(1, SEGMENT_BYTES_MAX // (size + FRAME_OVERHEAD)))
        self.messages += bodies.count
        self.nbytes += bodies.count * size
        for start in range(0, bodies.count, count_max):
            part = bodies.part(start, start + count_max)
            prefix, first = ids.take(part.count, now)
            self.segments.append(uniform_segment(part, base + start, prefix, first, now, due))

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
