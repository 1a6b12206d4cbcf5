"""When Trigger.AvailableNow may end."""

import pytest

from pyspark_nsq.connector.available_now import Drain, Intake
from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.discovery import ChannelStats, TopicStats
from pyspark_nsq.connector.settings import Address

SOURCE = Source("topic", Address("127.0.0.1", 4150))


def stats(
    depth: int = 0, in_flight: int = 0, at_clients: int = 0, deferred: int = 0, topic_depth: int = 0
) -> TopicStats:
    return TopicStats(topic_depth, ChannelStats(depth, in_flight, deferred, at_clients, 1, False))


def intake(until_mark: int, *, received: int | None = None, is_full: bool = False) -> Intake:
    return Intake(until_mark if received is None else received, until_mark, connections=1, failures=0, is_full=is_full)


def connected(at_start: TopicStats | None, received: int = 0) -> Drain:
    drain = Drain({SOURCE: at_start}, set(), 0.0)
    drain.received(SOURCE, intake(received), 0.0)
    return drain


def is_done(drain: Drain, until_mark: int, now: float, *, received: int | None = None, is_full: bool = False) -> bool:
    """After a look at this moment."""
    drain.received(SOURCE, intake(until_mark, received=received, is_full=is_full), now)
    return drain.is_done()


def test_it_goes_on_until_as_much_came_as_there_was() -> None:
    drain = connected(stats(depth=10))
    assert not is_done(drain, 9, 1.0)
    assert is_done(drain, 10, 2.0)
    assert not drain.unread()


def test_a_topic_without_the_channel_gives_it_all_it_has() -> None:
    drain = connected(TopicStats(5, None), received=4)
    assert not is_done(drain, 4, 1.0)
    assert is_done(drain, 5, 1.0)


def test_an_empty_channel_ends_it_although_less_came_than_there_was() -> None:
    drain = connected(stats(depth=10))
    drain.received(SOURCE, intake(4), 1.0)
    # Asked before the last ones came: it says nothing about now.
    drain.told(SOURCE, stats(), 0.5)
    assert not is_done(drain, 4, 1.1)
    drain.told(SOURCE, stats(), 1.5)
    assert is_done(drain, 4, 1.6)


def test_messages_at_clients_may_be_on_their_way_to_us() -> None:
    drain = connected(stats(depth=10))
    drain.told(SOURCE, stats(in_flight=10, at_clients=10), 1.0)
    assert not is_done(drain, 0, 4.9)
    assert not is_done(drain, 9, 4.9)
    assert not is_done(drain, 9, 9.8)
    # Nothing came for long: the last one is another consumer's.
    assert is_done(drain, 9, 10.0)


def test_what_a_dead_consumer_holds_is_waited_for() -> None:
    drain = connected(stats(in_flight=3))
    drain.told(SOURCE, stats(in_flight=3), 10.0)
    assert not is_done(drain, 0, 100.0)
    assert is_done(drain, 3, 101.0)


@pytest.mark.parametrize("received", [0, 5], ids=["silence", "others published"])
def test_what_nsqd_has_just_taken_back_from_a_dead_consumer_has_a_moment_to_come(received: int) -> None:
    drain = connected(stats(in_flight=3))
    for second in (1.0, 5.0, 9.0):
        drain.told(SOURCE, stats(in_flight=3), second)
        assert not is_done(drain, 0, second, received=received)
    # Delivered, and not yet told of by the receiver.
    drain.told(SOURCE, stats(in_flight=3, at_clients=3), 9.1)
    assert not is_done(drain, 0, 9.2, received=received)
    drain.told(SOURCE, stats(depth=3), 9.3)
    assert not is_done(drain, 0, 13.9, received=received)
    # If nothing comes then, others have it.
    assert is_done(drain, 0, 14.2, received=received)


