"""What the model of test_engine_model leaves out: delivery in detail, deferral, ephemerals."""

import pytest
from simulation.frames import parse
from simulation.small_broker import NOW, SECOND, Broker, bodies

from pyspark_nsq.broker.consumer import NOT_IN_FLIGHT, NOT_OWNER
from pyspark_nsq.broker.engine import Event
from pyspark_nsq.broker.inflight import InFlight, Run

# --- delivery --------------------------------------------------------------------------------------------------------


def test_backlog_goes_to_the_first_channel_only() -> None:
    broker = Broker()
    broker.publish("t", b"1", b"2")
    first, second = broker.channel("t", "first"), broker.channel("t", "second")
    broker.publish("t", b"3")
    assert bodies(broker.get(first, broker.consumer(first))) == [b"1", b"2", b"3"]
    assert bodies(broker.get(second, broker.consumer(second))) == [b"3"]


def test_a_topic_that_is_not_started_holds_its_messages() -> None:
    broker = Broker()
    topic = broker.engine.topic("t", NOW)
    channel = topic.channel("c", NOW)
    topic.publish([b"1"], NOW)
    broker.engine.commit(NOW)
    assert (topic.depth, channel.depth) == (1, 0)
    topic.start(NOW)
    assert (topic.depth, channel.depth) == (0, 1)


def test_the_list_of_bodies_may_be_reused_and_batches_of_any_size_arrive_in_order() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    topic = broker.engine.topics["t"]
    batch = [b"%d" % number for number in range(10_000)]
    expected = batch[:]
    topic.publish(batch, NOW)
    batch[:] = [b"big" * 100_000, b"small"]
    expected += batch
    topic.publish(batch, NOW)
    batch.clear()
    broker.engine.commit(NOW)
    frames = broker.get(channel, broker.consumer(channel), 20_000)
    while len(frames) < len(expected):
        frames += broker.get(channel, channel.consumers[0], 20_000)
    assert bodies(frames) == expected
    ids = [int(frame.message_id, 16) for frame in frames]
    assert ids == sorted(set(ids))


def test_a_message_larger_than_the_room_comes_alone() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    broker.publish("t", b"x" * 500, b"y")
    consumer = broker.consumer(channel)
    buffers, count = channel.deliver(consumer, NOW, 10, 100)
    assert (count, len(parse(buffers))) == (1, 1)


def test_sample_rate_passes_about_that_share_and_drops_the_rest_for_the_channel() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    broker.publish("t", *[b"x"] * 4000)
    consumer = broker.consumer(channel)
    consumer.sample_rate = 25
    frames = broker.get(channel, consumer, 4000)
    assert 800 < len(frames) < 1200
    assert (channel.depth, channel.in_flight_count) == (0, len(frames))
    assert not channel.finish(consumer, b"".join(frame.message_id for frame in frames), NOW)


def test_a_sample_takes_no_more_than_the_room_there_is() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    broker.publish("t", *[b"x" * 1000] * 1000)
    consumer = broker.consumer(channel)
    consumer.sample_rate = 99
    buffers, count = channel.deliver(consumer, NOW, 1000, 50_000)
    assert 40_000 < sum(map(len, buffers)) <= 50_000
    assert channel.in_flight_count == count == len(buffers)


def test_a_small_sample_of_many_messages_is_taken_in_portions() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    consumer.sample_rate = 1
    broker.publish("t", *[b"x"] * 100_000)
    broker.engine.take_ready()
    delivered = portions = 0
    while channel.depth:
        delivered += channel.deliver(consumer, broker.now, 100_000, 1 << 20)[1]
        portions += 1
        if channel.depth:
            assert broker.engine.next_deadline(broker.now) <= broker.now
            assert broker.engine.take_ready() == [channel]
    assert portions > 10
    assert 500 < delivered < 1500


def test_many_messages_for_later_are_put_aside_in_portions() -> None:
    broker = Broker(mem_queue_size=10)
    for _ in range(10_000):
        broker.publish("t", b"later", defer_ns=3600 * SECOND)
    broker.publish("t", b"now")
    broker.engine.close(broker.now)
    broker.open()
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    broker.engine.take_ready()
    assert not broker.get(channel, consumer)
    assert channel.depth > 1
    frames = []
    while broker.engine.take_ready():
        frames += broker.get(channel, consumer)
    assert bodies(frames) == [b"now"]
    assert channel.deferred_count == 10_000


def test_deferred_messages_are_counted_and_wait_even_in_the_backlog_of_a_new_channel() -> None:
    broker = Broker()
    broker.publish("t", b"now")
    broker.publish("t", b"later", defer_ns=5 * SECOND)
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    assert (channel.depth, channel.deferred_count, channel.message_count) == (1, 1, 2)
    assert bodies(broker.get(channel, consumer)) == [b"now"]
    broker.engine.close(broker.now)
    broker.open()
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    broker.wait(5 * SECOND - 1)
    assert bodies(broker.get(channel, consumer)) == [b"now"]
    broker.wait(1)
    assert broker.engine.take_ready() == [channel]
    (frame,) = broker.get(channel, consumer)
    assert (frame.body, frame.attempts) == (b"later", 1)


