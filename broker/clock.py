"""Wall time that never jumps: timestamps of messages and deadlines come from the same count of nanoseconds."""

from time import monotonic_ns, time_ns
from typing import Final

_SLEW_NS_MAX: Final = 10_000_000


class Clock:
    """Starts at the wall's time and runs with the monotonic clock; ``discipline`` leads it to the wall again.

    A wall clock that is set must not let every message in flight time out at once, or none for an hour.
    """

    def __init__(self) -> None:
        self._offset = time_ns() - monotonic_ns()

    def now(self) -> int:
        return monotonic_ns() + self._offset

    def discipline(self) -> None:
        """To be called about once a second: at most a hundredth faster or slower than time itself."""
        drift = time_ns() - self.now()
        self._offset += max(-_SLEW_NS_MAX, min(drift, _SLEW_NS_MAX))
