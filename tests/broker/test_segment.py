import struct

from hypothesis import given
from hypothesis import strategies as st
from simulation.frames import parse
from simulation.uniform import together

from pyspark_nsq.broker.arena import Arena
from pyspark_nsq.broker.segment import (
    MAX_ATTEMPTS,
    Segment,
    build_frame,
    new_segment,
    record_at,
    uniform_segment,
)
from pyspark_nsq.proto.uniform import UniformBodies

NOW = 1_763_000_000_000_000_000
PREFIX = b"189f6f9352400"
bodies_lists = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30)


def segment_of(bodies: list[bytes], base: int = 0, first: int = 0, due: int = 0) -> Segment:
    return new_segment(bodies, list(map(len, bodies)), base, PREFIX, first, NOW, due)


def plain_frame(body: bytes, number: int) -> bytes:
    """A frame as the protocol describes it."""
    message = struct.pack(">qH", NOW, 1) + PREFIX + b"%03x" % number + body
    return struct.pack(">II", len(message) + 4, 2) + message


@given(bodies_lists, st.booleans(), st.integers(0, 4066))
def test_frames_are_what_the_protocol_says(bodies: list[bytes], same_size: bool, first: int) -> None:
    if same_size:
        bodies = [body[:1] * 7 for body in bodies]
    segment = segment_of(bodies, first=first)
    assert segment.frames == b"".join(plain_frame(body, first + at) for at, body in enumerate(bodies))
    assert bool(segment.frame_size) == (len(set(map(len, bodies))) == 1)


@given(bodies_lists, st.data())
def test_slices_offsets_and_ids_agree_with_the_frames(bodies: list[bytes], data: st.DataObject) -> None:
    segment = segment_of(bodies, first=9)
    index = data.draw(st.integers(0, len(bodies) - 1))
    count = data.draw(st.integers(1, len(bodies) - index))
    frames = parse([segment.slice(index, count)])
    assert [frame.body for frame in frames] == bodies[index : index + count]
    assert segment.ids(index, count) == b"".join(frame.message_id for frame in frames)
    assert segment.index_of(frames[0].message_id[13:]) == index
    room = data.draw(st.integers(-5, 2000))
    sizes = [len(body) + 34 for body in bodies[index : index + count]]
    fitting = max(at for at in range(count + 1) if sum(sizes[:at]) <= max(room, 0))
    assert segment.fitting(index, count, room) == fitting


@given(st.lists(bodies_lists, min_size=2, max_size=5))
def test_segments_that_follow_each_other_join_until_somebody_reads(groups: list[list[bytes]]) -> None:
    base = 100
    joined = segment_of(groups[0], base, 0)
    for group in groups[1:]:
        assert joined.absorb(segment_of(group, joined.end, joined.count))
    bodies = [body for group in groups for body in group]
    assert joined.frames == segment_of(bodies, base, 0).frames
    assert joined.frame_size == (len(bodies[0]) + 34 if len(set(map(len, bodies))) == 1 else 0)
    joined.sealed = True
    assert not joined.absorb(segment_of([b"x"], joined.end, joined.count))


def test_segments_do_not_join_across_a_gap_another_tick_or_a_delay() -> None:
    def first() -> Segment:
        return segment_of([b"one"])

    assert first().absorb(segment_of([b"two"], 1, 1))
    assert not first().absorb(segment_of([b"two"], 2, 1))
    assert not first().absorb(segment_of([b"two"], 1, 2))
    assert not first().absorb(segment_of([b"two"], 1, 1, due=5))
    other_tick = new_segment([b"two"], [3], 1, PREFIX[:-1] + b"1", 1, NOW, 0)
    assert not first().absorb(other_tick)


@given(bodies_lists, st.integers(1, 70_000))
def test_redelivery_adds_attempts_and_stops_at_the_highest(bodies: list[bytes], extra: int) -> None:
    segment = segment_of(bodies)
    frames = parse([segment.redelivery(0, len(bodies), extra)])
    assert [frame.body for frame in frames] == bodies
    assert {frame.attempts for frame in frames} == {min(1 + extra, MAX_ATTEMPTS)}
    assert {frame.attempts for frame in parse([segment.frames])} == {1}


def test_foreign_ids_are_found_whole() -> None:
    frame = build_frame(NOW, 3, b"any sixteen byte", b"body")
    segment = Segment(0, 1, frame, len(frame))
    assert segment.key == b"any sixteen byte"
    assert segment.ids(0, 1) == b"any sixteen byte"


def packed(bodies: list[bytes], base: int = 0, first: int = 0, due: int = 0) -> Segment:
    """The same as `segment_of`, of bodies of one size that came in one piece."""
    uniform = together(bodies)
    assert isinstance(uniform, UniformBodies)
    return uniform_segment(uniform, base, PREFIX, first, NOW, due)


@given(st.integers(1, 40), st.integers(1, 30), st.integers(0, 4066), st.data())
def test_packed_from_the_start_is_the_same(size: int, count: int, first: int, data: st.DataObject) -> None:
    bodies = [bytes([number]) * size for number in range(count)]
    plain, other = segment_of(bodies, 7, first), packed(bodies, 7, first)
    assert (other.base, other.end, other.nbytes, other.frame_size) == (7, 7 + count, plain.nbytes, plain.frame_size)
    assert (other.prefix, other.first, other.timestamp) == (plain.prefix, plain.first, plain.timestamp)
    other.pack(data.draw(st.sampled_from([None, Arena()])))
    index = data.draw(st.integers(0, count - 1))
    assert other.slice(index, count - index) == plain.slice(index, count - index)
    assert other.frames == plain.frames
    other.pack()
    assert other.redelivery(index, 1, 3) == plain.redelivery(index, 1, 3)


def test_nothing_joins_what_came_packed() -> None:
    assert not packed([b"one"]).absorb(segment_of([b"two"], 1, 1))
    assert not segment_of([b"one"]).absorb(packed([b"two"], 1, 1))


@given(bodies_lists, st.booleans(), st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1))
def test_records_come_back_and_any_change_shows(bodies: list[bytes], is_packed: bool, salt: int, due: int) -> None:
    if is_packed:
        bodies = [body[:1] * 7 for body in bodies]
    segment = (packed if is_packed else segment_of)(bodies, base=12345, first=1, due=due)
    data = b"before" + b"".join(segment.record(salt)) + b"after"
    record = record_at(data, 6)
    assert record is not None
    assert 6 + record.whole == len(data) - 5
    assert record.intact(data, salt)
    assert record.last_id(data) == int(PREFIX + b"%03x" % len(bodies), 16)
    back = record.segment(data)
    assert (back.base, back.count, back.due, back.nbytes) == (12345, len(bodies), due, segment.nbytes)
    assert (back.frame_size, back.prefix, back.first) == (segment.frame_size, segment.prefix, segment.first)
    assert back.frames == segment.frames
    assert not record.intact(data, salt ^ 1)
    for position in range(6, 6 + record.whole):
        changed = bytearray(data)
        changed[position] ^= 1
        other = record_at(bytes(changed), 6)
        assert other is None or not other.intact(bytes(changed), salt)
