from typing import Any

from simulation.small_broker import Broker

from pyspark_nsq.broker.read_cache import ReadCache
from pyspark_nsq.broker.segment import Segment, build_frame

FRAME = build_frame(1, 1, b"0123456789abcdef", bytes(66))


def segment(base: int) -> Segment:
    return Segment(base, 1, FRAME, len(FRAME))


def test_it_keeps_so_much_and_forgets_what_nobody_asked_for_longest() -> None:
    cache = ReadCache(3 * len(FRAME))
    log: Any = object()
    first, second, third = map(segment, range(3))
    cache.keep(log, [first, second, third])
    assert cache.get(log, 0) is first
    cache.keep(log, [segment(3)])
    assert [cache.get(log, base) is not None for base in range(4)] == [True, False, True, True]
    assert cache.nbytes == 3 * len(FRAME)
    again = segment(3)
    cache.keep(log, [again])
    assert cache.get(log, 3) is again
    assert cache.nbytes == 3 * len(FRAME)


def test_logs_do_not_get_each_others() -> None:
    cache = ReadCache()
    one: Any = object()
    other: Any = object()
    cache.keep(one, [segment(0)])
    cache.keep(other, [segment(1)])
    assert cache.get(other, 0) is None
    cache.forget(one)
    assert cache.get(one, 0) is None
    assert cache.get(other, 1) is not None
    assert cache.nbytes == len(FRAME)


def test_channels_at_the_same_place_read_once() -> None:
    broker = Broker(mem_queue_size=0)
    names = ("one", "other", "third")
    for name in names:
        broker.channel("t", name)
    for number in range(500):
        broker.publish("t", b"%d" % number * 100)
    reads: list[int] = []
    log = broker.engine.topics["t"].store.log
    assert log is not None
    read = log.read
    log.read = lambda seq, *rest: reads.append(seq) or read(seq, *rest)  # type: ignore[method-assign, func-returns-value]
    for name in names:
        channel = broker.channel("t", name)
        assert len(broker.get(channel, broker.consumer(channel))) == 500
    assert reads
    assert len(reads) == len(set(reads))


def test_a_deleted_topic_leaves_nothing() -> None:
    broker = Broker(mem_queue_size=0)
    channel = broker.channel("t", "c")
    broker.publish("t", b"body")
    assert len(broker.get(channel, broker.consumer(channel))) == 1
    cache = broker.engine._shared.read_cache
    assert cache.nbytes > 0
    broker.engine.delete_topic("t", broker.now)
    assert cache.nbytes == 0
