"""Ranges of batches, their division into tasks, and windows: numbers in, numbers out."""

from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.connector.offsets import first_position
from pyspark_nsq.connector.planning import LaneRange, available, cut_off, divide, limit_ends
from pyspark_nsq.connector.windows import connections_for, share_budget, split_evenly, split_window


def test_what_died_with_a_receiver_is_not_available() -> None:
    assert available(50, 70) == LaneRange(0, 50, 70)
    assert available(50, first_position(2) + 7) == LaneRange(0, first_position(2), first_position(2) + 7)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=5), st.integers(1, 3000))
def test_a_limit_is_used_up_and_not_passed(lanes: list[tuple[int, int]], count_max: int) -> None:
    starts = [start for start, _ in lanes]
    ends = [start + count for start, count in lanes]
    limited = limit_ends(starts, ends, count_max)
    assert all(start <= end <= most for start, end, most in zip(starts, limited, ends, strict=True))
    assert sum(limited) - sum(starts) == min(count_max, sum(count for _, count in lanes))


def test_a_limit_leaves_lanes_with_nothing_where_they_are() -> None:
    # The second lane's receiver was started again and has nothing yet: its lost range is not passed over unseen.
    assert limit_ends([10, 20], [15, first_position(1)], 3) == [13, 20]


def test_ends_are_cut_off_and_lanes_that_came_later_give_nothing() -> None:
    assert cut_off([5, 30, 0], [10, 40, 7], [8, 20]) == [8, 30, 0]


@given(st.lists(st.integers(0, 1000), max_size=5), st.integers(1, 20))
def test_parts_cover_the_ranges_without_gap(sizes: list[int], count: int) -> None:
    ranges = [LaneRange(lane, 100 * lane, 100 * lane + size) for lane, size in enumerate(sizes)]
    parts = divide(ranges, count)
    for whole in ranges:
        own = [part for part in parts if part.lane == whole.lane]
        covered = [position for part in own for position in range(part.first, part.end)]
        assert covered == list(range(whole.first, whole.end))
    assert all(part.first < part.end for part in parts)
    assert len(parts) <= count + len(ranges)


def test_parts_are_even_and_as_many_as_asked_for() -> None:
    assert divide([LaneRange(0, 0, 10)], 3) == [LaneRange(0, 0, 4), LaneRange(0, 4, 7), LaneRange(0, 7, 10)]
    assert divide([LaneRange(0, 5, 7)], 8) == [LaneRange(0, 5, 6), LaneRange(0, 6, 7)]
    assert divide([LaneRange(0, 5, 5)], 8) == []


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 1000))
def test_windows_never_exceed_the_budget_and_use_it(busy: list[bool], budget: int) -> None:
    windows = share_budget(busy, budget)
    assert len(windows) == len(busy)
    assert sum(windows) == (budget if busy else 0) or any(busy)
    assert sum(windows) <= budget
    if budget >= len(busy):
        assert all(windows)


def test_busy_sources_share_what_idle_ones_do_not_need() -> None:
    assert share_budget([True, False, False, False], 400) == [325, 25, 25, 25]
    assert share_budget([False, False], 400) == [200, 200]
    assert share_budget([True, True], 401) == [201, 200]


def test_a_window_takes_as_many_connections_as_rdy_demands() -> None:
    assert connections_for(400_000, 2500) == 160
    assert connections_for(0, 2500) == connections_for(2500, 2500) == 1
    assert split_window(5001, 3, 2500) == [1667, 1667, 1667]
    assert split_window(400_000, 2, 2500) == [2500, 2500]
    assert split_evenly(7, 3) == [3, 2, 2]
