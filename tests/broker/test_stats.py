"""/stats: what is counted, and the text that scripts cut columns from."""

import json

import gevent
import pytest
from gevent import socket
from simulation.session_world import SECOND, World, greeted, subscribed

from pyspark_nsq.broker import json_go, stats
from pyspark_nsq.broker.logs import Logger
from pyspark_nsq.broker.nsqd_metrics import metrics_page
from pyspark_nsq.broker.statsd_push import push_for_ever
from pyspark_nsq.proto.commands import identify, mpub, pub


def test_keys_and_their_order(world: World):
    subscribed(world, 1)
    greeted(world).say(mpub("t", [b"a", b"bb"]))
    (topic,) = stats.topic_stats(world.engine, world.now) or []
    assert list(topic) == [
        "topic_name", "channels", "depth", "backend_depth", "message_count", "message_bytes", "paused",
        "e2e_processing_latency",
    ]  # fmt: skip
    (channel,) = topic["channels"]
    assert list(channel) == [
        "channel_name", "depth", "backend_depth", "in_flight_count", "deferred_count", "message_count",
        "requeue_count", "timeout_count", "client_count", "clients", "paused", "e2e_processing_latency",
    ]  # fmt: skip
    (client,) = channel["clients"] or []
    assert list(client) == [
        "client_id", "hostname", "version", "remote_address", "state", "ready_count", "in_flight_count",
        "message_count", "finish_count", "requeue_count", "connect_ts", "sample_rate", "deflate", "snappy",
        "user_agent", "tls", "tls_cipher_suite", "tls_version", "tls_negotiated_protocol",
        "tls_negotiated_protocol_is_mutual",
    ]  # fmt: skip
    assert (channel["depth"], channel["in_flight_count"], topic["message_bytes"]) == (1, 1, 3)
    assert (client["client_id"], client["remote_address"]) == ("10.0.0.1", "10.0.0.1:5000")
    json.loads(json_go.dumps(topic))


def test_topics_come_by_name_and_filters_narrow(world: World):
    client = greeted(world)
    client.say(pub("b", b"x") + pub("a", b"x"))
    subscribed(world, topic="b", channel="z")
    subscribed(world, topic="b", channel="y")

    def names(**filters: str) -> list[tuple[str, list[str]]] | None:
        found = stats.topic_stats(world.engine, world.now, **filters)  # type: ignore[arg-type]
        if found is None:
            return None
        return [(topic["topic_name"], [channel["channel_name"] for channel in topic["channels"]]) for topic in found]

    assert names() == [("a", []), ("b", ["y", "z"])]
    assert names(topic="b") == [("b", ["y", "z"])]
    assert names(channel="y") == [("b", ["y"])]
    assert names(topic="a", channel="y") == []
    assert names(topic="none") is None


def test_producers_are_those_who_have_published(world: World):
    idle, busy = greeted(world), greeted(world)
    assert stats.producer_stats([idle.session, busy.session]) is None
    busy.say(pub("t", b"x") + mpub("u", [b"y", b"z"]))
    (producer,) = stats.producer_stats([idle.session, busy.session]) or []
    assert producer["pub_counts"] == [{"topic": "t", "count": 1}, {"topic": "u", "count": 2}]
    (producer,) = stats.producer_stats([busy.session], "u") or []
    assert producer["pub_counts"] == [{"topic": "u", "count": 2}]


def test_text(world: World):
    consumer = greeted(world)
    consumer.say(identify({"client_id": "me", "hostname": "host", "user_agent": "test/1"}) + b"SUB t c\nRDY 1\n")
    producer = greeted(world)
    producer.say(mpub("t", [b"a", b"b"]) + pub("u", b"c"))
    world.engine.topics["u"].pause(world.now)
    document = stats.stats_document(
        world.engine,
        stats.topic_stats(world.engine, world.now),
        stats.producer_stats([consumer.session, producer.session]),
        None,
        world.now,
    )
    text = stats.stats_text(document, world.now + 90 * SECOND, world.now)
    head, _, rest = text.partition("\nHealth: OK\n\n")
    assert head.endswith("\nuptime 1m30s\n")
    assert rest == (
        "Topics:\n"
        "   [t              ] depth: 0     be-depth: 0     msgs: 2        e2e%: \n"
        "      [c                        ] depth: 1     be-depth: 0     inflt: 1    def: 0    re-q: 0    "
        " timeout: 0     msgs: 2        e2e%: \n"
        "        [V2 host:5000 test/1     ] state: 3 inflt: 1    rdy: 1    fin: 0        re-q: 0        msgs: 1       "
        " connected: 1m30s\n"
        "\n"
        "*P [u              ] depth: 1     be-depth: 0     msgs: 1        e2e%: \n"
        "\n"
        "Producers:\n"
        "   [V2 10.0.0.1:5000        ] msgs: 3        topics: t=2,u=1 connected: 1m30s\n"
    )


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(271_000_000, "271.0ms"), (1_500_000_000, "1.5s"), (2_500, "2.5us"), (900, "900ns")],
)
def test_latencies_in_the_text(nanoseconds: int, text: str):
    latency: stats.LatencyStats = {"count": 1, "percentiles": [{"quantile": 0.99, "value": float(nanoseconds)}]}
    assert stats._latency_text(latency) == text


def test_health(world: World):
    assert stats.health_text(world.engine) == "OK"


def test_metrics_have_every_channel(world: World):
    subscribed(world, 1)
    greeted(world).say(mpub("t", [b"a", b"bb"]))
    topics = stats.topic_stats(world.engine, world.now, include_clients=False) or []
    text = metrics_page(world.engine, topics, [], world.now).text()
    for line in (
        'nsqd_topic_message_bytes_total{topic="t"} 3',
        'nsqd_channel_in_flight{topic="t",channel="c"} 1',
        'nsqd_channel_clients{topic="t",channel="c"} 1',
        "nsqd_healthy 1",
    ):
        assert f"\n{line}\n" in f"\n{text}"


def test_statsd_gets_a_report_every_interval():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd:
        statsd.bind(("127.0.0.1", 0))
        statsd.settimeout(20)
        address = f"127.0.0.1:{statsd.getsockname()[1]}"
        reports = iter(range(1000))
        log = Logger("", write=lambda _: None)
        pusher = gevent.spawn(push_for_ever, address, 0.01, 508, lambda: [f"report:{next(reports)}|c\n"], log)
        try:
            assert [statsd.recv(1000) for _ in range(3)] == [b"report:0|c\n", b"report:1|c\n", b"report:2|c\n"]
        finally:
            pusher.kill()
