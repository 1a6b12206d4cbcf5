"""One heap for all deadlines: what is due is called, in time order, and only then."""

from pyspark_nsq.broker.timers import NEVER, Timers


class Member:
    def __init__(self, deadline: int, period: int = 0) -> None:
        self.timer_at = 0
        self.deadline = deadline
        self.calls: list[int] = []
        self._period = period

    def on_time(self, now: int) -> None:
        self.calls.append(now)
        self.deadline = now + self._period if self._period else NEVER


def test_due_once_and_then_never_again():
    timers, member = Timers(), Member(10)
    timers.watch(member)
    timers.run(9)
    assert member.calls == []
    timers.run(10)
    timers.run(1000)
    assert member.calls == [10]
    assert timers.next_deadline == NEVER


def test_periodic():
    timers, member = Timers(), Member(10, period=10)
    timers.watch(member)
    for now in (10, 15, 20, 30):
        timers.run(now)
    assert member.calls == [10, 20, 30]


def test_a_deadline_that_moved_later_needs_no_word():
    timers, member = Timers(), Member(10)
    timers.watch(member)
    member.deadline = 50
    timers.run(10)
    assert member.calls == []
    assert timers.next_deadline == 50
    timers.run(50)
    assert member.calls == [50]


def test_a_nearer_deadline_counts_from_the_moment_it_is_told():
    timers, member = Timers(), Member(100)
    timers.watch(member)
    member.deadline = 20
    timers.watch(member)
    assert timers.next_deadline == 20
    timers.run(20)
    timers.run(100)
    assert member.calls == [20]


def test_members_that_have_ended_are_dropped():
    timers, member = Timers(), Member(10)
    timers.watch(member)
    member.deadline = NEVER
    timers.run(10)
    assert member.calls == []
    assert timers.next_deadline == NEVER
