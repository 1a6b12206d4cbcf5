"""What nsqd tells about itself: /stats in JSON and as text, and what statsd and /metrics are made of.

The keys and their order are those of nsqd's JSON; nsqadmin and many scripts read them.
"""

import gc
import time
from collections.abc import Iterable
from typing import Any, Final, TypedDict

from pyspark_nsq.broker.channel import Channel
from pyspark_nsq.broker.durations import SECOND, format_duration
from pyspark_nsq.broker.engine import Engine
from pyspark_nsq.broker.os_errors import os_error_text
from pyspark_nsq.broker.prometheus import resident_bytes
from pyspark_nsq.broker.session import Session
from pyspark_nsq.broker.topic import Topic
from pyspark_nsq.broker.topology import GLOBAL, REGION_LOCAL, ZONE_LOCAL
from pyspark_nsq.broker.version import NSQ_VERSION, version_text

ClientStats = dict[str, Any]


class LatencyStats(TypedDict):
    """An object in any case: nsqadmin reads into it without looking."""

    count: int
    percentiles: list[dict[str, float]] | None


class NearnessStats(TypedDict, total=False):
    """Deliveries by how near the consumers were."""

    zone_local_msg_count: int
    region_local_msg_count: int
    global_msg_count: int


class ChannelStats(NearnessStats):
    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    clients: list[ClientStats] | None
    paused: bool
    e2e_processing_latency: LatencyStats


class TopicStats(TypedDict):
    topic_name: str
    channels: list[ChannelStats]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: LatencyStats


class MemoryStats(TypedDict):
    """The names are those of Go's memory; the values are what comes nearest in this process."""

    heap_objects: int
    heap_idle_bytes: int
    heap_in_use_bytes: int
    heap_released_bytes: int
    gc_pause_usec_100: int
    gc_pause_usec_99: int
    gc_pause_usec_95: int
    next_gc_bytes: int
    gc_total_runs: int


def topic_stats(
    engine: Engine, now: int, *, topic: str = "", channel: str = "", include_clients: bool = True
) -> list[TopicStats] | None:
    """All topics by name, or the one that is asked for; None where that does not exist."""
    if topic and topic not in engine.topics:
        return None
    topics = [engine.topics[topic]] if topic else [engine.topics[name] for name in sorted(engine.topics)]
    return [
        _topic_stats(item, now, channel, topic if include_clients else None)
        for item in topics
        if not channel or channel in item.channels
    ]


def _topic_stats(topic: Topic, now: int, channel: str, clients_of: str | None) -> TopicStats:
    names = [channel] if channel else sorted(topic.channels)
    return {
        "topic_name": topic.name,
        "channels": [_channel_stats(topic.channels[name], now, clients_of) for name in names],
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": _latency_stats(topic, now),
    }


def _channel_stats(channel: Channel, now: int, clients_of: str | None) -> ChannelStats:
    clients = None
    if clients_of is not None:
        clients = [client_stats(consumer.session, clients_of) for consumer in channel.consumers]  # type: ignore[attr-defined]
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        **_nearness_stats(channel),
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(channel.consumers),
        "clients": clients,
        "paused": channel.paused,
        "e2e_processing_latency": _latency_stats(channel, now),
    }


def _nearness_stats(channel: Channel) -> NearnessStats:
    """Only where it is looked at, and not 0: as Go's master leaves them out."""
    counts = channel.counted
    stats: NearnessStats = {}
    if counts[ZONE_LOCAL]:
        stats["zone_local_msg_count"] = counts[ZONE_LOCAL]
    if counts[REGION_LOCAL]:
        stats["region_local_msg_count"] = counts[REGION_LOCAL]
    if counts[GLOBAL]:
        stats["global_msg_count"] = counts[GLOBAL]
    return stats


def _latency_stats(source: Topic | Channel, now: int) -> LatencyStats:
    percentiles = [{"quantile": quantile, "value": float(value)} for quantile, value in source.latency(now)]
    return {"count": source.latency_count, "percentiles": percentiles or None}


def client_stats(session: Session, topic: str = "") -> ClientStats:
    """One client; of what it has published, only the counts of ``topic`` where one is named."""
    identity, consumer, wire = session.identity, session.consumer, session.wire
    granted = wire.granted if wire is not None else None
    counter = consumer.nearness.counter if consumer and consumer.message_count else ""
    stats: ClientStats = {
        "client_id": identity.client_id,
        "hostname": identity.hostname,
        "version": "V2",
        "remote_address": session.remote_address,
        "state": session.state,
        "ready_count": consumer.ready_count if consumer else 0,
        "in_flight_count": consumer.in_flight_count if consumer else 0,
        "message_count": consumer.message_count if consumer else 0,
        **({counter: consumer.message_count} if consumer and counter else {}),
        "finish_count": consumer.finish_count if consumer else 0,
        "requeue_count": consumer.requeue_count if consumer else 0,
        "connect_ts": session.connected_at // SECOND,
        "sample_rate": identity.sample_rate,
        "deflate": granted is not None and granted.deflate,
        "snappy": granted is not None and granted.snappy,
        "user_agent": identity.user_agent,
    }
    if session.auth.state is not None:
        stats["authed"] = True
        stats |= {
            key: value
            for key, value in (
                ("auth_identity", session.auth.state.identity),
                ("auth_identity_url", session.auth.state.identity_url),
            )
            if value
        }
    if identity.topology_zone:
        stats["topology_zone"] = identity.topology_zone
    if identity.topology_region:
        stats["topology_region"] = identity.topology_region
    counts = [
        {"topic": name, "count": count} for name, count in session.pub_counts.items() if not topic or name == topic
    ]
    if counts:
        stats["pub_counts"] = counts
    return stats | _tls_stats(session)


