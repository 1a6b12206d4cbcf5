"""What nsqd tells a statsd: every count's growth since the last time, every gauge's value, in packets.

Stats in, packets out; who sends them, and when, is the caller's business.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pyspark_nsq.broker.stats import ChannelStats, LatencyStats, MemoryStats, TopicStats
from pyspark_nsq.proto.names import is_ephemeral

_NOT_IN_KEYS: Final = re.compile(r"[.:]")


def key_prefix(template: str, host: str) -> str:
    """The prefix of every name: ``%s`` stands for the host, whose dots and colons would split the name."""
    prefix = template.replace("%s", _NOT_IN_KEYS.sub("_", host))
    return f"{prefix}." if prefix and not prefix.endswith(".") else prefix


def packets(lines: Iterable[str], packet_size_max: int) -> Iterator[bytes]:
    """The lines in as few packets as their size allows; a line that alone is larger travels alone."""
    packet = b""
    for line in lines:
        encoded = line.encode()
        if packet and len(packet) + len(encoded) > packet_size_max:
            yield packet
            packet = b""
        packet += encoded
    if packet:
        yield packet


class StatsdReport:
    """Remembers the counters it reported last, so that the next report holds their growth."""

    def __init__(self, prefix: str, *, exclude_ephemeral: bool) -> None:
        self._prefix = prefix
        self._exclude_ephemeral = exclude_ephemeral
        self._last: dict[str, int] = {}
        self._counters: dict[str, int] = {}

    def lines(self, topics: Iterable[TopicStats], memory: MemoryStats | None) -> list[str]:
        self._counters = {}
        lines: list[str] = []
        for topic in topics:
            if not self._is_excluded(topic["topic_name"]):
                lines.extend(self._topic_lines(topic))
        if memory is not None:
            lines.extend(self._memory_lines(memory))
        self._last = self._counters
        return lines

    def _is_excluded(self, name: str) -> bool:
        return self._exclude_ephemeral and is_ephemeral(name)

    def _topic_lines(self, topic: TopicStats) -> Iterator[str]:
        name = f"topic.{topic['topic_name']}"
        yield self._counter(f"{name}.message_count", topic["message_count"])
        yield self._counter(f"{name}.message_bytes", topic["message_bytes"])
        yield self._gauge(f"{name}.depth", topic["depth"])
        yield self._gauge(f"{name}.backend_depth", topic["backend_depth"])
        yield from self._latency_lines(name, topic["e2e_processing_latency"])
        for channel in topic["channels"]:
            if not self._is_excluded(channel["channel_name"]):
                yield from self._channel_lines(f"{name}.channel.{channel['channel_name']}", channel)

    def _channel_lines(self, name: str, channel: ChannelStats) -> Iterator[str]:
        yield self._counter(f"{name}.message_count", channel["message_count"])
        yield self._gauge(f"{name}.depth", channel["depth"])
        yield self._gauge(f"{name}.backend_depth", channel["backend_depth"])
        yield self._gauge(f"{name}.in_flight_count", channel["in_flight_count"])
        yield self._gauge(f"{name}.deferred_count", channel["deferred_count"])
        yield self._counter(f"{name}.requeue_count", channel["requeue_count"])
        yield self._counter(f"{name}.timeout_count", channel["timeout_count"])
        yield self._gauge(f"{name}.clients", channel["client_count"])
        yield from self._latency_lines(name, channel["e2e_processing_latency"])

    def _latency_lines(self, name: str, latency: LatencyStats) -> Iterator[str]:
        for item in latency["percentiles"] or ():
            yield self._gauge(f"{name}.e2e_processing_latency_{_percent(item)}", int(item["value"]))

    def _memory_lines(self, memory: MemoryStats) -> Iterator[str]:
        for name, value in memory.items():
            if name == "gc_total_runs":
                yield self._counter("mem.gc_runs", int(value))  # type: ignore[call-overload]
            else:
                yield self._gauge(f"mem.{name}", int(value))  # type: ignore[call-overload]

    def _counter(self, name: str, value: int) -> str:
        self._counters[name] = value
        # A topic that was deleted and created again starts at 0: its growth is what it has now.
        last = self._last.get(name, 0)
        return f"{self._prefix}{name}:{value - last if value >= last else value}|c\n"

    def _gauge(self, name: str, value: int) -> str:
        return f"{self._prefix}{name}:{value}|g\n"


def _percent(item: Mapping[str, float]) -> str:
    """``99`` for 0.99 as nsqd has it, but ``99_9`` for 0.999, where nsqd's rounding makes it another's name."""
    percent = round(item["quantile"] * 100, 6)
    return f"{percent:.6f}".rstrip("0").rstrip(".").replace(".", "_")