def test_counts_that_nsqd_takes_one_after_the_other_do_not_keep_it_up() -> None:
    """While others are at work there seem to be messages without a consumer, each time for a moment."""
    drain = connected(stats(depth=10))
    ends = []
    for look in range(60):
        drain.told(SOURCE, stats(in_flight=9, at_clients=9 - look % 2), look / 10)
        ends.append(is_done(drain, 0, look / 10))
    assert ends.index(True) == 50


def test_what_a_living_consumer_holds_is_not_waited_for() -> None:
    assert connected(stats(in_flight=3, at_clients=3)).is_done()


def test_messages_that_are_due_have_a_moment_to_come() -> None:
    """Go's nsqd needs up to 5 seconds until it looks at a channel that is new."""
    drain = connected(stats(deferred=1, in_flight=1, at_clients=1))
    for second in (1.0, 3.0, 5.5):
        drain.told(SOURCE, stats(deferred=1), second)
        assert not is_done(drain, 0, second + 0.1)
    drain.told(SOURCE, stats(deferred=1), 6.1)
    assert is_done(drain, 0, 6.2)


@pytest.mark.parametrize("told", [None, stats(depth=10)], ids=["no statistics", "a paused channel"])
def test_it_ends_where_nothing_comes_any_more(told: TopicStats | None) -> None:
    drain = Drain({}, {SOURCE}, 0.0) if told is None else Drain({SOURCE: told}, set(), 0.0)
    assert not is_done(drain, 0, 1.0)
    assert not is_done(drain, 0, 5.0)
    drain.told(SOURCE, told, 5.5)
    assert is_done(drain, 0, 6.1)


def test_what_is_published_meanwhile_does_not_keep_it_up() -> None:
    drain = connected(stats(depth=10))
    # Other consumers have taken some; of what comes nothing is from before the start any more.
    ends = [is_done(drain, 8, float(second), received=8 + second) for second in range(1, 12)]
    assert ends.index(True) == 5
    assert all(ends[5:])


def test_where_clocks_differ_it_goes_on_until_as_much_came_as_there_was() -> None:
    drain = connected(stats(depth=100))
    # All of it bears a time after the start.
    ends = [is_done(drain, 0, float(second), received=10 * second) for second in range(1, 13)]
    assert ends.index(True) == 9


def test_silence_while_a_long_batch_fills_the_receivers_is_none() -> None:
    drain = connected(stats(depth=100))
    assert not is_done(drain, 50, 1.0, is_full=True)
    assert not is_done(drain, 50, 100.0, is_full=True)
    assert not is_done(drain, 60, 200.0, is_full=True)
    # Between so many batches, each of which made room, something would have come.
    assert [is_done(drain, 60, 300.0 + look, is_full=True) for look in range(5)] == [False] * 4 + [True]


def test_what_a_receiver_held_that_died_comes_again() -> None:
    drain = connected(stats(depth=10), received=10)
    assert drain.is_done()
    drain.start_again(20.0)
    assert not drain.is_done()
    assert not is_done(drain, 7, 21.0)
    assert is_done(drain, 10, 22.0)


def test_it_ends_where_all_receivers_are_gone_and_an_nsqd_says_that_it_has_nothing() -> None:
    drain = connected(stats(depth=10), received=9)
    drain.start_again(20.0)
    drain.told(SOURCE, stats(in_flight=1), 20.1)
    assert not drain.is_done()
    drain.told(SOURCE, stats(), 20.2)
    assert drain.is_done()
    assert not drain.unread()


def test_an_nsqd_that_is_not_there_has_nothing_and_is_named() -> None:
    drain = Drain({}, {SOURCE}, 0.0)
    drain.received(SOURCE, Intake(0, 0, 0, 2, is_full=False), 1.0)
    assert not drain.is_done()
    drain.received(SOURCE, Intake(0, 0, 0, 3, is_full=False), 1.0)
    assert drain.is_done()
    assert drain.unread() == [SOURCE]