def _tls_stats(session: Session) -> ClientStats:
    tls = session.wire.tls if session.wire is not None else None
    facts = tls.facts() if tls is not None and tls.established else None
    return {
        "tls": facts is not None,
        "tls_cipher_suite": facts.cipher_suite if facts else "",
        "tls_version": facts.version if facts else "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
    }


def producer_stats(sessions: Iterable[Session], topic: str = "") -> list[ClientStats] | None:
    """Every connection that has published, whatever the topic; null where there is none, as in Go."""
    return [client_stats(session, topic) for session in sessions if session.pub_counts] or None


def memory_stats() -> MemoryStats:
    """Cheap to ask for: no walk over the heap, and no garbage collection."""
    return {
        "heap_objects": sum(gc.get_count()) + gc.get_freeze_count(),
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": resident_bytes(),
        "heap_released_bytes": 0,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": 0,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }


def health_text(engine: Engine) -> str:
    """``OK``, or what the last failed write said."""
    error = engine.health
    return "OK" if error is None else f"NOK - {os_error_text(error)}"


def stats_document(
    engine: Engine,
    topics: list[TopicStats] | None,
    producers: list[ClientStats] | None,
    memory: MemoryStats | None,
    start_time: int,
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "version": NSQ_VERSION,
        "health": health_text(engine),
        "start_time": start_time // SECOND,
        "topics": topics,
    }
    if memory is not None:
        document["memory"] = memory
    document["producers"] = producers
    return document


# The same as text


def stats_text(document: dict[str, Any], now: int, start_time: int) -> str:
    """The layout that people's scripts cut columns from."""
    started = time.localtime(start_time // SECOND)
    offset = time.strftime("%z", started)
    zone = "Z" if offset == "+0000" else f"{offset[:3]}:{offset[3:]}"
    lines = [
        version_text("nsqd"),
        f"start_time {time.strftime('%Y-%m-%dT%H:%M:%S', started)}{zone}",
        f"uptime {format_duration(now - start_time)}",
        "",
        f"Health: {document['health']}",
    ]
    if "memory" in document:
        lines += ["", "Memory:"]
        lines += [f"   {name:<25}\t{value}" for name, value in document["memory"].items()]
    topics = document["topics"]
    lines += ["", "Topics:" if topics else "Topics: None"]
    for number, topic in enumerate(topics or ()):
        lines += [""] if number else []
        lines += _topic_lines(topic, now)
    producers = document["producers"]
    lines += ["", "Producers:" if producers else "Producers: None"]
    lines += [f"   {_client_line(client, now)}" for client in producers or ()]
    return "\n".join(lines) + "\n"


def _topic_lines(topic: TopicStats, now: int) -> list[str]:
    paused = "*P " if topic["paused"] else "   "
    line = (
        f"{paused}[{topic['topic_name']:<15}] depth: {topic['depth']:<5} be-depth: {topic['backend_depth']:<5}"
        f" msgs: {topic['message_count']:<8} e2e%: {_latency_text(topic['e2e_processing_latency'])}"
    )
    lines = [line]
    for channel in topic["channels"]:
        lines.append(_channel_line(channel))
        lines += [f"        {_client_line(client, now)}" for client in channel["clients"] or ()]
    return lines


def _channel_line(channel: ChannelStats) -> str:
    return (
        f"{'   *P ' if channel['paused'] else '      '}[{channel['channel_name']:<25}]"
        f" depth: {channel['depth']:<5} be-depth: {channel['backend_depth']:<5}"
        f" inflt: {channel['in_flight_count']:<4} def: {channel['deferred_count']:<4}"
        f" re-q: {channel['requeue_count']:<5} timeout: {channel['timeout_count']:<5}"
        f" msgs: {channel['message_count']:<8} e2e%: {_latency_text(channel['e2e_processing_latency'])}"
    )


def _client_line(client: ClientStats, now: int) -> str:
    connected = format_duration((now // SECOND - client["connect_ts"]) * SECOND)
    port = client["remote_address"].rpartition(":")[2] if ":" in client["remote_address"] else ""
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    head = f"[{client['version']} {name:<21}]"
    if "pub_counts" in client:
        total = sum(item["count"] for item in client["pub_counts"])
        counts = ",".join(f"{item['topic']}={item['count']}" for item in client["pub_counts"])
        return f"{head} msgs: {total:<8} topics: {counts} connected: {connected}"
    return (
        f"{head} state: {client['state']} inflt: {client['in_flight_count']:<4} rdy: {client['ready_count']:<4}"
        f" fin: {client['finish_count']:<8} re-q: {client['requeue_count']:<8} msgs: {client['message_count']:<8}"
        f" connected: {connected}"
    )


_LATENCY_UNITS: Final = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"))


def _latency_text(latency: LatencyStats) -> str:
    return ", ".join(_nanoseconds_text(item["value"]) for item in latency["percentiles"] or ())


def _nanoseconds_text(value: float) -> str:
    for unit, name in _LATENCY_UNITS:
        if value > unit:
            return f"{value / unit:.1f}{name}"
    return f"{int(value)}ns"
