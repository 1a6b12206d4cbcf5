from types import SimpleNamespace

import pytest
from simulation.session_world import World, greeted, messages, subscribed
from simulation.small_broker import NOW, Broker

from pyspark_nsq.broker.channel import Channel, Consumer
from pyspark_nsq.broker.connections import Connections
from pyspark_nsq.broker.timers import Timers
from pyspark_nsq.broker.turn import UNSENT_SIZE_MAX, Turn
from pyspark_nsq.proto.commands import mpub


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
