"""/stats in both forms, and /config."""

import re
import time
from collections.abc import Callable

import pytest
from blackbox.daemons import Nsqd
from blackbox.http import Response
from blackbox.wire import Conn, wait_until

Connect = Callable[..., Conn]
StartNsqd = Callable[..., Nsqd]
ModuleNsqd = Callable[..., Nsqd]

TOP_KEYS = "version health start_time topics memory producers"
MEMORY_KEYS = (
    "heap_objects heap_idle_bytes heap_in_use_bytes heap_released_bytes gc_pause_usec_100 gc_pause_usec_99"
    " gc_pause_usec_95 next_gc_bytes gc_total_runs"
)
TOPIC_KEYS = "topic_name channels depth backend_depth message_count message_bytes paused e2e_processing_latency"
CHANNEL_KEYS = (
    "channel_name depth backend_depth in_flight_count deferred_count message_count requeue_count timeout_count"
    " client_count clients paused e2e_processing_latency"
)
CLIENT_KEYS = (
    "client_id hostname version remote_address state ready_count in_flight_count message_count finish_count"
    " requeue_count connect_ts sample_rate deflate snappy user_agent tls tls_cipher_suite tls_version"
    " tls_negotiated_protocol tls_negotiated_protocol_is_mutual"
)
# What Go's master adds, and what shows only where it applies.
OPTIONAL_KEYS = {
    *("topology_zone", "topology_region", "zone_local_msg_count", "region_local_msg_count", "global_msg_count"),
    *("authed", "auth_identity", "auth_identity_url", "pub_counts"),
}


def check_keys(found: dict[str, object], keys: str) -> None:
    """Keys in their order, whatever optional ones are between them."""
    assert [key for key in found if key not in OPTIONAL_KEYS] == keys.split()


