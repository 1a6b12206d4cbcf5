"""Near clients first: who counts as near, who is served first, and what is counted."""

from collections import Counter
from collections.abc import Callable

import pytest
from simulation.session_world import OK, Client, World, greeted, messages

from pyspark_nsq.broker import stats
from pyspark_nsq.broker.nsqd_options import NsqdOptions
from pyspark_nsq.broker.topology import EXPERIMENT, GLOBAL, NOT_LOOKED_AT, REGION_LOCAL, ZONE_LOCAL, nearness, stranger
from pyspark_nsq.proto.commands import fin, identify, mpub, rdy, sub

HERE = {"topology_zone": "z1", "topology_region": "r1", "enable_experiments": (EXPERIMENT,)}
NEAR, SAME_REGION, FAR = ("z1", "r1"), ("z2", "r1"), ("z9", "r9")


@pytest.mark.parametrize(
    ("zone", "region", "rank", "counter"),
    [
        ("z1", "r1", 0, ZONE_LOCAL),
        ("z1", "r2", 0, ZONE_LOCAL),
        ("z2", "r1", 1, REGION_LOCAL),
        ("", "r1", 1, REGION_LOCAL),
        ("z2", "r2", 2, GLOBAL),
        ("", "", 2, GLOBAL),
    ],
)
def test_who_is_near(zone: str, region: str, rank: int, counter: str):
    assert nearness(zone, region, NsqdOptions(**HERE)) == (rank, counter)  # type: ignore[arg-type]


def test_unnamed_places_are_equal_but_not_preferred():
    assert nearness("", "", NsqdOptions(enable_experiments=(EXPERIMENT,))) == (2, ZONE_LOCAL)


def test_nobody_is_near_without_the_experiment():
    options = NsqdOptions(topology_zone="z1", topology_region="r1", enable_experiments=("something-else",))
    assert nearness("z1", "r1", options) == stranger(options) == NOT_LOOKED_AT


def consumer(world: World, place: tuple[str, str] | None, ready: int) -> Client:
    client = greeted(world)
    if place is not None:
        zone, region = place
        assert client.say(identify({"topology_zone": zone, "topology_region": region})) == [OK]
    assert client.say(sub("t", "c")) == [OK]
    assert client.say(rdy(ready)) == []
    return client


def publish(world: World, count: int) -> None:
    assert greeted(world).say(mpub("t", [b"%d" % number for number in range(count)])) == [OK]


def channel_stats(world: World) -> stats.ChannelStats:
    found = stats.topic_stats(world.engine, world.now)
    assert found is not None
    return found[0]["channels"][0]


def test_the_nearest_that_can_take_messages_gets_them(make_world: Callable[..., World]):
    world = make_world(**HERE)
    # The order of subscribing does not matter, and who never said where it is is far.
    silent, far = consumer(world, None, 2), consumer(world, FAR, 2)
    region, near = consumer(world, SAME_REGION, 3), consumer(world, NEAR, 4)
    publish(world, 4)
    held = messages(near.heard())
    assert len(held) == 4
    publish(world, 5)
    assert len(messages(region.heard())) == 3
    assert len(messages(far.heard()) + messages(silent.heard())) == 2
    assert near.heard() == []
    # Who is near and can take again is the first again.
    near.say(b"".join(fin(message_id) for message_id, _, _ in held))
    publish(world, 3)
    assert len(messages(near.heard())) == 3


def test_far_clients_take_turns(make_world: Callable[..., World]):
    world = make_world(**HERE)
    consumers = [consumer(world, FAR, 10) for _ in range(3)]
    publish(world, 6)
    assert [len(messages(client.heard())) for client in consumers] == [2, 2, 2]


def test_deliveries_are_counted_by_nearness_also_of_those_who_left(make_world: Callable[..., World]):
    world = make_world(**HERE)
    near, far = consumer(world, NEAR, 4), consumer(world, FAR, 4)
    publish(world, 5)
    far.session.disconnected(world.now)
    found = channel_stats(world)
    assert (found["zone_local_msg_count"], found["global_msg_count"]) == (4, 1)
    assert "region_local_msg_count" not in found
    assert stats.client_stats(near.session)["zone_local_msg_count"] == 4
    keys = list(found)
    assert keys[keys.index("message_count") + 1] == "zone_local_msg_count"


def test_without_the_experiment_all_are_served_alike_and_nothing_is_counted(make_world: Callable[..., World]):
    world = make_world(topology_zone="z1", topology_region="r1")
    near, far = consumer(world, NEAR, 10), consumer(world, FAR, 10)
    publish(world, 8)
    assert [len(messages(client.heard())) for client in (near, far)] == [4, 4]
    assert not channel_stats(world).keys() & {ZONE_LOCAL, REGION_LOCAL, GLOBAL}
    assert world.engine.topics["t"].channels["c"].counted == Counter()
