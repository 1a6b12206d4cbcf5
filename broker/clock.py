"""Time that never jumps, for all that is due some time from now; and how far the wall's time is from it."""

from time import monotonic_ns, time_ns
from typing import Final

_LOOKS: Final = 3


def _wall_offset() -> int:
    """How far the wall's time is ahead of the monotonic clock, by the quickest of some looks at both: on a busy machine
    milliseconds may pass between reading one and the other."""
    looks = []
    for _ in range(_LOOKS):
        before, wall, after = monotonic_ns(), time_ns(), monotonic_ns()
        looks.append((after - before, wall - before))
    return min(looks)[1]


class Clock:
    """Starts at the wall's time and runs with the monotonic clock.

    A wall clock that is set must not let every message in flight time out at once, or none for an hour.
    """

    def __init__(self) -> None:
        self._offset = _wall_offset()

    def now(self) -> int:
        return monotonic_ns() + self._offset

    def wall_ahead(self) -> int:
        """What is to be added to ``now`` for a date: the wall clock was set since the start, or the host suspended."""
        return _wall_offset() - self._offset
