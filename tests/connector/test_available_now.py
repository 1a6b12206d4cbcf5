"""When Trigger.AvailableNow may end."""

import pytest

from pyspark_nsq.connector.available_now import Drain
from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.discovery import ChannelStats, TopicStats
from pyspark_nsq.connector.settings import Address

SOURCE = Source("topic", Address("127.0.0.1", 4150))


def stats(
    depth: int = 0, in_flight: int = 0, at_clients: int = 0, deferred: int = 0, topic_depth: int = 0
) -> TopicStats:
    return TopicStats(topic_depth, ChannelStats(depth, in_flight, deferred, at_clients, 1, False))


def connected(at_start: TopicStats | None, received: int = 0) -> Drain:
    drain = Drain({SOURCE: at_start}, set(), 0.0)
    drain.received(SOURCE, received, 1, 0, 0.0)
    return drain


def test_it_goes_on_until_as_much_came_as_there_was() -> None:
    drain = connected(stats(depth=10))
    drain.received(SOURCE, 9, 1, 0, 1.0)
    assert not drain.is_done(1.1)
    drain.received(SOURCE, 10, 1, 0, 2.0)
    assert drain.is_done(2.0)


def test_a_topic_without_the_channel_gives_it_all_it_has() -> None:
    drain = connected(TopicStats(5, None), received=4)
    assert not drain.is_done(1.0)
    drain.received(SOURCE, 5, 1, 0, 1.0)
    assert drain.is_done(1.0)


def test_an_empty_channel_ends_it_although_less_came_than_there_was() -> None:
    drain = connected(stats(depth=10))
    drain.received(SOURCE, 4, 1, 0, 1.0)
    # Asked before the last ones came: it says nothing about now.
    drain.told(SOURCE, stats(), 0.5)
    assert not drain.is_done(1.1)
    drain.told(SOURCE, stats(), 1.5)
    assert drain.is_done(1.6)


def test_messages_at_clients_may_be_on_their_way_to_us() -> None:
    drain = connected(stats(depth=10))
    drain.told(SOURCE, stats(in_flight=10, at_clients=10), 1.0)
    assert not drain.is_done(4.9)
    drain.received(SOURCE, 9, 1, 0, 4.9)
    assert not drain.is_done(9.8)
    # Nothing came for long: the last one is another consumer's.
    assert drain.is_done(10.0)


def test_what_a_dead_consumer_holds_is_waited_for() -> None:
    drain = connected(stats(in_flight=3))
    drain.told(SOURCE, stats(in_flight=3), 10.0)
    assert not drain.is_done(100.0)
    drain.received(SOURCE, 3, 1, 0, 101.0)
    assert drain.is_done(101.0)


def test_what_a_living_consumer_holds_is_not_waited_for() -> None:
    drain = connected(stats(in_flight=3, at_clients=3))
    assert drain.is_done(0.0)


def test_messages_that_are_due_have_a_moment_to_come() -> None:
    drain = connected(stats(deferred=1))
    drain.told(SOURCE, stats(deferred=1), 0.5)
    assert not drain.is_done(0.6)
    assert drain.is_done(1.1)


@pytest.mark.parametrize("told", [None, stats(depth=10)], ids=["no statistics", "a paused channel"])
def test_it_ends_where_nothing_comes_any_more(told: TopicStats | None) -> None:
    drain = Drain({}, {SOURCE}, 0.0) if told is None else Drain({SOURCE: told}, set(), 0.0)
    drain.received(SOURCE, 0, 1, 0, 1.0)
    assert not drain.is_done(5.0)
    drain.told(SOURCE, told, 5.5)
    assert drain.is_done(6.1)


def test_an_nsqd_that_is_not_there_has_nothing() -> None:
    drain = Drain({}, {SOURCE}, 0.0)
    drain.received(SOURCE, 0, 0, 2, 1.0)
    assert not drain.is_done(100.0)
    drain.received(SOURCE, 0, 0, 3, 1.0)
    assert drain.is_done(1.0)
