"""Staying awake for a moment after an answer, instead of falling asleep and being woken.

A publisher that waits for each OK is back within tens of microseconds. To sleep meanwhile costs more than that, above
all on a virtual machine, where an idle processor is given back to the host. Where nobody came back in time, staying
awake is tried ever more rarely: publishers that pause cost next to nothing.
"""

import os
from collections.abc import Callable
from typing import Any, Final

AWAKE_NS: Final = 50_000
PASSED_OVER_MAX: Final = 1023  # so many answers at most go by between two tries


def spare_processor() -> bool:
    """Whether a publisher can run while we stay awake."""
    return len(os.sched_getaffinity(0)) > 1


class Vigil:
    """Of one event loop. An active idle watcher makes it poll its files where it would sleep."""

    def __init__(self, loop: Any, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._watcher: Any = loop.idle()
        self._awake = False
        self._until = 0
        self._pass_over = 0  # answers before the next try
        self._passed_over = 0

    def answered(self) -> None:
        """Somebody has got an answer, and may be back in no time."""
        if self._awake:
            self._pass_over = 0
            self._until = self._clock() + AWAKE_NS
        elif self._passed_over < self._pass_over:
            self._passed_over += 1
        else:
            self._awake = True
            self._until = self._clock() + AWAKE_NS
            self._watcher.start(self._look)

    def _look(self) -> None:
        """Nothing has happened since the loop last came by."""
        if self._clock() >= self._until:
            self._watcher.stop()
            self._awake = False
            self._pass_over = min(2 * self._pass_over + 1, PASSED_OVER_MAX)
            self._passed_over = 0
