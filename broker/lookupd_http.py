"""The HTTP API of nsqlookupd: questions to, and changes of, the registry."""

from collections.abc import Callable
from typing import Any

from pyspark_nsq.broker import debug
from pyspark_nsq.broker.http_messages import HttpError, Request, Response, text_answer
from pyspark_nsq.broker.http_router import Route
from pyspark_nsq.broker.logs import Logger
from pyspark_nsq.broker.lookupd_options import LookupdOptions
from pyspark_nsq.broker.lookupd_registry import Peer, Producer, Registry
from pyspark_nsq.broker.prometheus import GAUGE, Page
from pyspark_nsq.broker.version import NSQ_VERSION
from pyspark_nsq.proto.names import is_valid_name

_NEVER_NS = -6795364578871345152
"""What Go's zero time is in nanoseconds since 1970: the tombstoned_at of who never was."""


class LookupdApi:
    """``now_ns`` is the clock; ``connections`` tells how many peers are connected."""

    def __init__(
        self,
        registry: Registry,
        options: LookupdOptions,
        log: Logger,
        now_ns: Callable[[], int],
        connections: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._options = options
        self._log = log
        self._now_ns = now_ns
        self._started_at = now_ns() / 1e9
        self._connections = connections

    def routes(self) -> tuple[Route, ...]:
        return (
            Route("GET", "/ping", lambda _: text_answer("OK")),
            Route("GET", "/info", lambda _: {"version": NSQ_VERSION}),
            Route("GET", "/debug", self.entries),
            Route("GET", "/lookup", self.lookup),
            Route("GET", "/topics", lambda _: {"topics": self._registry.topics()}),
            Route("GET", "/channels", self.channels),
            Route("GET", "/nodes", self.nodes),
            Route("GET", "/metrics", self.metrics),
            Route("POST", "/topic/create", self.create_topic),
            Route("POST", "/topic/delete", self.delete_topic),
            Route("POST", "/channel/create", self.create_channel),
            Route("POST", "/channel/delete", self.delete_channel),
            Route("POST", "/topic/tombstone", self.tombstone),
            *debug.routes("/debug/pprof"),
        )

    # Questions

    def channels(self, request: Request) -> Any:
        return {"channels": self._registry.channels(request.required("topic"))}

    def lookup(self, request: Request) -> Any:
        topic = request.required("topic")
        if not self._registry.has_topic(topic):
            raise HttpError(404, "TOPIC_NOT_FOUND")
        producers = self._registry.active_producers(
            topic,
            self._now_ns(),
            self._options.inactive_producer_timeout_ns,
            self._options.tombstone_lifetime_ns,
        )
        return {
            "channels": self._registry.channels(topic),
            "producers": [_described(peer) for peer in producers],
        }

    def nodes(self, _: Request) -> Any:
        now_ns = self._now_ns()
        producers = []
        for peer in self._registry.active_peers(now_ns, self._options.inactive_producer_timeout_ns):
            topics = self._registry.topics_of(peer, now_ns, self._options.tombstone_lifetime_ns)
            producers.append(
                {
                    **_described(peer),
                    "tombstones": [tombstoned for _, tombstoned in topics],
                    "topics": [topic for topic, _ in topics],
                }
            )
        return {"producers": producers}

    def entries(self, _: Request) -> Any:
        found = {
            f"{category}:{topic}:{channel}": [_entry(producer) for producer in producers.values()]
            for category, topic, channel, producers in self._registry.entries()
            if producers
        }
        return dict(sorted(found.items()))

    def metrics(self, _: Request) -> Response:
        now_ns = self._now_ns()
        registry, options = self._registry, self._options
        topics = registry.topics()
        peers = registry.peers()
        active = registry.active_peers(now_ns, options.inactive_producer_timeout_ns)
        page = Page()
        page.add("nsqlookupd_topics", GAUGE, "Topics known.", len(topics))
        page.add(
            "nsqlookupd_channels", GAUGE, "Channels known.", sum(len(registry.channels(topic)) for topic in topics)
        )
        page.add("nsqlookupd_connections", GAUGE, "TCP connections open.", self._connections())
        page.add("nsqlookupd_producers", GAUGE, "nsqds that are registered.", len(peers))
        page.add("nsqlookupd_producers_active", GAUGE, "nsqds that were heard of lately.", len(active))
        page.add(
            "nsqlookupd_topic_producers",
            GAUGE,
            "nsqds that /lookup names for the topic.",
            [({"topic": topic}, self._active_producers(topic, now_ns)) for topic in topics],
        )
        page.add_process(self._started_at)
        return page.response()

    def _active_producers(self, topic: str, now_ns: int) -> int:
        options = self._options
        found = self._registry.active_producers(
            topic, now_ns, options.inactive_producer_timeout_ns, options.tombstone_lifetime_ns
        )
        return len(found)

    # Changes

    def create_topic(self, request: Request) -> None:
        topic = _valid_name(request, "topic")
        self._log.info("DB: adding topic(%s)", topic)
        self._registry.create(topic)

    def delete_topic(self, request: Request) -> None:
        topic = request.required("topic")
        known = self._registry.has_topic(topic)
        for channel in self._registry.delete_topic(topic):
            self._log.info("DB: removing channel(%s) from topic(%s)", channel, topic)
        if known:
            self._log.info("DB: removing topic(%s)", topic)

    def create_channel(self, request: Request) -> None:
        topic, channel = _valid_name(request, "topic"), _valid_name(request, "channel")
        self._log.info("DB: adding channel(%s) in topic(%s)", channel, topic)
        self._registry.create(topic, channel)

    def delete_channel(self, request: Request) -> None:
        topic, channel = _valid_name(request, "topic"), _valid_name(request, "channel")
        if not self._registry.delete_channel(topic, channel):
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        self._log.info("DB: removing channel(%s) from topic(%s)", channel, topic)

    def tombstone(self, request: Request) -> None:
        topic, node = request.required("topic"), request.required("node")
        self._log.info("DB: setting tombstone for producer@%s of topic(%s)", node, topic)
        self._registry.tombstone(topic, node, self._now_ns())


def _valid_name(request: Request, kind: str) -> str:
    name = request.required(kind)
    if not is_valid_name(name):
        raise HttpError(400, f"INVALID_ARG_{kind.upper()}")
    return name


def _described(peer: Peer) -> dict[str, Any]:
    return {
        "remote_address": peer.id,
        "hostname": peer.hostname,
        "broadcast_address": peer.broadcast_address,
        "tcp_port": peer.tcp_port,
        "http_port": peer.http_port,
        "version": peer.version,
        "topology_zone": peer.topology_zone,
        "topology_region": peer.topology_region,
    }


def _entry(producer: Producer) -> dict[str, Any]:
    """One producer in /debug; the keys are sorted."""
    peer, at_ns = producer.peer, producer.tombstoned_at_ns
    return {
        "broadcast_address": peer.broadcast_address,
        "hostname": peer.hostname,
        "http_port": peer.http_port,
        "id": peer.id,
        "last_update": peer.last_update_ns,
        "tcp_port": peer.tcp_port,
        "tombstoned": at_ns is not None,
        "tombstoned_at": _NEVER_NS if at_ns is None else at_ns,
        "topology_region": peer.topology_region,
        "topology_zone": peer.topology_zone,
        "version": peer.version,
    }
