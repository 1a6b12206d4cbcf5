import gc

import pytest
from simulation.small_broker import SECOND, Broker

from pyspark_nsq.broker import requeued
from pyspark_nsq.broker import store as store_module
from pyspark_nsq.broker.log import CHUNK_MAX
from pyspark_nsq.broker.segment import SMALL_RECORD_BYTES, Segment

pytestmark = pytest.mark.interpreted  # memory is made small, and looked into

KEPT_BYTES = 1024 * 1024
BODY_BYTES = 1000
LARGE = 2 * SMALL_RECORD_BYTES // BODY_BYTES  # messages of one publish that the log alone may keep


@pytest.fixture(autouse=True)
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_KEPT_BYTES_MAX", KEPT_BYTES)


def body(number: int, size: int = BODY_BYTES) -> bytes:
    return b"%0*d" % (size, number)


def bytes_in_memory(broker: Broker, topic: str) -> int:
    store = broker.engine.topics[topic].store
    return sum(segment.nbytes for segment in store.between(0, 10**9))


def bytes_of_frames() -> int:
    """In all segments that anybody has, other tests too."""
    gc.collect()
    found = [item for item in gc.get_objects() if isinstance(item, Segment)]
    return sum(len(segment._frames) for segment in found if segment._frames is not None)


def taken(broker: Broker, topic: str, channel: str) -> list[bytes]:
    """All that the channel has, a part at a time."""
    group = broker.channel(topic, channel)
    consumer = broker.consumer(group, 2500)
    bodies: list[bytes] = []
    while frames := broker.get(group, consumer):
        bodies += [frame.body for frame in frames]
        assert not group.finish(consumer, b"".join(frame.message_id for frame in frames), broker.now)
    return bodies


@pytest.mark.parametrize("sizes", [(BODY_BYTES,), (BODY_BYTES, BODY_BYTES + 1)], ids=["one size", "two sizes"])
def test_large_publishes_that_wait_are_left_to_the_log(sizes: tuple[int, ...]) -> None:
    broker = Broker(mem_queue_size=10**9)
    for channel in ("one", "other"):
        broker.channel("t", channel)
    published = [body(number, sizes[number % len(sizes)]) for number in range(400 * LARGE)]
    for start in range(0, len(published), LARGE):
        broker.publish("t", *published[start : start + LARGE])
    warm = (store_module._WARM_SEGMENTS + 1) * LARGE * (BODY_BYTES + 40)
    assert bytes_in_memory(broker, "t") < KEPT_BYTES + warm < len(published) * BODY_BYTES // 3
    assert broker.channel("t", "one").backend_depth == 0
    assert taken(broker, "t", "one") == taken(broker, "t", "other") == published
    assert bytes_in_memory(broker, "t") == 0


def test_small_publishes_stay_in_memory() -> None:
    """To gather their records again would take longer."""
    broker = Broker(mem_queue_size=10**9)
    broker.channel("t", "c")
    published = [body(number) for number in range(6000)]
    for start in range(0, len(published), 3):
        broker.publish("t", *published[start : start + 3])
    assert bytes_in_memory(broker, "t") > len(published) * BODY_BYTES > 4 * KEPT_BYTES
    assert taken(broker, "t", "c") == published


def test_what_has_no_log_stays_in_memory() -> None:
    broker = Broker(mem_queue_size=10**9)
    broker.channel("t#ephemeral", "c")
    published = [body(number) for number in range(200 * LARGE)]
    for start in range(0, len(published), LARGE):
        broker.publish("t#ephemeral", *published[start : start + LARGE])
    assert taken(broker, "t#ephemeral", "c") == published


def test_memory_is_there_again_when_somebody_has_read() -> None:
    broker = Broker(mem_queue_size=10**9)
    broker.channel("t", "c")
    for _ in range(2):
        published = [body(number) for number in range(200 * LARGE)]
        for start in range(0, len(published), LARGE):
            broker.publish("t", *published[start : start + LARGE])
        assert bytes_in_memory(broker, "t") > KEPT_BYTES
        assert taken(broker, "t", "c") == published


@pytest.mark.parametrize("size", [10, BODY_BYTES], ids=["small", "large"])
def test_who_reads_from_the_log_takes_from_memory_what_is_there(size: int) -> None:
    """What it had read ahead would wait in memory for ever."""
    broker = Broker(mem_queue_size=5 * LARGE)
    broker.channel("t", "c")
    published = [body(number, size) for number in range(20 * LARGE)]
    for start in range(0, len(published), LARGE):
        broker.publish("t", *published[start : start + LARGE])
    assert bytes_in_memory(broker, "t") > 0
    assert taken(broker, "t", "c") == published
    assert bytes_in_memory(broker, "t") == 0


def test_channels_at_the_same_place_read_once_and_leave_nothing() -> None:
    broker = Broker(mem_queue_size=0)
    names = ("one", "other", "third")
    consumers = {name: broker.consumer(broker.channel("t", name)) for name in names}
    published = [body(number) for number in range(3000)]
    for start in range(0, len(published), 10):
        broker.publish("t", *published[start : start + 10])
    store = broker.engine.topics["t"].store
    assert store.log is not None
    read, reads = store.log.read, []
    store.log.read = lambda seq, *rest: reads.append(seq) or read(seq, *rest)  # type: ignore[method-assign, func-returns-value]
    for start in range(0, len(published), 20):
        for name in names:
            frames = broker.get(broker.channel("t", name), consumers[name], 20)
            assert [frame.body for frame in frames] == published[start : start + 20]
    assert 1 < len(reads) == len(set(reads)) < 100
    for name in names:
        broker.channel("t", name).empty(broker.now)
    gc.collect()
    assert not store._read


def test_a_few_messages_in_flight_do_not_keep_all_that_came_with_them() -> None:
    others = bytes_of_frames()
    broker = Broker(mem_queue_size=0)
    channel = broker.channel("t", "c")
    published = [body(number) for number in range(100 * LARGE)]
    for start in range(0, len(published), LARGE):
        broker.publish("t", *published[start : start + LARGE])
    slow, quick = broker.consumer(channel), broker.consumer(channel)
    for _ in range(100):
        assert len(broker.get(channel, slow, 1)) == 1
        frames = broker.get(channel, quick, LARGE - 1)
        assert not channel.finish(quick, b"".join(frame.message_id for frame in frames), broker.now)
    assert channel.in_flight_count == 100
    assert bytes_of_frames() - others < 10 * LARGE * BODY_BYTES
    broker.wait(60 * SECOND)
    again = broker.get(channel, quick)
    assert [frame.body for frame in again] == published[::LARGE]
    assert {frame.attempts for frame in again} == {2}


def test_what_comes_back_is_in_memory_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    others = bytes_of_frames()
    monkeypatch.setattr(requeued, "_HELD_BYTES_MAX", KEPT_BYTES)
    broker = Broker(mem_queue_size=0)
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    published = [body(number) for number in range(400 * LARGE)]
    for start in range(0, len(published), LARGE):
        broker.publish("t", *published[start : start + LARGE])
    for _ in range(400):
        frames = broker.get(channel, consumer, LARGE)
        assert not channel.requeue(consumer, b"".join(frame.message_id for frame in frames), 0, broker.now)
    assert channel.depth == len(published)
    assert bytes_of_frames() - others < KEPT_BYTES + 2 * CHUNK_MAX < len(published) * BODY_BYTES // 3
    again = [frame for _ in range(400) for frame in broker.get(channel, consumer, LARGE)]
    assert sorted(frame.body for frame in again) == published
    assert {frame.attempts for frame in again} == {2}
