"""How many messages nsqd may have in flight where: the budget, divided over sources and their connections.

A window is a source's share of the budget. Sources that fill their windows are busy: they share what the others do
not need. Those keep enough to show that they have become busy.
"""

from collections.abc import Sequence
from typing import Final

# An idle source keeps one part in this many of its equal share.
_IDLE_DIVISOR: Final = 4
CONNECTIONS_PER_SOURCE_MAX: Final = 1024


def share_budget(busy: Sequence[bool], budget: int) -> list[int]:
    """The window of each source; where they outnumber the budget, the first ones get 1 and the others must wait."""
    count = len(busy)
    if count == 0:
        return []
    if budget <= count:
        return [1] * budget + [0] * (count - budget)
    busy_count = sum(busy)
    if busy_count in (0, count):
        return split_evenly(budget, count)
    idle_window = max(1, budget // count // _IDLE_DIVISOR)
    shares = iter(split_evenly(budget - idle_window * (count - busy_count), busy_count))
    return [next(shares) if is_busy else idle_window for is_busy in busy]


def split_evenly(total: int, count: int) -> list[int]:
    """The total in so many parts that differ by one at most, the larger ones first."""
    share, rest = divmod(total, count)
    return [share + 1] * rest + [share] * (count - rest)


def connections_for(window: int, rdy_max: int) -> int:
    """How many connections it takes to have a window in flight, where nsqd takes no RDY above ``rdy_max``."""
    return min(max(1, -(-window // rdy_max)), CONNECTIONS_PER_SOURCE_MAX)


def split_window(window: int, count: int, rdy_max: int) -> list[int]:
    """The RDY of each of a source's connections."""
    return split_evenly(min(window, count * rdy_max), count)
