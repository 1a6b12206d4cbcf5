"""What nsqd and its lookupds see of a query: no more in flight than allowed, and no look at what is gone."""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import pytest
from rig.daemons import Lookupd, Nsqd, wait_until
from rig.reading import HangingBatch, Reading, numbered, wait_settled

from pyspark_nsq.connector.client import connect
from pyspark_nsq.connector.settings import Address, ConnectionSettings
from pyspark_nsq.proto import commands

StartReading = Callable[..., Reading]
StartNsqd = Callable[..., Nsqd]


def in_flight(nsqd: Nsqd) -> int:
    channels = [channel for topic in nsqd.raw_stats()["topics"] for channel in topic["channels"] or []]
    return sum(int(channel["in_flight_count"]) for channel in channels)


@pytest.mark.leaves_messages
def test_several_connections_hold_what_one_may_not(
    start_reading: StartReading, start_nsqd: StartNsqd, topic: str
) -> None:
    nsqd = start_nsqd("-max-rdy-count=20", "-msg-timeout=3s")
    nsqd.make_channel(topic, "c")
    nsqd.publish(topic, numbered(0, 500))
    hanging = HangingBatch()
    start_reading(nsqd, topic=topic, maxInFlight=100, receivers=2, before_batch=hanging)
    hanging.wait_begun()
    seen = []

    def look() -> Mapping[str, Any]:
        channel = nsqd.raw_counts(topic, "c")
        seen.append(channel["in_flight_count"])
        return channel

    wait_until(lambda: look()["in_flight_count"] == 100, "all that may be in flight")
    # Somebody else's message, which nobody touches, is given up: so long it stays as it is.
    nsqd.make_channel(f"{topic}-other", "c")
    nsqd.publish(f"{topic}-other", [b"held"])
    with closing(connect(Address(nsqd.host, nsqd.ports["TCP"]), ConnectionSettings())) as holder:
        holder.write(commands.sub(f"{topic}-other", "c"), commands.rdy(1))
        wait_until(lambda: look() and nsqd.raw_counts(f"{topic}-other", "c")["timeout_count"], "a time-out")
    channel = look()
    assert max(seen) == channel["in_flight_count"] == 100
    assert channel["timeout_count"] == 0
    assert len(channel["clients"]) >= 100 / 20
    assert max(client["ready_count"] for client in channel["clients"]) <= 20


def test_more_topics_than_messages_in_flight_have_their_turns(
    start_reading: StartReading, nsqd: Nsqd, topic: str
) -> None:
    topics = [f"{topic}-{number}" for number in range(4)]
    published: Counter[bytes] = Counter()
    for number, name in enumerate(topics):
        nsqd.make_channel(name, "c")
        bodies = numbered(number * 4, 4)
        nsqd.publish(name, bodies)
        published.update(bodies)
    reading = start_reading(nsqd, topic=",".join(topics), maxInFlight=2)

    def is_read() -> bool:
        reading.check()
        assert in_flight(nsqd) <= 2
        return reading.bodies() == published

    wait_until(is_read, "every message of every topic")
    wait_until(lambda: nsqd.unfinished_everywhere() == 0, "empty channels")


def test_what_ends_for_good_is_left_and_the_rest_goes_on(
    start_reading: StartReading, start_nsqd: StartNsqd, start_lookupd: Callable[..., Lookupd], topic: str
) -> None:
    lookupds = (start_lookupd(), start_lookupd())
    staying, leaving = start_nsqd(lookupds=lookupds), start_nsqd(lookupds=lookupds)
    kept, deleted = f"{topic}-kept", f"{topic}-deleted"
    reading = start_reading(
        topicPattern=f"{topic}-.*",
        lookupdHttpAddresses=",".join(lookupd.http for lookupd in lookupds),
        lookupdPollInterval="200ms",
        receivers=2,
    )
    published = Counter(numbered(0, 300))
    bodies = list(published)
    staying.publish(kept, bodies[:100])
    staying.publish(deleted, bodies[100:200])
    leaving.publish(kept, bodies[200:])
    reading.wait_for(published)
    for nsqd, name in ((staying, kept), (staying, deleted), (leaving, kept)):
        wait_settled(nsqd, name)
    lookupds[0].kill()
    leaving.stop()
    staying.post(f"/topic/delete?topic={deleted}")
    more = Counter(numbered(300, 100))
    staying.publish(kept, list(more))
    reading.wait_for(published + more)
    wait_settled(staying, kept)
    wait_until(lambda: lookupds[1].producers(kept) == [staying.tcp], "a lookupd that has noticed")
    assert reading.bodies() == published + more
    # A consumer that connected again would have made it anew.
    assert [each["topic_name"] for each in staying.raw_stats()["topics"]] == [kept]
