"""Go's own tools, unmodified, on the implementation under test."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from blackbox.daemons import Daemon, Implementation, Nsqd, Nsqlookupd
from blackbox.wire import Conn, wait_until

Connect = Callable[..., Conn]
StartNsqd = Callable[..., Nsqd]
StartLookupd = Callable[..., Nsqlookupd]


class Nsqadmin(Daemon):
    """The web front."""

    program = "nsqadmin"
    loopback = ("--http-address=127.0.0.1:0",)


@pytest.fixture
def cluster(start_nsqd: StartNsqd, start_lookupd: StartLookupd) -> tuple[Nsqd, Nsqlookupd]:
    """A broker that its directory knows."""
    lookupd = start_lookupd("--broadcast-address=127.0.0.1")
    daemon = start_nsqd(f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=127.0.0.1")
    wait_until(lambda: len(lookupd.get("/nodes")["producers"]) == 1)
    return daemon, lookupd


@pytest.fixture
def admin(cluster: tuple[Nsqd, Nsqlookupd], go_nsqd: Implementation, tmp_path: Path) -> Iterator[Nsqadmin]:
    """Go's nsqadmin on the cluster."""
    if not (go_nsqd.folder / "nsqadmin").exists():
        pytest.skip("no nsqadmin beside Go's nsqd")
    admin = Nsqadmin(go_nsqd, tmp_path / "admin", [f"--lookupd-http-address={cluster[1].http_address}"])
    admin.await_listening("HTTP")
    yield admin
    admin.stop()


# case 94
def test_nsqadmin_shows_and_changes_the_cluster(
    connect: Connect, cluster: tuple[Nsqd, Nsqlookupd], admin: Nsqadmin
) -> None:
    daemon, lookupd = cluster
    conn = connect(daemon)
    conn.mpub("topic", b"one", b"two", b"three")
    conn.subscribe("topic", "channel", ready=1)
    conn.message()
    wait_until(lambda: lookupd.get("/channels?topic=topic")["channels"])
    assert admin.get("/api/topics")["topics"] == ["topic"]
    topic = admin.get("/api/topics/topic")
    assert (topic["message_count"], topic["depth"], topic["message"]) == (3, 0, "")
    channel = admin.get("/api/topics/topic/channel")
    assert (channel["in_flight_count"], channel["depth"], channel["client_count"]) == (1, 2, 1)
    (node,) = admin.get("/api/nodes")["nodes"]
    assert (node["tcp_port"], node["out_of_date"], node["topics"]) == (
        daemon.port("TCP"),
        False,
        [{"topic": "topic", "tombstoned": False}],
    )
    name = f"127.0.0.1:{daemon.port('HTTP')}"
    shown = admin.get(f"/api/nodes/{name}")
    assert (shown["total_messages"], shown["total_clients"]) == (3, 1)
    admin.post("/api/topics/topic/channel", b'{"action":"pause"}')
    assert daemon.channel("topic", "channel")["paused"] is True
    admin.post("/api/topics/topic/channel", b'{"action":"unpause"}')
    assert daemon.channel("topic", "channel")["paused"] is False
    admin.post("/api/topics/topic/channel", b'{"action":"empty"}')
    assert daemon.channel("topic", "channel")["depth"] == 0
    admin.post("/api/topics", b'{"topic":"made","channel":"too"}')
    assert lookupd.get("/channels?topic=made")["channels"] == ["too"]
    assert admin.http("DELETE", "/api/topics/topic/channel").status == 200
    assert daemon.channel_names("topic") == set()
    assert admin.http("DELETE", f"/api/nodes/{name}", b'{"topic":"topic"}').status == 200
    # The tombstone keeps consumers away while the node drops the topic.
    assert "topic" not in daemon.topic_names()
    connect(daemon).publish("again", b"body")
    # nsqd answers before it registers; until then lookupd has never heard of the topic.
    wait_until(lambda: "again" in lookupd.get("/topics")["topics"])
    assert admin.http("DELETE", "/api/topics/again").status == 200
    assert "again" not in daemon.topic_names()
    assert "again" not in lookupd.get("/topics")["topics"]


def run_tool(go_nsqd: Implementation, name: str, *flags: str, feed: bytes = b"", patience: float = 20) -> str:
    """A tool of Go's that ends by itself; what it wrote."""
    if not (go_nsqd.folder / name).exists():
        pytest.skip(f"no {name} beside Go's nsqd")
    done = subprocess.run(
        [go_nsqd.folder / name, *flags], input=feed, capture_output=True, timeout=patience, check=True
    )
    return done.stdout.decode()


# case 94
def test_nsq_stat_shows_a_channel(connect: Connect, cluster: tuple[Nsqd, Nsqlookupd], go_nsqd: Implementation) -> None:
    daemon, lookupd = cluster
    conn = connect(daemon)
    conn.mpub("topic", b"one", b"two", b"three")
    conn.subscribe("topic", "channel", ready=1)
    conn.message()
    wait_until(lambda: lookupd.get("/channels?topic=topic")["channels"])
    names = ["--topic=topic", "--channel=channel", "--interval=100ms", "--count=1"]
    for address in (f"--nsqd-http-address={daemon.http_address}", f"--lookupd-http-address={lookupd.http_address}"):
        last = run_tool(go_nsqd, "nsq_stat", address, *names).splitlines()[-1]
        # ingress, egress | depth: total, memory, disk, in flight, deferred | requeued, timed out, messages, clients
        assert last.replace("|", " ").split() == ["0", "0", "2", "2", "0", "1", "0", "0", "0", "3", "1"]


# case 94
def test_to_nsq_and_nsq_tail(connect: Connect, cluster: tuple[Nsqd, Nsqlookupd], go_nsqd: Implementation) -> None:
    daemon, _ = cluster
    run_tool(go_nsqd, "to_nsq", f"--nsqd-tcp-address={daemon.tcp_address}", "--topic=topic", feed=b"one\ntwo\nthree\n")
    wait_until(lambda: daemon.topic("topic")["message_count"] == 3)
    out = run_tool(go_nsqd, "nsq_tail", f"--nsqd-tcp-address={daemon.tcp_address}", "--topic=topic", "-n=3")
    assert sorted(out.split()) == ["one", "three", "two"]
    # It consumed through a channel that goes with it.
    wait_until(lambda: daemon.channel_names("topic") == set())


# case 94
def test_nsq_to_file_finds_the_broker_by_its_directory(
    connect: Connect, cluster: tuple[Nsqd, Nsqlookupd], go_nsqd: Implementation, tmp_path: Path
) -> None:
    daemon, lookupd = cluster
    connect(daemon).publish("topic", *[b"line %d" % number for number in range(50)])
    process = subprocess.Popen(
        [
            go_nsqd.folder / "nsq_to_file",
            f"--lookupd-http-address={lookupd.http_address}",
            "--topic=topic",
            f"--output-dir={tmp_path / 'out'}",
            "--filename-format=<TOPIC>.log",
            "--sync-interval=100ms",
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        expected = b"".join(b"line %d\n" % number for number in range(50))
        written = tmp_path / "out" / "topic.log"
        wait_until(lambda: written.exists() and len(written.read_bytes()) == len(expected))
        assert sorted(written.read_bytes().splitlines()) == sorted(expected.splitlines())
        wait_until(lambda: daemon.channel("topic", "nsq_to_file")["in_flight_count"] == 0)
    finally:
        process.terminate()
        process.wait(20)
