"""Who holds which lane, how much of the budget each has, and who connects where."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_nsq.connector import placement as placement_module
from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.offsets import INCARNATION_MAX
from pyspark_nsq.connector.placement import Member, Placement, deal
from pyspark_nsq.connector.settings import Address

SOURCES = [Source("topic", Address("127.0.0.1", port)) for port in range(1, 8)]
LEASE_S = 10.0
BUDGET = 1000


@pytest.fixture
def placement() -> Placement:
    return Placement(BUDGET, LEASE_S)


def join(placement: Placement, host: str, now: float = 0) -> Member:
    """A receiver that came and has said something."""
    member = placement.join(host, now)
    assert member
    placement.heard(member, 0, 0, now)
    return member


def obey(placement: Placement, members: Iterable[Member], now: float) -> dict[Member, int]:
    """Give out shares until nothing changes, each obeyed at once by a receiver that uses all it may."""
    while given := placement.shares(now):
        for member, share in given.items():
            placement.heard(member, share.number, share.in_flight_max, now, is_busy=member.is_busy)
    return {member: member.shares[-1].in_flight_max for member in members}


# Lanes and leases.


def test_where_receivers_outnumber_the_budget_those_without_a_share_get_no_sources() -> None:
    placement = Placement(2, LEASE_S)
    members = [join(placement, host) for host in "abc"]
    shares = obey(placement, members, 0)
    assert placement.receiving == [member for member in members if shares[member]]
    assert len(placement.receiving) == 2
    placement.leave(members[0], 1, certainly=True)
    assert placement.receiving == members[1:]


def test_a_receiver_takes_the_lane_of_one_that_is_gone(placement: Placement) -> None:
    first, second = join(placement, "a"), join(placement, "b")
    assert (first.lane, second.lane) == (0, 1)
    placement.leave(first, 1, certainly=True)
    third = join(placement, "c", 2)
    assert (third.lane, third.incarnation) == (0, 1)
    assert placement.incarnations == [1, 0]
    assert placement.live == [third, second]
    assert not placement.holds(first)
    assert placement.at("a") is None
    assert placement.at("c") is third


def test_one_that_never_worked_leaves_no_trace(placement: Placement) -> None:
    member = placement.join("a", 0)
    assert member
    assert placement.live == []
    placement.leave(member, 1, certainly=True)
    assert placement.incarnations == [0]


def test_a_lease_is_kept_by_being_heard_of(placement: Placement) -> None:
    silent, talking = join(placement, "a"), join(placement, "b")
    placement.heard(talking, 0, 0, LEASE_S / 2)
    assert placement.expired(LEASE_S) == []
    assert placement.expired(LEASE_S + 0.1) == [silent]


def test_leaving_twice_counts_once(placement: Placement) -> None:
    member = join(placement, "a")
    placement.leave(member, 1, certainly=True)
    join(placement, "b", 1)
    placement.leave(member, 2, certainly=True)
    assert placement.incarnations == [1]
    assert len(placement.live) == 1


def test_a_batch_without_rows_gets_an_offset_of_its_own(placement: Placement) -> None:
    assert placement.skip() == 0
    assert placement.incarnations == [1]
    assert placement.skip() == 0
    member = join(placement, "a")
    assert (member.lane, member.incarnation) == (0, 2)
    # A lane that somebody holds is not touched.
    assert placement.skip() == 1


def test_lanes_come_to_an_end(placement: Placement, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_module, "LANES_MAX", 2)
    join(placement, "a")
    worn = join(placement, "b")
    assert placement.join("c", 0) is None
    placement.incarnations[1] = INCARNATION_MAX - 1
    placement.leave(worn, 1, certainly=True)
    assert placement.join("c", 1) is None


# Shares.


def test_one_receiver_has_everything(placement: Placement) -> None:
    member = join(placement, "a")
    assert placement.shares(0)[member].in_flight_max == BUDGET
    assert placement.shares(0) == {}


def test_a_second_one_gets_what_the_first_has_let_go_and_not_more(placement: Placement) -> None:
    first = join(placement, "a")
    obey(placement, [first], 0)
    second = join(placement, "b")
    given = placement.shares(0)
    # The first has to be heard of before the second may have anything.
    assert {member: share.in_flight_max for member, share in given.items()} == {first: 500}
    placement.heard(first, given[first].number, 800, 1)
    assert placement.shares(1)[second].in_flight_max == 200
    placement.heard(first, given[first].number, 500, 2)
    assert placement.shares(2)[second].in_flight_max == 500


def test_an_answer_to_an_older_share_frees_nothing(placement: Placement) -> None:
    first, second = join(placement, "a"), join(placement, "b")
    obey(placement, [first, second], 0)
    placement.leave(second, 1, certainly=True)
    more = placement.shares(1)[first]
    assert more.in_flight_max == BUDGET
    third = join(placement, "c", 1)
    less = placement.shares(1)[first]
    # Said before it got more: it will have it for a moment.
    placement.heard(first, more.number - 1, 500, 1)
    assert third not in placement.shares(1)
    placement.heard(first, less.number, 500, 2)
    assert placement.shares(2)[third].in_flight_max == 500


def test_what_a_receiver_may_still_have_waits_for_its_lease(placement: Placement) -> None:
    first, second = join(placement, "a"), join(placement, "b")
    obey(placement, [first, second], 0)
    placement.leave(second, 5, certainly=False)
    assert placement.shares(5) == {}
    assert placement.shares(5 + LEASE_S)[first].in_flight_max == BUDGET


def test_busy_receivers_get_what_idle_ones_do_not_need(placement: Placement) -> None:
    first, second, third, fourth = members = [join(placement, host) for host in "abcd"]
    assert set(obey(placement, members, 0).values()) == {250}
    placement.heard(first, 1, 250, 1, is_busy=True)
    # A quarter of an equal part is enough to show that it has become busy.
    assert obey(placement, members, 1) == {first: 814, second: 62, third: 62, fourth: 62}
    placement.heard(second, 2, 62, 2, is_busy=True)
    given = placement.shares(2)
    # The first has to let go of it before.
    assert {member: share.in_flight_max for member, share in given.items()} == {first: 438}
    placement.heard(first, given[first].number, 600, 3, is_busy=True)
    assert {member: share.in_flight_max for member, share in placement.shares(3).items()} == {second: 276}
    placement.heard(first, given[first].number, 438, 4, is_busy=True)
    assert {member: share.in_flight_max for member, share in placement.shares(4).items()} == {second: 438}
    for member in members:
        placement.heard(member, 0, 0, 5, is_busy=True)
    assert set(obey(placement, members, 5).values()) == {250}


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.booleans()), max_size=60))
def test_together_they_never_have_more_than_the_budget(steps: list[tuple[int, int, bool]]) -> None:
    placement, now = Placement(BUDGET, LEASE_S), 0.0
    # What each receiver obeys, when it hears of it.
    obeyed: dict[Member, int] = {}
    letters: dict[Member, list[tuple[int, int]]] = {}
    # Until when those that are given up, and live, go on.
    given_up: dict[Member, float] = {}
    for what, which, flag in steps:
        now += 1
        for member in [member for member, until in given_up.items() if now >= until]:
            del given_up[member]
            obeyed[member] = 0
        members = [member for member in obeyed if placement.holds(member)]
        if what == 0:
            member = join(placement, f"host {now}", now)
            obeyed[member], letters[member] = 0, []
        elif what == 1 and members:
            member = members[which % len(members)]
            placement.leave(member, now, certainly=flag)
            if flag:
                obeyed[member] = 0
            else:
                given_up[member] = now + LEASE_S
        elif hearing := [member for member in [*members, *given_up] if letters[member]]:
            member = hearing[which % len(hearing)]
            number, obeyed[member] = letters[member].pop(0)
            if flag and placement.holds(member):
                placement.heard(member, number, obeyed[member], now, is_busy=which % 2 == 0)
        for member in members:
            member.heard_at = now
        for member, share in placement.shares(now).items():
            letters[member].append((share.number, share.in_flight_max))
        assert sum(obeyed.values()) <= BUDGET


@given(st.integers(1, 8), st.integers(0, 8))
def test_shares_become_even(before: int, gone: int) -> None:
    placement = Placement(BUDGET, LEASE_S)
    members = [join(placement, str(number)) for number in range(before)]
    obey(placement, members, 0)
    for member in members[: min(gone, before - 1)]:
        placement.leave(member, 1, certainly=True)
    shares = obey(placement, placement.live, 1).values()
    assert sum(shares) == BUDGET
    assert max(shares) - min(shares) <= 1


# Who connects where.


@pytest.mark.parametrize("count", [1, 2, 7])
def test_every_source_has_one_receiver_and_loads_are_even(count: int) -> None:
    dealt = deal(SOURCES, range(count), {})
    loads = [sum(index in receivers for receivers in dealt.values()) for index in range(count)]
    assert all(len(receivers) == 1 for receivers in dealt.values())
    assert max(loads) - min(loads) <= 1


def test_a_source_keeps_its_receiver_when_others_come_and_go() -> None:
    before = deal(SOURCES[:4], range(2), {})
    after = deal(SOURCES[1:], range(2), before)
    assert all(after[source] == before[source] for source in SOURCES[1:4])
    assert after.keys() == set(SOURCES[1:])


def test_where_receivers_outnumber_sources_none_is_idle() -> None:
    dealt = deal(SOURCES[:2], range(5), {})
    assert sorted(index for receivers in dealt.values() for index in receivers) == [0, 1, 2, 3, 4]


def test_a_new_receiver_gets_its_part_and_nothing_else_moves() -> None:
    before = deal(SOURCES[:6], [0, 1], {})
    after = deal(SOURCES[:6], [0, 1, 4], before)
    moved = [source for source in SOURCES[:6] if after[source] != before[source]]
    assert [after[source] for source in moved] == [[4], [4]]


@given(st.integers(1, 7), st.sets(st.integers(0, 9), min_size=1), st.sets(st.integers(0, 9), min_size=1))
def test_any_change_is_dealt_evenly(count: int, first: set[int], second: set[int]) -> None:
    before = deal(SOURCES[:count], sorted(first), {})
    after = deal(SOURCES[:count], sorted(second), before)
    pairs = [(source, receiver) for source, receivers in after.items() for receiver in receivers]
    assert {receiver for _, receiver in pairs} <= second
    for load in (
        [sum(one == source for one, _ in pairs) for source in SOURCES[:count]],
        [sum(one == receiver for _, one in pairs) for receiver in second],
    ):
        assert max(load) - min(load) <= 1
        assert max(load) >= 1
    assert len(pairs) == max(count, len(second))


def test_nobody_to_deal_to() -> None:
    assert deal(SOURCES, [], {}) == deal([], [1, 2], {}) == {}