def test_touch_ends_at_the_longest_time_out() -> None:
    broker = Broker(max_msg_timeout_ns=25 * SECOND)
    channel = broker.channel("t", "c")
    broker.publish("t", b"x")
    consumer = broker.consumer(channel, 10 * SECOND)
    (frame,) = broker.get(channel, consumer)
    for _ in range(3):
        broker.wait(8 * SECOND)
        assert not channel.touch(consumer, frame.message_id, broker.now)
    broker.wait(SECOND - 1)
    assert channel.in_flight_count == 1
    broker.wait(1)
    assert (channel.in_flight_count, channel.timeout_count, consumer.in_flight_count) == (0, 1, 0)
    assert channel.touch(consumer, frame.message_id, broker.now) == [(frame.message_id, NOT_IN_FLIGHT)]


def test_attempts_stay_at_the_highest_number() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    broker.publish("t", b"x")
    consumer = broker.consumer(channel)
    segment, index, count, _extra = channel._next(NOW) or pytest.fail("nothing there")
    channel._advance(count)
    channel._requeue(segment, segment.base + index, 1, 65_600)
    assert broker.get(channel, consumer)[0].attempts == 65_535


def test_requeued_messages_go_behind_what_waits() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    broker.publish("t", b"1", b"2", b"3")
    consumer = broker.consumer(channel)
    (first,) = broker.get(channel, consumer, 1)
    channel.requeue(consumer, first.message_id, 0, NOW)
    broker.publish("t", b"4")
    assert bodies(broker.get(channel, consumer)) == [b"2", b"3", b"1", b"4"]


def journal_growth(broker: Broker) -> int:
    """Of the topic t, in a second in which one message is published."""
    before = len(broker.files.entries["data/t.log/state"].data)
    broker.publish("t", b"x")
    broker.wait(SECOND)
    return len(broker.files.entries["data/t.log/state"].data) - before


def test_the_journal_is_told_once_of_what_waits_however_long_it_waits() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    broker.publish("t", *[b"%d" % number for number in range(1000)])
    consumer = broker.consumer(channel)
    for delay, frame in enumerate(broker.get(channel, consumer)):
        channel.requeue(consumer, frame.message_id, 1 + delay * 7919 % 1000, broker.now)
    broker.wait(SECOND)
    assert channel.depth == 1000
    assert 0 < journal_growth(broker) < 500
    assert 0 < journal_growth(broker) < 500
    broker.files.kill()
    broker.open()
    channel = broker.channel("t", "c")
    frames = broker.get(channel, broker.consumer(channel), 2000)
    assert sorted(frame.attempts for frame in frames) == [1, 1] + [2] * 1000


def test_every_other_message_for_later_does_not_make_the_journal_long() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    for number in range(300):
        broker.publish("t", b"%d" % number)
        broker.publish("t", b"later", defer_ns=3600 * SECOND)
    assert journal_growth(broker) > 2000
    assert 0 < journal_growth(broker) < 500
    broker.files.kill()
    broker.open()
    channel = broker.channel("t", "c")
    assert bodies(broker.get(channel, broker.consumer(channel)))[:300] == [b"%d" % number for number in range(300)]
    assert channel.deferred_count == 300


