from hypothesis import given
from hypothesis import strategies as st
from simulation.small_broker import Broker

from pyspark_nsq.broker.segment import Segment, build_frame, new_segment
from pyspark_nsq.broker.store import Store

NOW = 1_763_000_000_000_000_000
PREFIX = b"189f6f9352400"


def published(sizes: list[int], first: int = 0, base: int = 0, now: int = NOW) -> Segment:
    bodies = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    return new_segment(bodies, sizes, base, PREFIX, first, now, 0)


@given(st.integers(1, 300), st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 3800))
def test_what_was_packed_comes_back_as_it_was(size: int, counts: list[int], first: int) -> None:
    """Also of messages that were published one after the other, each with its time."""
    segment = published([size] * counts[0], first)
    for number, count in enumerate(counts[1:]):
        at = segment.count
        assert segment.absorb(published([size] * count, first + at, at, NOW + number))
    frames = segment.frames
    segment.pack()
    assert segment._frames is None
    assert segment.slice(1, segment.count - 1) == frames[size + 34 :]
    assert segment.frames == frames


def test_what_cannot_be_computed_is_kept() -> None:
    foreign = build_frame(NOW, 7, b"any 16 characters"[:16], b"body")
    for segment in (published([3, 4]), published([5000]), Segment(0, 1, foreign, len(foreign))):
        frames = segment.frames
        segment.pack()
        assert segment._frames is frames


def test_nothing_joins_what_is_packed() -> None:
    segment = published([3, 3])
    segment.pack()
    assert not segment.absorb(published([3], 2, 2))


def test_segments_that_wait_are_packed_and_the_newest_are_not() -> None:
    store = Store(None, 10**9)
    segments = [published([9] * 512, 0, 512 * number) for number in range(200)]
    for segment in segments:
        store.append(segment)
    packed = [segment._frames is None for segment in segments]
    assert packed[0]
    assert not packed[-1]
    assert packed == sorted(packed, reverse=True)


def test_many_that_wait_share_large_pieces_of_memory() -> None:
    store = Store(None, 10**9)
    segments = [published([99] * 512, 0, 512 * number) for number in range(400)]
    frames = segments[0].frames
    for segment in segments:
        store.append(segment)
    shared = [isinstance(segment._packed.bodies, memoryview) for segment in segments if segment._packed]
    assert not shared[0]
    assert shared[-1]
    assert shared == sorted(shared)
    assert {segment.frames for segment in segments} == {frames}


def test_a_channel_that_lags_gets_the_same_frames() -> None:
    broker = Broker(mem_queue_size=10**9)
    early, late = broker.channel("t", "early"), broker.channel("t", "late")
    ahead, behind = broker.consumer(early), broker.consumer(late)
    taken = []
    for number in range(150):
        broker.publish("t", *[b"%03d" % number] * 600)
        taken += broker.get(early, ahead)
    assert taken == [frame for _ in range(90) for frame in broker.get(late, behind)]
    assert len(taken) == 150 * 600
