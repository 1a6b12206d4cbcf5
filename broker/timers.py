"""When which connection is due, and one timer of the loop for all of them."""

import heapq
import itertools
from collections.abc import Callable
from typing import Any, Final, Protocol

NEVER: Final = 2**63 - 1
_STALE_KEPT: Final = 64


class Timed(Protocol):
    """``timer_at`` belongs to Timers: the deadline that it waits for, 0 for none."""

    timer_at: int

    @property
    def deadline(self) -> int:
        """When it really is due, NEVER once it has ended. It may have moved on since Timers was told."""

    def on_time(self, now: int) -> None:
        """It is due."""


class Timers:
    """A heap with at most one entry for each member that holds. Deadlines that move later, as they do with every
    command, cost nothing until the old one has come; only one that moves nearer must be told with ``watch``."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timed]] = []
        self._stale = 0  # entries of deadlines that hold no more
        self._number = itertools.count()

    @property
    def next_deadline(self) -> int:
        return self._heap[0][0] if self._heap else NEVER

    def watch(self, member: Timed) -> None:
        deadline = member.deadline
        if deadline < NEVER and (not member.timer_at or deadline < member.timer_at):
            self.forget(member)
            self._push(member, deadline)

    def forget(self, member: Timed) -> None:
        """It has ended, or is due at another time. What lived for moments is not to be kept for minutes."""
        if not member.timer_at:
            return
        member.timer_at = 0
        self._stale += 1
        if self._stale > _STALE_KEPT and self._stale > len(self._heap) // 2:
            self._heap[:] = [entry for entry in self._heap if entry[2].timer_at == entry[0]]
            heapq.heapify(self._heap)
            self._stale = 0

    def run(self, now: int) -> None:
        """Call ``on_time`` of each member that is due."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            entry_at, _, member = heapq.heappop(heap)
            if member.timer_at != entry_at:
                self._stale -= 1
                continue
            member.timer_at = 0
            if member.deadline <= now:
                member.on_time(now)
            deadline = member.deadline
            if deadline < NEVER and not member.timer_at:
                self._push(member, max(deadline, now + 1))

    def _push(self, member: Timed, deadline: int) -> None:
        member.timer_at = deadline
        heapq.heappush(self._heap, (deadline, next(self._number), member))


class LoopTimer:
    """One timer of the event loop, set to the nearest time that is asked for."""

    def __init__(self, loop: Any, clock: Callable[[], int], callback: Callable[[], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._callback = callback
        self._timer: Any = None
        self._at = NEVER

    def set(self, deadline: int) -> None:
        """Call back no later than this. An earlier time that was asked for stays."""
        if deadline < self._at:
            self.stop()
            self._at = deadline
            self._timer = self._loop.timer(max(0.0, (deadline - self._clock()) / 1e9))
            self._timer.start(self._fire)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None
        self._at = NEVER

    def _fire(self) -> None:
        self.stop()
        self._callback()
