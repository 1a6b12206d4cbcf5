"""Percentiles of the time from publish to FIN over a moving window.

Values fall into buckets 1 % wide, so a record is an increment, a merge is an addition. A quantile is told by where its
bucket begins: 1 % too short at most, and never longer than anything that was measured. Two half windows: the older is
forgotten when the younger is half a window old.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

_WIDTH: Final = math.log(1.01)


class Latency:
    """What one channel has measured."""

    __slots__ = ("_half_window", "_older", "_started", "_younger")

    def __init__(self, window_ns: int, now: int) -> None:
        self._half_window = max(window_ns // 2, 1)
        self._started = now  # of the younger half
        self._younger: Counter[int] = Counter()
        self._older: Counter[int] = Counter()

    def record(self, latency_ns: int, now: int, count: int = 1) -> None:
        self._turn(now)
        self._younger[int(math.log(latency_ns) / _WIDTH) if latency_ns > 1 else 0] += count

    def buckets(self, now: int) -> Counter[int]:
        """All of the window."""
        self._turn(now)
        return self._younger + self._older

    def _turn(self, now: int) -> None:
        age = now - self._started
        if age < self._half_window:
            return
        self._older = self._younger if age < 2 * self._half_window else Counter()
        self._younger = Counter()
        self._started = now


def quantiles(buckets: Counter[int], wanted: Iterable[float]) -> list[tuple[float, int]]:
    """(quantile, ns) for each wanted; 0 ns when nothing was measured."""
    total = buckets.total()
    ordered = sorted(buckets.items())
    found = []
    for quantile in wanted:
        rank = math.ceil(quantile * total)
        value = 0
        for bucket, count in ordered:
            value = int(math.exp(bucket * _WIDTH))
            rank -= count
            if rank <= 0:
                break
        found.append((quantile, value))
    return found
