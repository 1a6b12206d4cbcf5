"""Wall time that never jumps, on a machine that does not always let us look at two clocks at once."""

from collections.abc import Callable

import pytest

from pyspark_nsq.broker import clock
from pyspark_nsq.broker.clock import Clock

MS = 1_000_000
SECOND = 1000 * MS
EPOCH = 1_700_000_000 * SECOND


class FakeTime:
    """Both clocks of a machine. ``interruptions`` are what the next looks at the wall's take in ns."""

    def __init__(self) -> None:
        self.monotonic = 5 * SECOND
        self.wall_ahead = EPOCH
        self.interruptions: list[int] = []

    def monotonic_ns(self) -> int:
        return self.monotonic

    def time_ns(self) -> int:
        wall = self.monotonic + self.wall_ahead
        self.monotonic += self.interruptions.pop(0) if self.interruptions else 100
        return wall


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(clock, "monotonic_ns", fake.monotonic_ns)
    monkeypatch.setattr(clock, "time_ns", fake.time_ns)
    return fake


def test_it_starts_at_the_walls_time(time: FakeTime):
    assert Clock().now() == time.monotonic + EPOCH


@pytest.mark.parametrize("look", [lambda ours: ours.discipline(), lambda _ours: Clock()], ids=["later", "at the start"])
def test_an_interruption_between_two_looks_does_not_count(time: FakeTime, look: Callable[[Clock], Clock | None]):
    ours = Clock()
    time.interruptions = [3 * MS, 100, 7 * MS]
    ours = look(ours) or ours
    assert ours.now() == time.monotonic + EPOCH


def test_a_wall_clock_that_is_set_is_followed_a_hundredth_at_a_time(time: FakeTime):
    ours = Clock()
    time.wall_ahead += SECOND
    for _ in range(99):
        before = ours.now()
        time.monotonic += SECOND
        ours.discipline()
        assert ours.now() - before == pytest.approx(1.01 * SECOND, abs=MS)
    ours.discipline()
    assert ours.now() == time.monotonic + time.wall_ahead
    time.wall_ahead -= 25 * MS
    for ahead in (15, 5, 0):
        ours.discipline()
        assert ours.now() == time.monotonic + time.wall_ahead + ahead * MS
