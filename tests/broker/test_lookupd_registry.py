"""What nsqlookupd knows, step by step and against a plain model."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from pyspark_nsq.broker.lookupd_registry import Peer, Registry

INACTIVE_NS, TOMBSTONE_NS = 300, 45


def peer(peer_id: str, now_ns: int = 0, **fields: Any) -> Peer:
    said = {"hostname": "host", "broadcast_address": "b-" + peer_id, "tcp_port": 4150, "http_port": 4151}
    said |= {"version": "1.3.0", "topology_zone": "", "topology_region": ""} | fields
    return Peer(id=peer_id, last_update_ns=now_ns, **said)  # type: ignore[arg-type]


def names(registry: Registry, topic: str, now_ns: int = 0) -> list[str]:
    """Whom /lookup would name."""
    return [peer.id for peer in registry.active_producers(topic, now_ns, INACTIVE_NS, TOMBSTONE_NS)]


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def nsqd(registry: Registry) -> Peer:
    nsqd = peer("a")
    registry.connect(nsqd)
    return nsqd


def test_register_enters_channel_and_topic_once(registry: Registry, nsqd: Peer) -> None:
    assert registry.register(nsqd, "t", "c") == [("t", "c"), ("t", "")]
    assert registry.register(nsqd, "t", "c") == []
    assert registry.register(nsqd, "t", "d") == [("t", "d")]
    assert (registry.topics(), registry.channels("t"), names(registry, "t")) == (["t"], ["c", "d"], ["a"])


def test_unregister_of_a_channel_leaves_the_topic(registry: Registry, nsqd: Peer) -> None:
    registry.register(nsqd, "t", "c")
    assert registry.unregister(nsqd, "t", "c") == [("t", "c")]
    assert (registry.channels("t"), names(registry, "t")) == (["c"], ["a"])


def test_unregister_of_a_topic_takes_its_channels_along_and_keeps_the_names(registry: Registry, nsqd: Peer) -> None:
    registry.register(nsqd, "t", "c")
    assert registry.unregister(nsqd, "t") == [("t", "c"), ("t", "")]
    assert (registry.topics(), registry.channels("t"), names(registry, "t")) == (["t"], ["c"], [])
    assert registry.unregister(nsqd, "unknown") == []


@pytest.mark.parametrize("leave", ["unregister", "disconnect"])
def test_ephemeral_names_go_with_their_last_producer(registry: Registry, nsqd: Peer, leave: str) -> None:
    other = peer("b")
    registry.connect(other)
    for each in (nsqd, other):
        registry.register(each, "t", "c#ephemeral")
        registry.register(each, "e#ephemeral", "c")

    def go(who: Peer) -> None:
        if leave == "disconnect":
            registry.disconnect(who)
        else:
            registry.unregister(who, "t", "c#ephemeral")
            registry.unregister(who, "e#ephemeral")

    go(nsqd)
    assert (registry.topics(), registry.channels("t")) == (["t", "e#ephemeral"], ["c#ephemeral"])
    go(other)
    assert (registry.topics(), registry.channels("t"), registry.channels("e#ephemeral")) == (["t"], [], [])


def test_disconnect_keeps_plain_names(registry: Registry, nsqd: Peer) -> None:
    registry.register(nsqd, "t", "c")
    assert registry.disconnect(nsqd) == [("t", "c"), ("t", "")]
    assert (registry.topics(), registry.channels("t"), registry.peers(), names(registry, "t")) == (["t"], ["c"], [], [])


def test_a_tombstone_hides_one_node_of_one_topic_for_its_lifetime(registry: Registry, nsqd: Peer) -> None:
    other = peer("b")
    for each in (nsqd, other):
        registry.connect(each)
        registry.register(each, "t", "c")
        registry.register(each, "u")
    registry.tombstone("t", "b-a:4151", now_ns=10)
    registry.tombstone("t", "b-b:9999", now_ns=10)
    registry.tombstone("unknown", "b-a:4151", now_ns=10)
    assert (names(registry, "t", 10), names(registry, "u", 10)) == (["b"], ["a", "b"])
    assert registry.topics_of(nsqd, 10, TOMBSTONE_NS) == [("t", True), ("u", False)]
    assert names(registry, "t", 10 + TOMBSTONE_NS - 1) == ["b"]
    assert names(registry, "t", 10 + TOMBSTONE_NS) == ["a", "b"]


def test_a_tombstone_survives_register_but_not_unregister(registry: Registry, nsqd: Peer) -> None:
    registry.register(nsqd, "t")
    registry.tombstone("t", "b-a:4151", now_ns=0)
    registry.register(nsqd, "t")
    assert names(registry, "t") == []
    registry.unregister(nsqd, "t")
    registry.register(nsqd, "t")
    assert names(registry, "t") == ["a"]


def test_who_was_not_heard_of_is_left_out_until_it_is(registry: Registry, nsqd: Peer) -> None:
    registry.register(nsqd, "t")
    assert names(registry, "t", INACTIVE_NS) == ["a"]
    assert names(registry, "t", INACTIVE_NS + 1) == []
    assert registry.active_peers(INACTIVE_NS + 1, INACTIVE_NS) == []
    nsqd.last_update_ns = INACTIVE_NS
    assert names(registry, "t", INACTIVE_NS + 1) == ["a"]


def test_deleted_names_are_gone_until_registered_again(registry: Registry, nsqd: Peer) -> None:
    registry.register(nsqd, "t", "c")
    assert registry.delete_channel("t", "c")
    assert not registry.delete_channel("t", "c")
    assert not registry.delete_channel("unknown", "c")
    assert registry.channels("t") == []
    registry.register(nsqd, "t", "d")
    assert registry.delete_topic("t") == ["d"]
    assert registry.delete_topic("t") == []
    assert (registry.topics(), registry.topics_of(nsqd, 0, TOMBSTONE_NS)) == ([], [])
    assert registry.register(nsqd, "t", "d") == [("t", "d"), ("t", "")]


TOPICS = st.sampled_from(["t", "u", "e#ephemeral"])
CHANNELS = st.sampled_from(["", "c", "x#ephemeral"])


class AgainstAModel(RuleBasedStateMachine):
    """The model: a set of (topic, channel, peer) and the names known."""

    peers = Bundle("peers")

    @initialize()
    def start(self) -> None:
        self.registry = Registry()
        self.entered: set[tuple[str, str, str]] = set()
        self.known: set[tuple[str, str]] = set()
        self.connected: dict[str, Peer] = {}

    @rule(target=peers)
    def connect(self) -> Peer:
        new = peer(f"p{len(self.connected)}")
        self.connected[new.id] = new
        self.registry.connect(new)
        return new

    @rule(who=peers, topic=TOPICS, channel=CHANNELS)
    def register(self, who: Peer, topic: str, channel: str) -> None:
        self.registry.register(who, topic, channel)
        for name in {(topic, channel), (topic, "")}:
            self.known.add(name)
            self.entered.add((*name, who.id))

    @rule(who=peers, topic=TOPICS, channel=CHANNELS)
    def unregister(self, who: Peer, topic: str, channel: str) -> None:
        removed = self.registry.unregister(who, topic, channel)
        names = {name for name in self.known if name[0] == topic and channel in ("", name[1])}
        assert set(removed) == {name for name in names if (*name, who.id) in self.entered}
        self.leave(who, names)

    @rule(who=consumes(peers))
    def disconnect(self, who: Peer) -> None:
        self.registry.disconnect(who)
        self.leave(who, {(topic, channel) for topic, channel, peer_id in self.entered if peer_id == who.id})

    @rule(topic=TOPICS, channel=CHANNELS)
    def create(self, topic: str, channel: str) -> None:
        self.registry.create(topic, channel)
        self.known |= {(topic, channel), (topic, "")}

    @rule(topic=TOPICS, channel=CHANNELS)
    def delete(self, topic: str, channel: str) -> None:
        if channel:
            assert self.registry.delete_channel(topic, channel) == ((topic, channel) in self.known)
            self.forget({(topic, channel)})
        else:
            self.registry.delete_topic(topic)
            self.forget({name for name in self.known if name[0] == topic})

    def leave(self, who: Peer, names: set[tuple[str, str]]) -> None:
        self.entered -= {(*name, who.id) for name in names}
        empty = {name for name in names if not any(entry[:2] == name for entry in self.entered)}
        for topic, channel in empty:
            if channel.endswith("#ephemeral"):
                self.forget({(topic, channel)})
            elif not channel and topic.endswith("#ephemeral"):
                unused = {n for n in self.known if n[0] == topic and not any(e[:2] == n for e in self.entered)}
                self.forget(unused)

    def forget(self, names: set[tuple[str, str]]) -> None:
        self.known -= names
        self.entered = {entry for entry in self.entered if entry[:2] not in names}

    @invariant()
    def agrees(self) -> None:
        assert set(self.registry.topics()) == {topic for topic, channel in self.known if not channel}
        for topic in ("t", "u", "e#ephemeral"):
            assert set(self.registry.channels(topic)) == {c for t, c in self.known if t == topic and c}
            assert set(names(self.registry, topic)) == {p for t, c, p in self.entered if t == topic and not c}
        entries = {(t, c, p) for kind, t, c, found in self.registry.entries() for p in found if kind != "client"}
        assert entries == self.entered


TestAgainstAModel = AgainstAModel.TestCase
