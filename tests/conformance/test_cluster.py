"""nsqd and its directories: registration, reconnection, channels known elsewhere, both implementations together."""

import json
import socket
from collections.abc import Callable
from functools import partial

import pytest
from blackbox.daemons import Implementation, Nsqd, Nsqlookupd
from blackbox.fakes import FakeHttp, FakeLookupd
from blackbox.wire import Conn, wait_until

Connect = Callable[..., Conn]
StartNsqd = Callable[..., Nsqd]
StartLookupd = Callable[..., Nsqlookupd]


# case 95
def test_broker_introduces_itself_and_its_topics(start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd()
    daemon.post("/topic/create?topic=bare")
    for channel in ("one", "two"):
        daemon.post("/topic/create?topic=full")
        daemon.post(f"/channel/create?topic=full&channel={channel}")
    daemon.stop()
    with FakeLookupd() as lookupd:
        daemon = start_nsqd(
            f"--lookupd-tcp-address={lookupd.address}", "--broadcast-address=me", "--broadcast-tcp-port=7"
        )
        lookupd.await_lines("REGISTER bare", "REGISTER full one", "REGISTER full two")
        assert lookupd.magic == [b"  V1"]
        assert lookupd.lines()[0] == "IDENTIFY"
        assert lookupd.lines().count("IDENTIFY") == 1
        body = json.loads(lookupd.commands[0].body)
        expected = {"broadcast_address": "me", "tcp_port": 7, "http_port": daemon.port("HTTP"), "version": "1.3.0"}
        assert {key: body[key] for key in expected} == expected
        assert body["hostname"] == socket.gethostname()


# case 95
def test_changes_are_told(connect: Connect, start_nsqd: StartNsqd) -> None:
    with FakeLookupd() as lookupd:
        daemon = start_nsqd(f"--lookupd-tcp-address={lookupd.address}")
        wait_until(lambda: lookupd.lines() == ["IDENTIFY"])
        conn = connect(daemon)
        conn.publish("topic", b"body")
        lookupd.await_lines("REGISTER topic")
        conn.subscribe("topic", "channel")
        lookupd.await_lines("REGISTER topic channel")
        daemon.post("/channel/delete?topic=topic&channel=channel")
        lookupd.await_lines("UNREGISTER topic channel")
        daemon.post("/channel/create?topic=topic&channel=other%23ephemeral")
        lookupd.await_lines("REGISTER topic other#ephemeral")
        daemon.post("/topic/delete?topic=topic")
        lookupd.await_lines("UNREGISTER topic", "UNREGISTER topic other#ephemeral")
        connect(daemon).publish("left", b"body")
        lookupd.await_lines("REGISTER left")
        assert daemon.stop() == 0
        assert "UNREGISTER left" not in lookupd.lines()
        assert len(lookupd.connections) == 1


# case 97
def test_reconnection_registers_everything_again(start_nsqd: StartNsqd) -> None:
    with FakeLookupd() as lookupd:
        daemon = start_nsqd(f"--lookupd-tcp-address={lookupd.address}")
        daemon.post("/topic/create?topic=topic")
        daemon.post("/channel/create?topic=topic&channel=channel")
        lookupd.await_lines("REGISTER topic channel")
        lookupd.drop()
        made: list[str] = []

        def reconnected() -> bool:
            made.append(f"nudge{len(made)}")
            daemon.post(f"/topic/create?topic={made[-1]}")
            return len(lookupd.connections) > 1

        wait_until(reconnected)
        expected = {"IDENTIFY", "REGISTER topic channel", *[f"REGISTER {name}" for name in made]}
        wait_until(lambda: set(lookupd.lines(connection=1)) >= expected)
        assert lookupd.lines(connection=1)[0] == "IDENTIFY"


# case 97
@pytest.mark.known_defect("D17")
def test_reconnection_needs_no_occasion(start_nsqd: StartNsqd, patience: float) -> None:
    with FakeLookupd() as lookupd:
        daemon = start_nsqd(f"--lookupd-tcp-address={lookupd.address}")
        daemon.post("/topic/create?topic=topic")
        lookupd.await_lines("REGISTER topic")
        lookupd.drop()
        wait_until(lambda: lookupd.lines(connection=1) == ["IDENTIFY", "REGISTER topic"], patience)


def test_directory_that_says_no_is_asked_again_later(start_nsqd: StartNsqd) -> None:
    with FakeLookupd(identify_answer=b"E_INVALID") as lookupd:
        daemon = start_nsqd(f"--lookupd-tcp-address={lookupd.address}")
        wait_until(lambda: lookupd.lines() == ["IDENTIFY"])
        daemon.post("/topic/create?topic=topic")
        wait_until(lambda: lookupd.lines().count("IDENTIFY") >= 2)
        assert set(lookupd.lines()) == {"IDENTIFY"}


def test_directory_that_is_not_there_does_not_matter(connect: Connect, start_nsqd: StartNsqd) -> None:
    with FakeLookupd() as gone:
        address = gone.address
    with FakeLookupd() as lookupd:
        daemon = start_nsqd(f"--lookupd-tcp-address={address}", f"--lookupd-tcp-address={lookupd.address}")
        connect(daemon).publish("topic", b"body")
        lookupd.await_lines("REGISTER topic")


# case 95
@pytest.mark.waits_long
def test_directory_is_pinged_every_15_seconds(nsqd: Nsqd) -> None:
    lookupd = nsqd.directory
    wait_until(lambda: lookupd.lines().count("PING") >= 2, patience=60)
    first, second = [command.at for command in lookupd.commands if command.line == "PING"][:2]
    assert second - first >= 14


def channels_of(*names: str) -> Callable[[str], tuple[int, bytes]]:
    """An HTTP side of a directory that knows these channels."""
    return lambda _: (200, json.dumps({"channels": names}).encode())


def has_one(daemon: Nsqd, channel: str) -> bool:
    """Whether one message waits in a channel."""
    return bool(daemon.channel("topic", channel)["depth"] == 1)


# case 96
def test_new_topic_starts_with_the_channels_known_elsewhere(connect: Connect, start_nsqd: StartNsqd) -> None:
    with (
        FakeHttp(channels_of("a", "b", "e#ephemeral")) as first_http,
        FakeHttp(channels_of("b", "c")) as second_http,
        FakeHttp(lambda _: (500, b"")) as broken_http,
        FakeLookupd(first_http.port) as first,
        FakeLookupd(second_http.port) as second,
        FakeLookupd(broken_http.port) as broken,
    ):
        lookupds = (first, second, broken)
        daemon = start_nsqd(*[f"--lookupd-tcp-address={lookupd.address}" for lookupd in lookupds])
        for lookupd in lookupds:
            lookupd.await_lines("IDENTIFY")
        # The answers to IDENTIFY are in once each directory hears of something later.
        daemon.post("/topic/create?topic=first")
        for lookupd in lookupds:
            lookupd.await_lines("REGISTER first")
        conn = connect(daemon)
        conn.publish("topic", b"first message")
        assert daemon.channel_names("topic") == {"a", "b", "c"}
        for channel in "abc":
            wait_until(partial(has_one, daemon, channel))
        asked = [asked for asked in first_http.asked if asked.target == "/channels?topic=topic"]
        assert len(asked) == 1
        assert asked[0].headers["accept"] == "application/vnd.nsq; version=1.0"


# case 98
def test_directories_can_be_changed_while_running(start_nsqd: StartNsqd) -> None:
    with FakeLookupd() as first, FakeLookupd() as second:
        daemon = start_nsqd(f"--lookupd-tcp-address={first.address}")
        daemon.post("/topic/create?topic=old")
        first.await_lines("REGISTER old")
        both = json.dumps([first.address, second.address])
        answer = daemon.http("PUT", "/config/nsqlookupd_tcp_addresses", both.encode())
        assert (answer.status, json.loads(answer.body)) == (200, json.loads(both))
        second.await_lines("IDENTIFY", "REGISTER old")
        assert first.lines().count("IDENTIFY") == 1
        daemon.http("PUT", "/config/nsqlookupd_tcp_addresses", json.dumps([second.address]).encode())
        # A peer that was dropped reads the end of its connection.
        wait_until(lambda: first.connections[0].fileno() == -1)
        daemon.post("/topic/create?topic=new")
        second.await_lines("REGISTER new")
        assert "REGISTER new" not in first.lines()


def works_together(connect: Connect, daemon: Nsqd, lookupd: Nsqlookupd) -> None:
    """Registration, pre-made channels, deletion, and the end, through a real directory."""
    lookupd.post("/channel/create?topic=known&channel=channel")
    wait_until(lambda: len(lookupd.get("/nodes")["producers"]) == 1)
    # Go's nsqd asks a lookupd for channels once it has heard from it, and registers topics after that.
    daemon.post("/topic/create?topic=early")
    wait_until(lambda: "early" in lookupd.get("/topics")["topics"])
    conn = connect(daemon)
    conn.publish("known", b"body")
    assert daemon.channel_names("known") == {"channel"}
    wait_until(lambda: daemon.channel("known", "channel")["depth"] == 1)
    conn.subscribe("other", "channel")
    wait_until(lambda: {"known", "other"} <= set(lookupd.get("/topics")["topics"]))
    (found,) = wait_until(lambda: lookupd.get("/lookup?topic=other")["producers"])
    assert (found["tcp_port"], found["http_port"]) == (daemon.port("TCP"), daemon.port("HTTP"))
    assert found["version"] == "1.3.0"
    daemon.post("/topic/delete?topic=other")
    wait_until(lambda: lookupd.get("/lookup?topic=other")["producers"] == [])
    daemon.stop()
    wait_until(lambda: lookupd.get("/lookup?topic=known")["producers"] == [])
    assert lookupd.get("/channels?topic=known")["channels"] == ["channel"]


def test_broker_and_directory_work_together(
    connect: Connect, start_nsqd: StartNsqd, start_lookupd: StartLookupd
) -> None:
    lookupd = start_lookupd("--broadcast-address=127.0.0.1")
    works_together(connect, start_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}"), lookupd)


# case 101
@pytest.mark.only("ours", "it meets Go's other half")
@pytest.mark.parametrize("broker", ["go", "ours"])
def test_broker_and_directory_of_two_implementations(
    impl: Implementation,
    go_nsqd: Implementation,
    connect: Connect,
    start_foreign: Callable[..., tuple[Nsqd, Nsqlookupd]],
    broker: str,
) -> None:
    halves = (go_nsqd, impl) if broker == "go" else (impl, go_nsqd)
    works_together(connect, *start_foreign(*halves))


# Fields of Go's master, which its next release will have.
@pytest.mark.only("ours", "Go's release does not have it yet")
def test_place_in_the_network_is_told_everywhere(
    connect: Connect, start_nsqd: StartNsqd, start_lookupd: StartLookupd
) -> None:
    lookupd = start_lookupd()
    place = {"topology_zone": "z1", "topology_region": "r1"}
    daemon = start_nsqd(
        f"--lookupd-tcp-address={lookupd.tcp_address}",
        "--topology-zone=z1",
        "--topology-region=r1",
        "--enable-experiment=topology-aware-consumption",
    )
    conn = connect(daemon)
    reply = conn.identify(topology_zone="z1", topology_region="r1")
    conn.publish("topic", b"body")
    conn.subscribe("topic", "channel", ready=1)
    conn.message()
    (node,) = wait_until(lambda: lookupd.get("/nodes")["producers"])
    for told in (reply, daemon.get("/info"), node):
        assert {key: told[key] for key in place} == place
    (found,) = wait_until(lambda: lookupd.get("/lookup?topic=topic")["producers"])
    assert {key: found[key] for key in place} == place
    client = daemon.channel("topic", "channel")["clients"][0]
    assert {key: client[key] for key in place} == place


@pytest.mark.only("ours", "Go's release does not have it yet")
def test_near_consumers_come_first(connect: Connect, start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd("--topology-zone=z1", "--topology-region=r1", "--enable-experiment=topology-aware-consumption")
    consumers = {}
    for zone, region in (("z9", "r9"), ("z2", "r1"), ("z1", "r1")):
        consumers[zone] = connect(daemon)
        consumers[zone].identify(topology_zone=zone, topology_region=region)
        consumers[zone].subscribe("topic", "channel", ready=2)
    producer = connect(daemon)
    producer.publish("topic", b"1", b"2")
    assert [message.body for message in consumers["z1"].messages(2)] == [b"1", b"2"]
    producer.mpub("topic", b"3", b"4", b"5")
    assert [message.body for message in consumers["z2"].messages(2)] == [b"3", b"4"]
    assert consumers["z9"].message().body == b"5"
    channel = daemon.channel("topic", "channel")
    kinds = ("zone_local", "region_local", "global")
    assert [channel[f"{kind}_msg_count"] for kind in kinds] == [2, 2, 1]
