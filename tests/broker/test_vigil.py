"""When the loop stays awake after an answer, and when it has learnt not to."""

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

from pyspark_nsq.broker.vigil import AWAKE_NS, PASSED_OVER_MAX, Vigil


class World:
    """A loop and its clock; ``look`` is set while the loop polls."""

    def __init__(self) -> None:
        self.now = 0
        self.look: Callable[[], None] | None = None
        watcher = SimpleNamespace(start=self._start, stop=self._stop)
        self.vigil = Vigil(SimpleNamespace(idle=lambda: watcher), lambda: self.now)

    def _start(self, look: Callable[[], None]) -> None:
        self.look = look

    def _stop(self) -> None:
        self.look = None

    def answer(self) -> bool:
        """Whether the loop is awake after it."""
        self.vigil.answered()
        return self.look is not None

    def wait(self, nanoseconds: int) -> None:
        """The loop comes by once a microsecond as long as it polls."""
        end = self.now + nanoseconds
        while self.look and self.now < end:
            self.now += 1_000
            self.look()
        self.now = end


def test_the_loop_sleeps_again_when_nobody_came() -> None:
    world = World()
    assert world.answer()
    world.wait(AWAKE_NS - 1_000)
    assert world.look
    world.wait(1_000)
    assert not world.look


def test_publishers_who_come_back_keep_it_awake() -> None:
    world = World()
    for _ in range(10):
        assert world.answer()
        world.wait(AWAKE_NS - 1_000)
    assert world.look


def test_publishers_who_pause_are_waited_for_ever_more_rarely() -> None:
    world = World()
    tries = []
    for number in range(10_000):
        if world.answer():
            tries.append(number)
        world.wait(2 * AWAKE_NS)
    gaps = [after - before for before, after in pairwise(tries)]
    assert gaps[:4] == [2, 4, 8, 16]
    assert max(gaps) == gaps[-1] == PASSED_OVER_MAX + 1


def test_who_comes_back_in_time_is_waited_for_again() -> None:
    world = World()
    for _ in range(100):
        world.answer()
        world.wait(2 * AWAKE_NS)
    while not world.answer():
        world.wait(2 * AWAKE_NS)
    world.wait(1_000)
    assert world.answer()
    world.wait(2 * AWAKE_NS)
    assert [world.answer(), world.answer()] == [False, True]
