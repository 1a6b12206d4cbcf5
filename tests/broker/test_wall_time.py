"""The system's clock is set, or its host was suspended: what follows it, and what does not."""

import pytest
from simulation.session_world import SECOND, World, greeted
from simulation.small_broker import Broker, bodies

from pyspark_nsq.broker.message_id import TICK_SHIFT, TICKS_EPOCH

HOUR = 3600 * SECOND


def set_clock(broker: Broker, step: int) -> None:
    broker.engine.follow_wall(step, broker.now)


@pytest.mark.parametrize("step", [8 * HOUR, -8 * HOUR])
def test_messages_are_dated_by_the_wall_at_once(step: int) -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    set_clock(broker, step)
    broker.publish("t", b"x")
    (frame,) = broker.get(channel, consumer)
    assert frame.timestamp == broker.now + step
    assert int(frame.message_id, 16) >> 22 == (broker.now + step >> TICK_SHIFT) - TICKS_EPOCH


def test_ids_ascend_though_the_clock_is_set_back() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    broker.publish("t", b"1")
    set_clock(broker, -8 * HOUR)
    for _ in range(5):
        broker.wait(SECOND)
        broker.publish("t", b"2")
    ids = [frame.message_id for frame in broker.get(channel, consumer)]
    assert ids == sorted(set(ids))


@pytest.mark.parametrize("step", [8 * HOUR, -8 * HOUR])
def test_what_is_in_flight_times_out_when_its_time_has_gone_by(step: int) -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    broker.publish("t", b"x")
    assert broker.get(channel, consumer)
    set_clock(broker, step)
    broker.wait(59 * SECOND)
    assert channel.in_flight_count == 1
    broker.wait(SECOND)
    assert channel.in_flight_count == 0
    assert channel.timeout_count == 1


def defer(broker: Broker, how: str) -> None:
    """A message of the channel is not to be delivered for an hour."""
    channel = broker.channel("t", "c")
    topic = broker.engine.topics["t"]
    if how == "requeued":
        consumer = broker.consumer(channel)
        broker.publish("t", b"x")
        (frame,) = broker.get(channel, consumer)
        channel.requeue(consumer, frame.message_id, HOUR, broker.now)
        return
    if how != "published":
        topic.pause(broker.now)
    broker.publish("t", b"x", defer_ns=HOUR)
    if how != "published":
        topic.unpause(broker.now)


HOW = ["published", "requeued", "held back", "read back"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("restarted", [False, True], ids=["", "restarted"])
@pytest.mark.parametrize(("step", "rest"), [(HOUR // 2, HOUR // 2), (2 * HOUR, 0), (-HOUR, 2 * HOUR)])
def test_what_is_deferred_is_due_by_the_wall(how: str, restarted: bool, step: int, rest: int) -> None:
    broker = Broker(mem_queue_size=0 if how == "read back" else 100)
    defer(broker, how)
    set_clock(broker, step)
    if restarted:
        broker.engine.close(broker.now)
        broker.now += step  # where a new start begins to count
        broker.open()
        broker.engine.tick(broker.now)
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    if rest:
        broker.wait(rest - 1)
        assert not broker.get(channel, consumer)
        assert broker.engine._shared.next_timer == broker.now + 1
    broker.wait(1)
    assert bodies(broker.get(channel, consumer)) == [b"x"]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("step", [8 * HOUR, -8 * HOUR])
def test_what_is_deferred_after_the_clock_was_set_waits_as_long(how: str, step: int) -> None:
    broker = Broker(mem_queue_size=0 if how == "read back" else 100)
    channel = broker.channel("t", "c")
    set_clock(broker, step)
    broker.publish("t", b"later", defer_ns=2 * HOUR)
    defer(broker, how)
    assert channel.deferred_count == (1 if how == "read back" else 2)  # those are looked at when they are read
    consumer = broker.consumer(channel)
    broker.wait(HOUR - 1)
    assert not broker.get(channel, consumer)
    assert broker.engine._shared.next_timer == broker.now + 1
    broker.wait(1)
    assert bodies(broker.get(channel, consumer)) == [b"x"]


def test_what_is_deferred_after_the_clock_was_set_is_due_by_the_wall_after_a_restart() -> None:
    broker = Broker()
    broker.channel("t", "c")
    set_clock(broker, 8 * HOUR)
    broker.publish("t", b"x", defer_ns=HOUR)
    broker.engine.close(broker.now)
    broker.now += 8 * HOUR
    broker.open()
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    broker.wait(HOUR - 1)
    assert not broker.get(channel, consumer)
    broker.wait(1)
    assert broker.get(channel, consumer)


def test_a_wall_clock_that_drifts_moves_what_is_deferred_now_and_then() -> None:
    """Not every channel every second, but never by much too late."""
    broker = Broker()
    broker.channel("t", "c")
    broker.publish("t", b"x", defer_ns=HOUR)
    due, shared = broker.now + HOUR, broker.engine._shared
    for ahead in range(0, SECOND // 4, SECOND // 2000):
        set_clock(broker, ahead)
        assert due - ahead <= shared.next_timer <= due - ahead + SECOND // 100
        broker.wait(SECOND)
    assert len(shared._timers) < 30


def test_latency_is_the_time_since_the_publish_by_the_wall() -> None:
    broker = Broker(e2e_percentiles=(1.0,))
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    set_clock(broker, 8 * HOUR)
    broker.publish("t", b"x")
    broker.wait(SECOND)
    (frame,) = broker.get(channel, consumer)
    channel.finish(consumer, frame.message_id, broker.now)
    ((_, latency),) = channel.latency(broker.now)
    assert latency == pytest.approx(SECOND, rel=0.02)


def test_connections_are_dated_by_the_wall_and_live_by_time(world: World) -> None:
    client = greeted(world)
    world.engine.follow_wall(8 * HOUR, world.now)
    world.sleep(59 * SECOND, client)
    assert not client.session.finished
    assert greeted(world).session.connected_at == world.now + 8 * HOUR
