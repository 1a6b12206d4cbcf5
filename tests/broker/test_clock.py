"""Time that never jumps, and the wall's, on a machine that does not always let us look at two clocks at once."""

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
    assert Clock().wall_ahead() == 0


@pytest.mark.parametrize("step", [3600 * SECOND, -3600 * SECOND, 25 * MS])
def test_a_wall_clock_that_is_set_moves_what_is_due_by_nothing(time: FakeTime, step: int):
    ours = Clock()
    before = ours.now()
    time.wall_ahead += step
    time.monotonic += SECOND
    assert ours.now() - before == SECOND
    assert ours.wall_ahead() == step


def test_an_interruption_between_two_looks_does_not_count(time: FakeTime):
    time.interruptions = [3 * MS, 100, 7 * MS]
    ours = Clock()
    assert ours.now() == time.monotonic + EPOCH
    time.interruptions = [3 * MS, 100, 7 * MS]
    assert ours.wall_ahead() == 0
