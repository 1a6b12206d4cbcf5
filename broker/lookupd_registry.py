"""Who produces what: the data of nsqlookupd, without sockets and without a clock (``now_ns`` is passed in).

A name (a topic, or a channel of one) stays once it is known, also without producers, until it is deleted over HTTP.
Ephemeral names are the exception: they go with their last producer, and an ephemeral topic takes its channels with it.
(Go's nsqlookupd forgets this when a producer disconnects without a word, and collects such names for ever.)

A tombstone belongs to one producer of one topic. It hides the producer from /lookup for a while, so that consumers
leave it before the topic is deleted there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from pyspark_nsq.proto.names import is_ephemeral

TopicChannel = tuple[str, str]
"""A topic and its channel; the channel is "" where the topic itself is meant."""


@dataclass(slots=True, eq=False)
class Peer:
    """A connected nsqd as it described itself. ``id`` is its end of the TCP connection."""

    id: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str
    topology_region: str
    last_update_ns: int
    registered: dict[TopicChannel, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Producer:
    """A peer's registration for one name."""

    peer: Peer
    tombstoned_at_ns: int | None = None

    def is_tombstoned(self, now_ns: int, lifetime_ns: int) -> bool:
        return self.tombstoned_at_ns is not None and now_ns - self.tombstoned_at_ns < lifetime_ns


Producers = dict[str, Producer]
"""By the peer's id."""


class Registry:
    """Topics, channels and their producers."""

    def __init__(self) -> None:
        self._peers: dict[str, Peer] = {}
        self._topics: dict[str, Producers] = {}
        self._channels: dict[str, dict[str, Producers]] = {}

    # Producers

    def connect(self, peer: Peer) -> None:
        self._peers[peer.id] = peer

    def disconnect(self, peer: Peer) -> list[TopicChannel]:
        """Forget the peer; what it was registered for."""
        self._peers.pop(peer.id, None)
        # Channels first: an ephemeral topic takes those along that nobody produces any more.
        left = sorted(peer.registered, key=lambda name: name[1] == "")
        for topic, channel in left:
            self._remove_producer(peer, topic, channel)
        return left

    def register(self, peer: Peer, topic: str, channel: str = "") -> list[TopicChannel]:
        """Enter the peer for the topic and, if one is given, the channel; which of these are new to it."""
        self.create(topic, channel)
        added: list[TopicChannel] = []
        for name in [(topic, channel), (topic, "")] if channel else [(topic, "")]:
            if name not in peer.registered:
                peer.registered[name] = None
                producers = self._producers(*name)
                assert producers is not None
                producers[peer.id] = Producer(peer)
                added.append(name)
        return added

    def unregister(self, peer: Peer, topic: str, channel: str = "") -> list[TopicChannel]:
        """Take the peer out: of the channel, or of the topic and all its channels. What it was registered for."""
        names = [(topic, channel)]
        if not channel:
            names = [(topic, other) for other in self._channels.get(topic, ())] + names
        removed = [name for name in names if name in peer.registered]
        for name in names:
            self._remove_producer(peer, *name)
        return removed

    def tombstone(self, topic: str, node: str, now_ns: int) -> None:
        """Hide the producers of the topic whose ``broadcast_address:http_port`` is ``node``."""
        for producer in self._topics.get(topic, {}).values():
            if f"{producer.peer.broadcast_address}:{producer.peer.http_port}" == node:
                producer.tombstoned_at_ns = now_ns

    # Names

    def create(self, topic: str, channel: str = "") -> None:
        self._topics.setdefault(topic, {})
        if channel:
            self._channels.setdefault(topic, {}).setdefault(channel, {})

    def delete_topic(self, topic: str) -> list[str]:
        """Forget the topic and its channels, which are returned. Its producers register again when they see fit."""
        channels = self._channels.pop(topic, {})
        for channel, producers in channels.items():
            _withdraw(producers, (topic, channel))
        _withdraw(self._topics.pop(topic, {}), (topic, ""))
        return list(channels)

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Forget the channel; False if it is unknown."""
        producers = self._channels.get(topic, {}).pop(channel, None)
        if producers is None:
            return False
        _withdraw(producers, (topic, channel))
        if not self._channels[topic]:
            del self._channels[topic]
        return True

    # Questions

    def topics(self) -> list[str]:
        return list(self._topics)

    def has_topic(self, topic: str) -> bool:
        return topic in self._topics

    def channels(self, topic: str) -> list[str]:
        return list(self._channels.get(topic, ()))

    def peers(self) -> list[Peer]:
        return list(self._peers.values())

    def active_peers(self, now_ns: int, inactive_after_ns: int) -> list[Peer]:
        """Those that were heard of lately."""
        return [peer for peer in self._peers.values() if now_ns - peer.last_update_ns <= inactive_after_ns]

    def active_producers(self, topic: str, now_ns: int, inactive_after_ns: int, tombstone_ns: int) -> list[Peer]:
        """Those of the topic that were heard of lately and carry no tombstone for it."""
        return [
            producer.peer
            for producer in self._topics.get(topic, {}).values()
            if now_ns - producer.peer.last_update_ns <= inactive_after_ns
            and not producer.is_tombstoned(now_ns, tombstone_ns)
        ]

    def topics_of(self, peer: Peer, now_ns: int, tombstone_ns: int) -> list[tuple[str, bool]]:
        """The peer's topics, each with whether the peer is tombstoned for it."""
        return [
            (topic, self._topics[topic][peer.id].is_tombstoned(now_ns, tombstone_ns))
            for topic, channel in peer.registered
            if not channel
        ]

    def entries(self) -> Iterator[tuple[str, str, str, Producers]]:
        """Everything as (category, topic, channel, producers); the connected peers are the category ``client``."""
        yield "client", "", "", {peer.id: Producer(peer) for peer in self._peers.values()}
        for topic, producers in self._topics.items():
            yield "topic", topic, "", producers
        for topic, channels in self._channels.items():
            for channel, producers in channels.items():
                yield "channel", topic, channel, producers

    # Inside

    def _producers(self, topic: str, channel: str) -> Producers | None:
        return self._channels.get(topic, {}).get(channel) if channel else self._topics.get(topic)

    def _remove_producer(self, peer: Peer, topic: str, channel: str) -> None:
        peer.registered.pop((topic, channel), None)
        producers = self._producers(topic, channel)
        if producers is None:
            return
        producers.pop(peer.id, None)
        if producers:
            return
        if channel and is_ephemeral(channel):
            self.delete_channel(topic, channel)
        elif not channel and is_ephemeral(topic):
            self._delete_ephemeral_topic(topic)

    def _delete_ephemeral_topic(self, topic: str) -> None:
        del self._topics[topic]
        for channel, producers in list(self._channels.get(topic, {}).items()):
            if not producers:
                self.delete_channel(topic, channel)


def _withdraw(producers: Producers, name: TopicChannel) -> None:
    for producer in producers.values():
        producer.peer.registered.pop(name, None)
