"""Trigger.AvailableNow: takes what is there, finishes all of it, and ends; whoever else takes some."""

import threading
from collections import Counter
from collections.abc import Callable

import pytest
from rig.consumer import drain
from rig.daemons import Nsqd, wait_until
from rig.reading import Reading, numbered, wait_settled

from pyspark_nsq.connector.client import connect
from pyspark_nsq.connector.settings import Address, ConnectionSettings
from pyspark_nsq.proto import commands

StartReading = Callable[..., Reading]
NOW = {"availableNow": True}


@pytest.mark.leaves_messages
def test_it_takes_all_in_many_batches_finishes_the_last_one_and_ends(
    start_reading: StartReading, nsqd: Nsqd, topic: str
) -> None:
    nsqd.make_channel(topic, "c")
    published = Counter([*numbered(0, 2500), b"due when it starts"])
    nsqd.post(f"/pub?topic={topic}&defer=300", b"due when it starts")
    nsqd.publish(topic, numbered(0, 2500))
    nsqd.post(f"/pub?topic={topic}&defer=3600000", b"not due for an hour")
    reading = start_reading(nsqd, topic=topic, trigger=NOW, maxInFlight=1000)
    assert reading.query.awaitTermination(90)
    reading.check()
    assert reading.bodies() == published
    assert len(reading.batches) >= 3
    stats = nsqd.channel_stats(topic, "c")
    assert stats is not None
    assert (stats.depth, stats.in_flight, stats.deferred) == (0, 0, 1)


# What statistics tell is the same of both makes; here there are none.
@pytest.mark.parametrize("impl", ["ours"], indirect=True)
def test_without_http_addresses_it_ends_when_nothing_comes_any_more(
    start_reading: StartReading, nsqd: Nsqd, topic: str
) -> None:
    nsqd.make_channel(topic, "c")
    published = Counter(numbered(0, 500))
    nsqd.publish(topic, list(published))
    reading = start_reading(nsqdTcpAddresses=nsqd.tcp, topic=topic, trigger=NOW, maxInFlight=200)
    assert reading.query.awaitTermination(90)
    reading.check()
    assert reading.bodies() == published


def test_it_ends_where_there_is_nothing(start_reading: StartReading, nsqd: Nsqd, topic: str) -> None:
    reading = start_reading(nsqd, topic=topic, trigger=NOW)
    assert reading.query.awaitTermination(60)
    reading.check()
    assert not reading.rows


def test_it_waits_for_what_a_dead_consumer_held(
    start_reading: StartReading, start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    nsqd = start_nsqd("-msg-timeout=8s")
    nsqd.make_channel(topic, "c")
    published = Counter(numbered(0, 50))
    nsqd.publish(topic, list(published))
    stream = connect(Address("127.0.0.1", nsqd.ports["TCP"]), ConnectionSettings())
    stream.write(commands.sub(topic, "c"), commands.rdy(20))
    wait_until(lambda: nsqd.stats(topic, "c").channel.in_flight == 20, "messages in flight")  # type: ignore[union-attr]
    stream.close()
    reading = start_reading(nsqd, topic=topic, trigger=NOW)
    assert reading.query.awaitTermination(90)
    reading.check()
    assert reading.bodies() == published
    wait_settled(nsqd, topic)


def test_it_ends_although_another_consumer_takes_a_part(start_reading: StartReading, nsqd: Nsqd, topic: str) -> None:
    nsqd.make_channel(topic, "c")
    published = Counter(numbered(0, 20_000))
    nsqd.publish(topic, list(published))
    others: list[Counter[bytes]] = []
    thief = threading.Thread(target=lambda: others.append(drain(nsqd, topic, "c")))
    reading = start_reading(nsqd, topic=topic, trigger=NOW, maxInFlight=100, maxMessagesPerTrigger=100)
    wait_until(lambda: reading.rows or reading.query.exception(), "a batch")
    thief.start()
    assert reading.query.awaitTermination(100)
    thief.join(60)
    reading.check()
    assert reading.bodies() + others[0] == published
    assert reading.rows