# case 90
def test_stats_have_their_keys_in_order(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conn = connect()
    conn.identify(client_id="me", user_agent="test/1", sample_rate=7)
    conn.subscribe(topic, "channel", ready=3)
    connect().publish(topic, b"body")
    found = nsqd.stats(topic=topic)
    check_keys(found, TOP_KEYS)
    check_keys(found["memory"], MEMORY_KEYS)
    check_keys(found["topics"][0], TOPIC_KEYS)
    channel = found["topics"][0]["channels"][0]
    check_keys(channel, CHANNEL_KEYS)
    check_keys(channel["clients"][0], CLIENT_KEYS)
    assert (found["version"], found["health"]) == ("1.3.0", "OK")
    assert abs(found["start_time"] - time.time()) < 3600
    assert found["topics"][0]["e2e_processing_latency"] == {"count": 0, "percentiles": None}
    assert channel["e2e_processing_latency"] == {"count": 0, "percentiles": None}
    client = channel["clients"][0]
    expected = {
        "client_id": "me",
        "hostname": "",
        "version": "V2",
        "state": 3,
        "ready_count": 3,
        "sample_rate": 7,
        "deflate": False,
        "snappy": False,
        "user_agent": "test/1",
        "tls": False,
        "tls_version": "",
    }
    assert {key: client[key] for key in expected} == expected
    assert re.fullmatch(r"127\.0\.0\.1:\d+", client["remote_address"])
    assert abs(client["connect_ts"] - time.time()) < 3600


# case 90
def test_stats_count(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conn = connect()
    conn.mpub(topic, b"one", b"two", b"three", b"four")
    conn.subscribe(topic, "channel", ready=3)
    first, second, _ = conn.messages(3)
    conn.ready(1)
    conn.finish(first)
    conn.requeue(second, 60000)
    conn.round_trip()
    found = nsqd.topic(topic)
    expected = {"depth": 0, "backend_depth": 0, "message_count": 4, "message_bytes": 15, "paused": False}
    assert {key: found[key] for key in expected} == expected
    channel = found["channels"][0]
    expected = {
        "depth": 1,
        "in_flight_count": 1,
        "deferred_count": 1,
        "message_count": 4,
        "requeue_count": 1,
        "timeout_count": 0,
        "client_count": 1,
    }
    assert {key: channel[key] for key in expected} == expected
    client = channel["clients"][0]
    expected = {"ready_count": 1, "in_flight_count": 1, "message_count": 3, "finish_count": 1, "requeue_count": 1}
    assert {key: client[key] for key in expected} == expected


# case 90
def test_filters_of_stats(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    for name in (topic + "b", topic + "a"):
        nsqd.post(f"/topic/create?topic={name}")
        nsqd.post(f"/channel/create?topic={name}&channel=z{topic}")
        nsqd.post(f"/channel/create?topic={name}&channel=y{topic}")
    names = [found["topic_name"] for found in nsqd.stats()["topics"]]
    assert names == sorted(names)
    (found,) = nsqd.stats(topic=topic + "a")["topics"]
    assert [channel["channel_name"] for channel in found["channels"]] == [f"y{topic}", f"z{topic}"]
    (found,) = nsqd.stats(topic=topic + "a", channel="z" + topic)["topics"]
    assert [channel["channel_name"] for channel in found["channels"]] == [f"z{topic}"]
    assert nsqd.stats(topic=topic + "a", channel="unknown")["topics"] == []
    with_channel = nsqd.stats(channel="z" + topic)["topics"]
    assert [found["topic_name"] for found in with_channel] == [topic + "a", topic + "b"]
    assert nsqd.stats(topic="unknown")["topics"] is None


# case 90
@pytest.mark.parametrize("off", ["false", "0"])
def test_stats_without_clients_and_memory(connect: Connect, nsqd: Nsqd, topic: str, off: str) -> None:
    conn = connect()
    conn.subscribe(topic, "channel")
    conn.publish(topic, b"body")
    found = nsqd.stats(topic=topic, include_clients=off, include_mem=off)
    channel = found["topics"][0]["channels"][0]
    assert (channel["clients"], channel["client_count"]) == (None, 1)
    assert found["producers"] is None
    assert "memory" not in found
    found = nsqd.stats(topic=topic, include_clients="whatever", include_mem="whatever")
    assert len(found["topics"][0]["channels"][0]["clients"]) == 1
    assert found["producers"]
    assert "memory" in found


# case 90
def test_nulls_of_an_idle_broker(start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd()
    found = daemon.stats()
    assert found["topics"] == []
    assert found["producers"] is None
    daemon.post("/topic/create?topic=t")
    assert daemon.topic("t")["channels"] == []
    daemon.post("/channel/create?topic=t&channel=c")
    assert daemon.channel("t", "c")["clients"] == []


# case 90
def test_bad_query_of_stats(nsqd: Nsqd) -> None:
    answer = nsqd.http("GET", "/stats?format=%zz")
    assert (answer.status, answer.body) == (400, b'{"message":"INVALID_REQUEST"}')


# case 90
def test_names_in_json_are_escaped_as_go_does(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conn = connect()
    conn.identify(client_id='<&>"\u2028ü')
    conn.subscribe(topic, "channel")
    text = nsqd.http("GET", f"/stats?format=json&topic={topic}").text
    assert '"client_id":"\\u003c\\u0026\\u003e\\"\\u2028ü"' in text


# case 90
def test_text_of_stats(connect: Connect, start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd()
    assert "\nTopics: None\n\nProducers: None\n" in daemon.http("GET", "/stats").text
    conn, producer = connect(daemon), connect(daemon)
    conn.identify(user_agent="test/1", hostname="here")
    conn.subscribe("topic", "channel", ready=7)
    producer.publish("topic", b"body")
    conn.message()
    conn.round_trip()
    daemon.post("/topic/create?topic=waits")
    daemon.post("/channel/create?topic=waits&channel=here")
    daemon.post("/topic/pause?topic=waits")
    daemon.post("/channel/pause?topic=waits&channel=here")
    answer = daemon.http("GET", "/stats")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    text = answer.text
    assert re.match(
        r"nsqd v1\.3\.0 \(built w/\S+\)\n"
        r"start_time \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)\n"
        r"uptime (\d+h)?(\d+m)?[\d.]+(s|ms|µs)\n"
        r"\nHealth: OK\n"
        r"\nMemory:\n   heap_objects             \t\d+\n",
        text,
    ), text
    latency = ""
    expected = (
        "\nTopics:"
        f"\n   [topic          ] depth: 0     be-depth: 0     msgs: 1        e2e%: {latency}\n"
        "      [channel                  ] depth: 0     be-depth: 0     inflt: 1    def: 0    re-q: 0     "
        f"timeout: 0     msgs: 1        e2e%: {latency}\n"
    )
    assert expected in text
    assert (
        f"\n*P [waits          ] depth: 0     be-depth: 0     msgs: 0        e2e%: {latency}\n"
        "   *P [here                     ] depth: 0 "
    ) in text
    assert re.search(
        r"\n        \[V2 here:\d+ test/1 *\] state: 3 inflt: 1    rdy: 7    "
        r"fin: 0        re-q: 0        msgs: 1        connected: \d+s\n",
        text,
    ), text
    published = r"msgs: 1        topics: topic=1 connected: \d+s\n"
    assert re.search(rf"\nProducers:\n   \[V2 127\.0\.0\.1:\d+ +\] {published}", text), text
    assert "Memory:" not in daemon.http("GET", "/stats?include_mem=0").text


DURATIONS = {
    "http_client_connect_timeout": 2_000_000_000,
    "http_client_request_timeout": 5_000_000_000,
    "sync_timeout": 2_000_000_000,
    "msg_timeout": 60_000_000_000,
    "max_msg_timeout": 900_000_000_000,
    "max_req_timeout": 3_600_000_000_000,
    "max_heartbeat_interval": 60_000_000_000,
    "max_output_buffer_timeout": 30_000_000_000,
    "min_output_buffer_timeout": 25_000_000,
    "output_buffer_timeout": 250_000_000,
    "statsd_interval": 60_000_000_000,
    "e2e_processing_latency_window_time": 600_000_000_000,
}
DEFAULTS = DURATIONS | {
    "log_level": 2,
    "nsqlookupd_tcp_addresses": [],
    "auth_http_addresses": [],
    "mem_queue_size": 10000,
    "max_bytes_per_file": 104857600,
    "sync_every": 2500,
    "queue_scan_selection_count": 20,
    "queue_scan_worker_pool_max": 4,
    "max_msg_size": 1048576,
    "max_body_size": 5242880,
    "max_rdy_count": 2500,
    "max_output_buffer_size": 65536,
    "max_channel_consumers": 0,
    "statsd_mem_stats": True,
    "statsd_udp_packet_size": 508,
    "statsd_exclude_ephemeral": False,
    "e2e_processing_latency_percentiles": [],
    "tls_required": 0,
    "deflate": True,
    "max_deflate_level": 6,
    "snappy": True,
}
TEXTS = {
    "log_prefix": "[nsqd] ",
    "tcp_address": "127.0.0.1:0",
    "http_address": "127.0.0.1:0",
    "statsd_address": "",
    "tls_cert": "",
    "tls_key": "",
    "tls_client_auth_policy": "",
    "tls_root_ca_file": "",
}


def config(nsqd: Nsqd, option: str) -> Response:
    """What /config says of an option."""
    answer = nsqd.http("GET", f"/config/{option}")
    assert (answer.status, answer.headers["x-nsq-content-type"]) == (200, "nsq; version=1.0")
    return answer


# case 91
@pytest.mark.parametrize("option", DEFAULTS)
def test_config_in_json(nsqd: Nsqd, option: str) -> None:
    answer = config(nsqd, option)
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.json == DEFAULTS[option]


# case 91
@pytest.mark.parametrize("option", TEXTS)
def test_config_in_text(nsqd: Nsqd, option: str) -> None:
    answer = config(nsqd, option)
    assert answer.headers.get("content-type") == ("text/plain; charset=utf-8" if TEXTS[option] else None)
    assert answer.text == TEXTS[option]


# case 91
def test_config_of_what_the_machine_decides(nsqd: Nsqd) -> None:
    assert config(nsqd, "data_path").text == str(nsqd.folder)
    assert 0 <= config(nsqd, "id").json < 1024
    assert config(nsqd, "broadcast_address").text == nsqd.get("/info")["broadcast_address"]
    assert config(nsqd, "broadcast_tcp_port").json == nsqd.port("TCP")
    assert config(nsqd, "broadcast_http_port").json == nsqd.port("HTTP")
    assert config(nsqd, "tls_min_version").json in {0x0301, 0x0303}
    host = nsqd.get("/info")["broadcast_address"].replace(".", "_")
    assert config(nsqd, "statsd_prefix").text == f"nsq.{host}_{nsqd.port('HTTP')}."


# case 91
@pytest.mark.parametrize("option", ["unknown", "config", "version", "verbose", "worker_id", "msg-timeout"])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_config_of_unknown_options(nsqd: Nsqd, method: str, option: str) -> None:
    answer = nsqd.http(method, f"/config/{option}", b"1" if method == "PUT" else None)
    assert (answer.status, answer.body) == (400, b'{"message":"INVALID_OPTION"}')


@pytest.fixture(scope="module")
def changed(module_nsqd: ModuleNsqd) -> Nsqd:
    """A broker whose settings may be changed."""
    return module_nsqd("--max-msg-size=100")


# case 91
@pytest.mark.parametrize(
    ("option", "body", "status", "text"),
    [
        ("log_level", b"debug", 200, "1"),
        ("log_level", b"WARN", 200, "3"),
        ("log_level", b"error", 200, "4"),
        ("log_level", b"fatal", 200, "5"),
        ("log_level", b"info", 200, "2"),
        ("log_level", b"warning", 400, '{"message":"INVALID_VALUE"}'),
        ("log_level", b"", 413, '{"message":"INVALID_VALUE"}'),
        ("log_level", b"x" * 101, 413, '{"message":"INVALID_VALUE"}'),
        ("nsqlookupd_tcp_addresses", b"null", 200, "null"),
        ("nsqlookupd_tcp_addresses", b"[]", 200, "[]"),
        ("nsqlookupd_tcp_addresses", b'"x"', 400, '{"message":"INVALID_VALUE"}'),
        ("nsqlookupd_tcp_addresses", b"nonsense", 400, '{"message":"INVALID_VALUE"}'),
        ("max_msg_size", b"5", 400, '{"message":"INVALID_OPTION"}'),
    ],
)
def test_config_can_be_changed(changed: Nsqd, option: str, body: bytes, status: int, text: str) -> None:
    answer = changed.http("PUT", f"/config/{option}", body)
    assert (answer.status, answer.text) == (status, text)
    if status == 200:
        assert config(changed, option).text == text


# case 107
def test_latency_percentiles_in_stats(connect: Connect, start_nsqd: StartNsqd) -> None:
    quantiles = ["--e2e-processing-latency-percentile=0.5", "--e2e-processing-latency-percentile=0.99"]
    daemon = start_nsqd(*quantiles, "--e2e-processing-latency-window-time=1m")
    conn = connect(daemon)
    conn.mpub("topic", *[b"x"] * 20)
    conn.subscribe("topic", "channel", ready=20)
    messages = conn.messages(20)
    conn.finish(*messages)
    conn.round_trip()
    age = time.time_ns() - messages[0].timestamp_ns
    latency = daemon.channel("topic", "channel")["e2e_processing_latency"]
    assert latency["count"] == 20
    assert [entry["quantile"] for entry in latency["percentiles"]] == [0.99, 0.5]
    assert all(0 < entry["value"] <= age for entry in latency["percentiles"])
    assert daemon.topic("topic")["e2e_processing_latency"]["count"] == 20
    text = daemon.http("GET", "/stats").text
    assert re.search(r"\[channel +\].* e2e%: [\d.]+(s|ms|us|ns), [\d.]+(s|ms|us|ns)\n", text), text


def test_configured_percentiles_are_told(start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd("--e2e-processing-latency-percentile=0.5,0.999", "--msg-timeout=90s")
    assert wait_until(lambda: config(daemon, "e2e_processing_latency_percentiles").json) == [0.999, 0.5]
    assert config(daemon, "msg_timeout").json == 90_000_000_000
