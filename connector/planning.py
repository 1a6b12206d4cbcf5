"""What a batch is: how far it reaches, and the ranges its tasks read. Numbers in, numbers out."""

from collections.abc import Sequence
from typing import NamedTuple

from pyspark_nsq.connector.offsets import first_position, incarnation_of
from pyspark_nsq.connector.windows import split_evenly


class LaneRange(NamedTuple):
    """Positions of one lane, all of one incarnation."""

    lane: int
    first: int
    end: int


def available(start: int, end: int) -> LaneRange:
    """What there is from ``start`` to the end that a lane has now: nothing of incarnations before."""
    return LaneRange(0, max(start, first_position(incarnation_of(end))), end)


def limit_ends(starts: Sequence[int], ends: Sequence[int], count_max: int) -> list[int]:
    """The end of a batch of at most so many messages: no lane waits for another that has more."""
    firsts = [available(start, end).first for start, end in zip(starts, ends, strict=True)]
    counts = [end - first for first, end in zip(firsts, ends, strict=True)]
    taken = [0] * len(counts)
    left = count_max
    # Each pass gives every lane an equal share of what is left; one that has less leaves the rest to the others.
    while left and (open_lanes := [lane for lane, count in enumerate(counts) if taken[lane] < count]):
        for lane, share in zip(open_lanes, split_evenly(left, len(open_lanes)), strict=True):
            more = min(share, counts[lane] - taken[lane])
            taken[lane] += more
            left -= more
    return [first + count if count else start for start, first, count in zip(starts, firsts, taken, strict=True)]


def cut_off(starts: Sequence[int], ends: Sequence[int], lasts: Sequence[int]) -> list[int]:
    """Ends that are not past these; a lane that came later gives nothing."""
    lasts = [*lasts, *starts[len(lasts) :]]
    return [max(start, min(end, last)) for start, end, last in zip(starts, ends, lasts, strict=True)]


def divide(ranges: Sequence[LaneRange], count: int) -> list[LaneRange]:
    """The ranges in about so many parts of about the same size; none is empty, every range has at least one."""
    ranges = [each for each in ranges if each.first < each.end]
    total = sum(each.end - each.first for each in ranges)
    parts = []
    for lane, first, end in ranges:
        size = end - first
        share = min(size, max(1, round(count * size / total)))
        for part in split_evenly(size, share):
            parts.append(LaneRange(lane, first, first + part))
            first += part
    return parts
