"""What operators do to topics and channels: pause, empty, delete; and how ephemeral ones go by themselves."""

from collections.abc import Callable

import pytest
from blackbox.daemons import Nsqd
from blackbox.wire import Conn, wait_until

Connect = Callable[..., Conn]
StartNsqd = Callable[..., Nsqd]
ModuleNsqd = Callable[..., Nsqd]

NOT_IN_FLIGHT = "E_FIN_FAILED FIN {id} failed ID not in flight"


# case 64
def test_paused_channel_delivers_nothing_but_fills(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conn = connect()
    conn.subscribe(topic, "channel", ready=5)
    conn.publish(topic, b"before")
    before = conn.message()
    nsqd.post(f"/channel/pause?topic={topic}&channel=channel")
    assert nsqd.channel(topic, "channel")["paused"] is True
    conn.publish(topic, b"during")
    wait_until(lambda: nsqd.channel(topic, "channel")["depth"] == 1)
    conn.finish(before)
    conn.round_trip()
    channel = nsqd.channel(topic, "channel")
    assert (channel["depth"], channel["in_flight_count"]) == (1, 0)
    assert not conn.held
    nsqd.post(f"/channel/unpause?topic={topic}&channel=channel")
    assert conn.message().body == b"during"
    assert nsqd.channel(topic, "channel")["paused"] is False


# case 64
def test_paused_topic_copies_nothing_to_channels(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conn = connect()
    conn.subscribe(topic, "channel", ready=5)
    nsqd.post(f"/topic/pause?topic={topic}")
    assert nsqd.topic(topic)["paused"] is True
    conn.publish(topic, b"during")
    conn.round_trip()
    assert (nsqd.topic(topic)["depth"], nsqd.channel(topic, "channel")["message_count"]) == (1, 0)
    assert not conn.held
    nsqd.post(f"/topic/unpause?topic={topic}")
    assert conn.message().body == b"during"


# case 64
@pytest.mark.parametrize("graceful", [True, False], ids=["stop", "kill"])
def test_pause_survives_a_restart(connect: Connect, start_nsqd: StartNsqd, graceful: bool) -> None:
    daemon = start_nsqd()
    for topic in ("whole", "part", "undone"):
        daemon.post(f"/topic/create?topic={topic}")
        daemon.post(f"/channel/create?topic={topic}&channel=channel")
        daemon.post(f"/topic/pause?topic={topic}")
        daemon.post(f"/channel/pause?topic={topic}&channel=channel")
    daemon.post("/topic/unpause?topic=part")
    daemon.post("/topic/unpause?topic=undone")
    daemon.post("/channel/unpause?topic=whole&channel=channel")
    daemon.post("/channel/unpause?topic=undone&channel=channel")
    if graceful:
        daemon.stop()
    else:
        daemon.kill()
    daemon = start_nsqd()
    for topic, expected in {"whole": (True, False), "part": (False, True), "undone": (False, False)}.items():
        assert (daemon.topic(topic)["paused"], daemon.channel(topic, "channel")["paused"]) == expected
    conn = connect(daemon)
    conn.subscribe("part", "channel", ready=1)
    conn.publish("part", b"body")
    wait_until(lambda: daemon.channel("part", "channel")["depth"] == 1)
    conn.round_trip()
    assert not conn.held


# case 65
def test_emptied_channel_forgets_everything_and_goes_on(connect: Connect, nsqd: Nsqd, ripe_topic: str) -> None:
    conn = connect()
    conn.subscribe(ripe_topic, "ch", ready=2)
    conn.mpub(ripe_topic, *[b"%d" % number for number in range(5)])
    first, second = conn.messages(2)
    conn.requeue(second, 600)
    third = conn.message()
    conn.round_trip()
    channel = nsqd.channel(ripe_topic, "ch")
    assert (channel["in_flight_count"], channel["deferred_count"], channel["depth"]) == (2, 1, 2)
    nsqd.post(f"/channel/empty?topic={ripe_topic}&channel=ch")
    channel = nsqd.channel(ripe_topic, "ch")
    assert (channel["in_flight_count"], channel["deferred_count"], channel["depth"]) == (0, 0, 0)
    assert channel["clients"][0]["in_flight_count"] == 0
    for message in (first, third):
        conn.finish(message)
        assert conn.error() == NOT_IN_FLIGHT.format(id=message.id.decode())
    conn.mpub(ripe_topic, b"new", b"newer")
    assert [message.body for message in conn.messages(2)] == [b"new", b"newer"]
    conn.command(f"DPUB {ripe_topic} 700", b"latest")
    conn.ok()
    conn.ready(3)
    # The emptied message would have been due before this one.
    assert conn.message().body == b"latest"


# case 66
def test_emptied_topic_leaves_its_channels_alone(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conn = connect()
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=channel")
    conn.publish(topic, b"in the channel")
    wait_until(lambda: nsqd.channel(topic, "channel")["depth"] == 1)
    nsqd.post(f"/topic/pause?topic={topic}")
    conn.publish(topic, b"in the topic")
    assert nsqd.topic(topic)["depth"] == 1
    nsqd.post(f"/topic/empty?topic={topic}")
    assert (nsqd.topic(topic)["depth"], nsqd.channel(topic, "channel")["depth"]) == (0, 1)
    nsqd.post(f"/topic/unpause?topic={topic}")
    conn.publish(topic, b"new")
    conn.subscribe(topic, "channel", ready=5)
    assert [message.body for message in conn.messages(2)] == [b"in the channel", b"new"]


# case 67
def test_deleted_channel_closes_its_consumers_only(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    consumers = [connect(), connect()]
    other, publisher = connect(), connect()
    for conn in consumers:
        conn.subscribe(topic, "channel", ready=1)
    other.subscribe(topic, "other", ready=2)
    publisher.publish(topic, b"one")
    assert other.message().body == b"one"
    nsqd.post(f"/channel/delete?topic={topic}&channel=channel")
    for conn in consumers:
        conn.closed()
    assert nsqd.channel_names(topic) == {"other"}
    publisher.publish(topic, b"two")
    assert other.message().body == b"two"


# case 67
def test_deleted_channel_comes_back_empty(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conn, again = connect(), connect()
    conn.subscribe(topic, "channel")
    again.publish(topic, b"old", b"older")
    nsqd.post(f"/channel/delete?topic={topic}&channel=channel")
    conn.closed()
    again.subscribe(topic, "channel", ready=5)
    again.publish(topic, b"new")
    assert again.message().body == b"new"
    assert nsqd.channel(topic, "channel")["message_count"] == 1


# case 67
def test_deleted_topic_closes_consumers_but_not_publishers(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conn, publisher = connect(), connect()
    conn.subscribe(topic, "channel")
    publisher.publish(topic, b"one")
    nsqd.post(f"/topic/delete?topic={topic}")
    conn.closed()
    assert topic not in nsqd.topic_names()
    publisher.publish(topic, b"two")
    assert (nsqd.topic(topic)["depth"], nsqd.topic(topic)["channels"]) == (1, [])


# case 68
def test_ephemeral_channel_vanishes_with_its_last_consumer(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    first, second = connect(), connect()
    first.subscribe(topic, "c#ephemeral", ready=1)
    second.subscribe(topic, "c#ephemeral", ready=1)
    first.publish(topic, b"body")
    first.close()
    wait_until(lambda: nsqd.channel(topic, "c#ephemeral")["client_count"] == 1)
    second.close()
    wait_until(lambda: not nsqd.channel_names(topic))
    assert topic in nsqd.topic_names()


# case 68
def test_ephemeral_channel_made_over_http_waits_for_its_first_consumer(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=c%23ephemeral")
    conn = connect()
    conn.publish(topic, b"body")
    conn.subscribe(topic, "c#ephemeral", ready=1)
    assert conn.message().body == b"body"
    conn.close()
    wait_until(lambda: not nsqd.channel_names(topic))


# case 68
@pytest.mark.parametrize("kind", ["channel", "topic"])
def test_ephemeral_overflow_is_dropped_and_counted(
    connect: Connect, module_nsqd: ModuleNsqd, topic: str, kind: str
) -> None:
    daemon = module_nsqd("--mem-queue-size=10")
    name, channel = (topic, "c#ephemeral") if kind == "channel" else (topic + "#ephemeral", "")
    query = name.replace("#", "%23")
    daemon.post(f"/topic/create?topic={query}")
    if channel:
        daemon.post(f"/channel/create?topic={query}&channel=c%23ephemeral")
    conn = connect(daemon)
    conn.publish(name, *[b"%d" % number for number in range(30)])
    wait_until(lambda: not channel or daemon.channel(query, channel)["message_count"] == 30)
    place = daemon.channel(query, channel) if channel else daemon.topic(query)
    assert (place["depth"], place["backend_depth"], place["message_count"]) == (10, 0, 30)
    conn.subscribe(name, channel or "next", ready=100)
    assert [message.body for message in conn.messages(10)] == [b"%d" % number for number in range(10)]
    conn.round_trip()
    assert not conn.held


# case 69
def test_ephemeral_topic_vanishes_with_its_last_channel(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    name, query = f"{topic}#ephemeral", f"{topic}%23ephemeral"
    conn = connect()
    conn.publish(name, b"body")
    assert name in nsqd.topic_names()
    conn.subscribe(name, "c#ephemeral", ready=1)
    assert conn.message().body == b"body"
    conn.close()
    wait_until(lambda: name not in nsqd.topic_names())
    nsqd.post(f"/topic/create?topic={query}")
    nsqd.post(f"/channel/create?topic={query}&channel=plain")
    nsqd.post(f"/channel/delete?topic={query}&channel=plain")
    wait_until(lambda: name not in nsqd.topic_names())


# case 69
def test_ephemeral_topic_lives_as_long_as_a_plain_channel(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conn = connect()
    conn.subscribe(f"{topic}#ephemeral", "plain", ready=1)
    conn.close()
    wait_until(lambda: nsqd.channel(f"{topic}%23ephemeral", "plain")["client_count"] == 0)
    assert f"{topic}#ephemeral" in nsqd.topic_names()
