"""One heap for all deadlines: what is due is called, in time order, and only then."""

import weakref

import pytest

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


def test_members_that_are_forgotten_are_let_go_of_long_before_they_were_due():
    timers, members = Timers(), [Member(1000 + number) for number in range(1000)]
    for member in members + [Member(2000) for _ in range(50)]:
        timers.watch(member)
    alive = [weakref.ref(member) for member in members]
    for member in members:
        timers.forget(member)
    del member
    members.clear()
    assert sum(ref() is not None for ref in alive) <= 64
    timers.run(3000)
    assert timers.next_deadline == NEVER


@pytest.mark.interpreted
def test_a_member_that_forgets_others_in_its_turn_is_followed_by_the_rest():
    timers = Timers()
    members = [Member(10 + number) for number in range(1000)]
    for member in members:
        timers.watch(member)
    first, *doomed = members[:800]
    first.on_time = lambda _now: [timers.forget(member) for member in doomed]  # type: ignore[method-assign]
    first.deadline = 5
    timers.watch(first)
    timers.run(2000)
    assert [len(member.calls) for member in members] == [0] * 800 + [1] * 200


def test_deadlines_that_moved_nearer_leave_nothing_behind_for_long():
    timers, member = Timers(), Member(100_000)
    for deadline in range(100_000, 1000, -1):
        member.deadline = deadline
        timers.watch(member)
    assert len(timers._heap) < 200
    timers.run(1001)
    assert member.calls == [1001]
