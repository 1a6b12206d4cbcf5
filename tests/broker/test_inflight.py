"""Runs in flight against a plain dict of messages."""

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given, settings

from pyspark_nsq.broker.inflight import MERGE_WITHIN_NS, InFlight
from pyspark_nsq.broker.segment import Segment, new_segment

NOW = 1_763_000_000_000_000_000
TIMEOUT = 10**9


def segment_of(number: int, count: int = 12) -> Segment:
    bodies = [b"x"] * count
    return new_segment(bodies, [1] * count, number * count, b"%013x" % (number // 2), number % 2 * count, NOW, 0)


def message_id(segment: Segment, index: int) -> bytes:
    return segment.ids(index, 1)


@dataclass
class Expected:
    deadline: int
    extra: int


@settings(max_examples=60)
@given(st.data())
def test_runs_agree_with_single_messages(data: st.DataObject) -> None:
    in_flight = InFlight()
    segments = [segment_of(number) for number in range(4)]
    expected: dict[tuple[int, int], Expected] = {}
    now = NOW
    for _ in range(data.draw(st.integers(1, 40))):
        # Farther apart than what may share a deadline, or not apart at all.
        now += data.draw(st.sampled_from([0, 2 * MERGE_WITHIN_NS, TIMEOUT // 3]))
        action = data.draw(st.sampled_from(["add", "add", "take", "retime", "expire"]))
        if action == "add":
            at = data.draw(st.integers(0, 3))
            free = [index for index in range(12) if (at, index) not in expected]
            if free:
                index = data.draw(st.sampled_from(free))
                count = next((n for n in range(1, 5) if index + n not in free), 4)
                extra = data.draw(st.integers(0, 1))
                in_flight.add(segments[at], index, count, extra, now, now + TIMEOUT)
                expected.update(((at, index + n), Expected(now + TIMEOUT, extra)) for n in range(count))
        elif action == "expire":
            expired = {
                (segments.index(run.segment), index + n): run.extra
                for run in in_flight.expire(now)
                for index, count in run.pieces()
                for n in range(count)
            }
            due = {key: value.extra for key, value in expected.items() if value.deadline <= now}
            assert expired == due
            expected = {key: value for key, value in expected.items() if key not in due}
        elif expected:
            at, index = data.draw(st.sampled_from(sorted(expected)))
            wanted = data.draw(st.integers(1, 6))
            ids = b"".join(message_id(segments[at], (index + n) % 12) for n in range(wanted))
            found = in_flight.match(b"??" + ids, 2)
            assert found is not None
            run, start, count = found
            assert (run.segment, start) == (segments[at], index)
            assert 1 <= count <= wanted
            taken = [(at, index + n) for n in range(count)]
            assert all(key in expected for key in taken)
            if action == "take":
                in_flight.take(run, start, count)
                for key in taken:
                    del expected[key]
            else:
                deadline = now + data.draw(st.sampled_from([TIMEOUT, TIMEOUT // 2]))
                in_flight.retime(run, start, count, deadline)
                for key in taken:
                    expected[key].deadline = deadline
        check(in_flight, segments, expected)


def check(in_flight: InFlight, segments: list[Segment], expected: dict[tuple[int, int], Expected]) -> None:
    present = {
        (segments.index(run.segment), index + n): Expected(run.deadline, run.extra)
        for run in in_flight.runs()
        for index, count in run.pieces()
        for n in range(count)
    }
    assert present == expected
    for at, segment in enumerate(segments):
        for index in range(segment.count):
            assert (in_flight.find(message_id(segment, index)) is not None) == ((at, index) in expected)
    if expected:
        assert in_flight.next_deadline <= min(value.deadline for value in expected.values())


def test_a_whole_run_is_recognised_at_once_and_only_as_far_as_it_is_one() -> None:
    in_flight = InFlight()
    segment = segment_of(0)
    in_flight.add(segment, 0, 12, 0, NOW, NOW + TIMEOUT)
    ids = segment.ids(0, 12)
    cases = [(ids, 12), (ids + ids, 12), (ids[:-16], 11), (ids[: 16 * 5] + ids[16 * 6 :], 5), (ids[-16:] + ids, 1)]
    for named, count in cases:
        found = in_flight.match(named, 0)
        assert found is not None
        assert found[2] == count
    assert in_flight.match(b"f" * 16, 0) is None


def test_finished_runs_behind_a_stuck_message_are_forgotten() -> None:
    in_flight = InFlight()
    stuck = segment_of(0)
    in_flight.add(stuck, 0, 1, 0, NOW, NOW + TIMEOUT)
    for number in range(1, 2000):
        segment = segment_of(number)
        in_flight.add(segment, 0, 12, 0, NOW, NOW + TIMEOUT)
        found = in_flight.match(segment.ids(0, 12), 0)
        assert found is not None
        in_flight.take(*found)
    assert len(in_flight._queue) < 200
    assert [run.segment for run in in_flight.expire(NOW + TIMEOUT)] == [stuck]