def test_short_delays_leave_no_timers_behind_beside_a_long_one() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    broker.publish("t", b"later", defer_ns=3600 * SECOND)
    broker.publish("t", b"x")
    for _ in range(200):
        (frame,) = broker.get(channel, consumer)
        channel.requeue(consumer, frame.message_id, SECOND // 100, broker.now)
        broker.wait(SECOND // 100)
    assert len(broker.engine._shared._timers) < 10
    broker.wait(3600 * SECOND)
    assert sorted(bodies(broker.get(channel, consumer))) == [b"later", b"x"]


def test_latencies_are_measured_when_asked_for() -> None:
    broker = Broker(e2e_percentiles=(1.0, 0.5))
    channel = broker.channel("t", "c")
    for _ in range(3):
        broker.publish("t", b"x")
        broker.now += SECOND
    consumer = broker.consumer(channel)
    frames = broker.get(channel, consumer)
    channel.finish(consumer, b"".join(frame.message_id for frame in frames), broker.now)
    topic = broker.engine.topics["t"]
    assert channel.latency_count == topic.latency_count == 3
    for found in (channel.latency(broker.now), topic.latency(broker.now)):
        (highest, slowest), (half, median) = found
        assert (highest, half) == (1.0, 0.5)
        assert abs(slowest - 3 * SECOND) < 0.1 * SECOND
        assert abs(median - 2 * SECOND) < 0.1 * SECOND
    assert Broker().channel("t", "c").latency(NOW) == []


# --- ephemerals ------------------------------------------------------------------------------------------------------


def test_ephemeral_topics_and_channels_leave_nothing_on_disk() -> None:
    broker = Broker()
    for topic, name in (("t#ephemeral", "c"), ("t#ephemeral", "d#ephemeral")):
        channel = broker.channel(topic, name)
        broker.publish(topic, b"x")
        broker.publish(topic, b"later", defer_ns=SECOND)
        consumer = broker.consumer(channel)
        assert bodies(broker.get(channel, consumer)) == [b"x"]
        broker.wait(2 * SECOND)
        assert bodies(broker.get(channel, consumer)) == [b"later"]
    broker.engine.close(broker.now)
    assert list(broker.files.entries) == ["data/nsqd.dat"]
    assert b'"topics":null' in (broker.files.read_file("data/nsqd.dat") or b"")


@pytest.mark.parametrize("topic", ["t", "t#ephemeral"])
def test_ephemeral_channel_keeps_the_oldest_and_drops_what_memory_does_not_hold(topic: str) -> None:
    broker = Broker(mem_queue_size=5)
    channel = broker.channel(topic, "c#ephemeral")
    other = broker.channel(topic, "d#ephemeral")
    for start in range(0, 12, 4):
        ticket = broker.publish(topic, *[b"%d" % number for number in range(start, start + 4)])
        assert ticket.done
        assert ticket.error is None
        broker.get(other, broker.consumer(other))
    assert (channel.depth, channel.message_count, channel.backend_depth) == (5, 12, 0)
    assert bodies(broker.get(channel, broker.consumer(channel))) == [b"0", b"1", b"2", b"3", b"4"]
    assert other.in_flight_count == 12


def test_ephemeral_topic_without_channels_drops_beyond_memory() -> None:
    broker = Broker(mem_queue_size=5)
    broker.publish("t#ephemeral", *[b"%d" % number for number in range(4)])
    broker.publish("t#ephemeral", *[b"%d" % number for number in range(4, 8)])
    assert broker.engine.topics["t#ephemeral"].depth == 5
    channel = broker.channel("t#ephemeral", "c")
    assert len(broker.get(channel, broker.consumer(channel))) == 5


def test_ephemeral_channel_goes_with_its_last_consumer_and_the_topic_with_its_last_channel() -> None:
    broker = Broker()
    channel = broker.channel("t#ephemeral", "c#ephemeral")
    one, two = broker.consumer(channel), broker.consumer(channel)
    broker.engine.take_events()
    channel.unsubscribe(one, NOW)
    assert not channel.deleted
    channel.unsubscribe(two, NOW)
    assert channel.deleted
    assert broker.engine.topics == {}
    assert broker.engine.take_events() == [
        Event("channel_deleted", "t#ephemeral", "c#ephemeral"),
        Event("topic_deleted", "t#ephemeral"),
    ]


def test_what_an_ephemeral_topic_held_for_later_leaves_its_memory_too() -> None:
    broker = Broker()
    broker.publish("t#ephemeral", b"x", defer_ns=SECOND)
    channel = broker.channel("t#ephemeral", "c")
    consumer = broker.consumer(channel)
    broker.wait(SECOND)
    (frame,) = broker.get(channel, consumer)
    channel.finish(consumer, frame.message_id, broker.now)
    assert broker.engine.topics["t#ephemeral"].store.resident == 0


def test_ephemeral_memory_is_given_back_when_messages_are_done_with() -> None:
    broker = Broker()
    channel = broker.channel("t#ephemeral", "c")
    consumer = broker.consumer(channel)
    for _ in range(50):
        broker.publish("t#ephemeral", *[b"x"] * 20)
        frames = broker.get(channel, consumer)
        channel.finish(consumer, b"".join(frame.message_id for frame in frames), NOW)
    broker.publish("t#ephemeral", b"y", b"z")
    channel.empty(NOW)
    assert broker.engine.topics["t#ephemeral"].store.resident == 0


class AskedInFlight(InFlight):
    """It counts how often any consumer was asked for a message."""

    asked = 0

    def find(self, message_id: bytes) -> tuple[Run, int] | None:
        AskedInFlight.asked += 1
        return super().find(message_id)


def test_thousands_of_answers_in_vain_do_not_ask_hundreds_of_consumers_each(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    for _ in range(300):
        broker.consumer(channel).in_flight = AskedInFlight()
    broker.publish("t", b"x")
    (frame,) = broker.get(channel, channel.consumers[-1])
    ids = [frame.message_id, *(b"%016x" % number for number in range(5000)), frame.message_id]
    stranger = broker.consumer(channel)
    for answer in (
        lambda message_id: channel.finish(stranger, message_id, broker.now),
        lambda message_id: channel.requeue(stranger, message_id, 0, broker.now),
        lambda message_id: channel.touch(stranger, message_id, broker.now),
    ):
        monkeypatch.setattr(AskedInFlight, "asked", 0)
        reasons = [reason for message_id in ids for _, reason in answer(message_id)]
        assert reasons[0] == NOT_OWNER
        assert set(reasons[1:]) == {NOT_IN_FLIGHT}
        assert 300 < AskedInFlight.asked < 10_000
        broker.wait(1)
