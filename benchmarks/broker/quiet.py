"""How much of the machine somebody else has used meanwhile: such a measurement is worth nothing."""

import os
import time
from pathlib import Path

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Watch:
    """From its creation on. What this process and its children did is known once they have ended."""

    def __init__(self) -> None:
        self._started, self._busy, self._own = time.monotonic(), _busy_seconds(), _own_seconds()

    def foreign_cores(self) -> float:
        """How many cores others have used on average."""
        elapsed = time.monotonic() - self._started
        return (_busy_seconds() - self._busy - (_own_seconds() - self._own)) / elapsed


def _busy_seconds() -> float:
    user, nice, system, _idle, _iowait, irq, softirq, *_ = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(map(int, (user, nice, system, irq, softirq))) / TICKS_A_SECOND


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
