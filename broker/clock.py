"""Wall time that never jumps: timestamps of messages and deadlines come from the same count of nanoseconds."""

from time import monotonic_ns, time_ns
from typing import Final

_SLEW_NS_MAX: Final = 10_000_000
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
    """Starts at the wall's time and runs with the monotonic clock; ``discipline`` leads it to the wall again.

    A wall clock that is set must not let every message in flight time out at once, or none for an hour.
    """

    def __init__(self) -> None:
        self._offset = _wall_offset()

    def now(self) -> int:
        return monotonic_ns() + self._offset

    def discipline(self) -> None:
        """To be called about once a second: at most a hundredth faster or slower than time itself."""
        drift = _wall_offset() - self._offset
        self._offset += max(-_SLEW_NS_MAX, min(drift, _SLEW_NS_MAX))
