from types import SimpleNamespace

import pytest
from simulation.session_world import MS, Client, World, greeted, messages, subscribed
from simulation.small_broker import NOW, Broker

from pyspark_nsq.broker.channel import Channel, Consumer
from pyspark_nsq.broker.connections import Connections
from pyspark_nsq.broker.timers import Timers
from pyspark_nsq.broker.turn import UNSENT_SIZE_MAX, Turn
from pyspark_nsq.proto.commands import MAGIC_V2, identify, mpub, rdy, sub


def test_an_answer_is_written_and_sent_before_the_turn_of_all() -> None:
    broker, scheduled, flushed = Broker(), [], []
    turn = Turn(broker.engine, lambda: NOW, scheduled.append, lambda _: None, lambda _: None, lambda _: None)
    other, publisher = (
        SimpleNamespace(touched=False, flush=lambda _now, name=name: flushed.append(name)) for name in ("a", "b")
    )
    turn.touch(other)
    ticket = broker.engine.topic("t", NOW).publish([b"body"], NOW)
    turn.answer(publisher)
    assert ticket.done
    assert flushed == ["a", "b"]
    assert len(scheduled) == 1
    scheduled[0]()
    assert flushed == ["a", "b"]


def test_only_the_first_publishers_of_a_round_are_answered_one_by_one() -> None:
    watcher = SimpleNamespace(start=lambda _look: None)
    loop = SimpleNamespace(now=lambda: loop.round, idle=lambda: watcher)
    clock = NOW.__int__
    turn = Turn(Broker().engine, clock, print, print, print, print)
    connections = Connections(SimpleNamespace(log=None), turn, Timers(), loop, clock, print, print, 10)
    for loop.round in (1.0, 2.0):
        assert [connections.answers_at_once() for _ in range(5)] == [True, True, True, False, False]


@pytest.mark.interpreted
def test_consumers_that_do_not_read_are_passed_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked once, and not again for each share of what is left to the one that reads."""
    reader, *unread = (subscribed(world, count=2500) for _ in range(20))
    for client in unread:
        client.unsent_size = UNSENT_SIZE_MAX
    asked = []
    deliver = world.turn._deliver

    def note(channel: Channel, consumer: Consumer, now: int, limit: int) -> int:
        asked.append(consumer)
        return deliver(channel, consumer, now, limit)

    monkeypatch.setattr(world.turn, "_deliver", note)
    greeted(world).say(mpub("t", [b"x"] * 2000))
    assert len(messages(reader.heard())) == 2000
    assert [asked.count(client.session.consumer) for client in unread] == [1] * 19


def test_who_does_not_read_gets_no_more_than_there_is_room_for(world: World) -> None:
    client = subscribed(world, count=2500)
    greeted(world).say(mpub("t", [b"x"] * 10))
    assert len(messages(client.heard())) == 10
    client.unsent_size = UNSENT_SIZE_MAX - 100
    greeted(world).say(mpub("t", [b"x"] * 10))
    assert len(messages(client.heard())) == 100 // 35
    client.unsent_size = UNSENT_SIZE_MAX
    greeted(world).say(mpub("t", [b"x"] * 10))
    assert messages(client.heard()) == []
    assert client.starved


def turns_until_all_are_served(world: World) -> int:
    """Each has time for two deliveries, and is asked for by the timer: what calls itself back keeps others waiting."""
    world.look_takes = 10 * MS
    count = 1
    world.turn.take()
    while world.timer_at <= world.now and count < 1000:
        assert not world.scheduled
        world.turn.take()
        count += 1
    return count


def test_a_turn_ends_although_there_is_more_to_hand_out(world: World) -> None:
    consumers = [subscribed(world, count=10) for _ in range(20)]
    world.engine.topics["t"].publish([b"x"] * 200, world.now)
    assert turns_until_all_are_served(world) >= 10
    world.look_takes = 0
    assert [len(messages(client.heard())) for client in consumers] == [10] * 20


class Hungry(Client):
    """It has read what it was sent before the turn has ended."""

    def flush(self, now: int) -> None:
        super().flush(now)
        if self.starved:
            self.starved = False
            self._world.wake(self.session.channel, self.session.consumer)


def test_consumers_that_can_take_more_at_once_have_their_turn_after_others(world: World) -> None:
    topic = world.engine.topic("t", world.now)
    hungry = [Hungry(world) for _ in range(4)]
    for client in hungry:
        client.say(MAGIC_V2 + sub("t", "c") + rdy(2500))
    topic.publish([bytes(100_000)] * 40, world.now)
    assert turns_until_all_are_served(world) > 4
    world.look_takes = 0
    assert sum(len(messages(client.heard())) for client in hungry) == 40


def test_channels_that_were_not_reached_are_the_first_of_the_next_turn(world: World) -> None:
    """Before those who have had theirs and are ready again, as where a sample is drawn of very many."""
    for name in ("sample", "another"):
        client = greeted(world)
        client.say(identify({"sample_rate": 1}))
        client.say(sub(name, "c") + rdy(2500))
    others = {name: subscribed(world, count=10, topic=name) for name in ("a", "b", "c", "d")}
    world.look_takes = 8 * MS
    for name in ("sample", "another"):
        world.engine.topics[name].publish([b"x"] * 100_000, world.now)
    for name in others:
        world.engine.topics[name].publish([b"x"], world.now)
    for served in ([], ["a", "b"]):
        world.turn.take()
        assert [name for name, client in others.items() if client.session.consumer.in_flight_count] == served
