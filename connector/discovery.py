"""Which nsqds there are and what they hold, as lookupds and nsqds tell over HTTP."""

import logging
import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from pyspark_nsq.connector.errors import DiscoveryError
from pyspark_nsq.connector.http_json import Question, fetch_all, fetch_json
from pyspark_nsq.connector.options import DiscoveryOptions
from pyspark_nsq.connector.settings import Address, HttpAddress, Security
from pyspark_nsq.proto.names import is_valid_name

log = logging.getLogger(__name__)

# Up to so many topics are asked for one by one, past it all lookupds tell about all nodes in a single answer.
_TOPICS_ASKED_MAX: Final = 16
_NODES: Final = "/nodes"
_TOPICS: Final = "/topics"


class Nsqd(NamedTuple):
    """Where an nsqd takes commands, and where it answers questions if that is known."""

    tcp: Address
    http: HttpAddress | None


class ChannelStats(NamedTuple):
    depth: int
    in_flight: int
    deferred: int
    # How many of those in flight a connected client holds; nobody finishes the others before their time-out.
    in_flight_at_clients: int
    client_count: int
    paused: bool


class TopicStats(NamedTuple):
    """``depth`` counts what no channel has yet: everything, before the first channel is made."""

    depth: int
    channel: ChannelStats | None


class PollPlan:
    """When lookupds are asked next. Time is handed in, in seconds."""

    def __init__(self, options: DiscoveryOptions, retry_delay_s: float, randomness: random.Random) -> None:
        self._interval_s = options.poll_interval_s
        self._jitter = options.poll_jitter
        self._retry_delay_s = retry_delay_s
        self._random = randomness
        self._failures = 0
        self._polled_s = -math.inf
        self.due_s = -math.inf

    def polled(self, now_s: float, ok: bool) -> None:
        """A poll has ended; where no lookupd answered the next one comes sooner, then ever later."""
        self._failures = 0 if ok else self._failures + 1
        delay_s = self._interval_s
        if not ok:
            delay_s = min(delay_s, self._retry_delay_s * 2 ** min(self._failures - 1, 60))
        self._polled_s = now_s
        self.due_s = now_s + delay_s * (1 - self._jitter * self._random.random())

    def doubted(self) -> None:
        """What the last poll said seems to hold no longer: the next one comes soon after it."""
        self.due_s = min(self.due_s, self._polled_s + self._retry_delay_s)


class Directory:
    """What lookupds said last. One that fails keeps its last answer, so that its silence takes no nsqd away; but where
    others know an nsqd, they tell what it has."""

    def __init__(self, options: DiscoveryOptions) -> None:
        self._options = options
        self._answers: dict[Question, Any] = {}
        self._static = _static_nsqds(options)
        self.failures: list[DiscoveryError] = []

    @property
    def reached(self) -> bool:
        """Whether any lookupd answered the last question, or there is none to ask."""
        return len(self.failures) < len(self._options.lookupds) or not self._options.lookupds

    def nodes(self) -> frozenset[Nsqd]:
        """Every nsqd."""
        answers = self._ask([_NODES])
        return self._static.union(*(_node_nsqds(nodes) for nodes in answers.values()))

    def topics(self) -> frozenset[str]:
        """Every topic that a lookupd knows."""
        return frozenset[str]().union(*self._ask([_TOPICS]).values())

    def look_up(self, topics: Collection[str]) -> dict[str, frozenset[Nsqd]]:
        """The nsqds of each topic. Those named by options count for all topics."""
        if len(topics) > _TOPICS_ASKED_MAX:
            answers, counts = self._ask([_NODES]), self._what_counts()
            all_nodes = [
                node for (lookupd, _), nodes in answers.items() for node in nodes if counts(lookupd, node.nsqd)
            ]
            return {
                topic: self._static.union(node.nsqd for node in all_nodes if topic in node.topics) for topic in topics
            }
        paths = {f"/lookup?topic={quote(topic, safe='')}": topic for topic in topics}
        self._forget_others({_NODES, _TOPICS, *paths})
        answers, counts = self._ask(paths), self._what_counts()
        found = dict.fromkeys(topics, self._static)
        for (lookupd, path), nsqds in answers.items():
            found[paths[path]] |= {nsqd for nsqd in nsqds if counts(lookupd, nsqd)}
        return found

    def _what_counts(self) -> Callable[[HttpAddress, Nsqd], bool]:
        """Whether a lookupd's last answer tells what an nsqd has. That of a silent one does not where others know the
        nsqd: a topic that was deleted meanwhile would be made anew by whoever subscribes to it."""
        silent = {error.address for error in self.failures}
        if not silent or not self.reached:
            return lambda _lookupd, _nsqd: True
        others = [(lookupd, _NODES) for lookupd in self._options.lookupds if lookupd not in silent]
        answers = fetch_all(others, self._options.request_timeout_s, self._options.security)
        known = {node.nsqd.tcp for question, answer in answers.items() for node in _nodes(question, answer)}
        return lambda lookupd, nsqd: lookupd not in silent or nsqd.tcp not in known

    def _forget_others(self, paths: Collection[str]) -> None:
        """Where topics come and go, their answers do not stay."""
        self._answers = {question: each for question, each in self._answers.items() if question[1] in paths}

    def _ask(self, paths: Iterable[str]) -> dict[Question, Any]:
        """Ask every lookupd each question; the last good answers to them."""
        questions = [(lookupd, path) for lookupd in self._options.lookupds for path in paths]
        asked = fetch_all(questions, self._options.request_timeout_s, self._options.security)
        failures: dict[HttpAddress, DiscoveryError] = {}
        for question, answer in asked.items():
            try:
                self._answers[question] = read_answer(question, answer)
            except DiscoveryError as error:
                failures.setdefault(error.address, error)
        if questions:
            self._report(list(failures.values()))
        return {question: self._answers[question] for question in questions if question in self._answers}

    def _report(self, failures: list[DiscoveryError]) -> None:
        known = {error.address for error in self.failures}
        for error in failures:
            if error.address not in known:
                log.warning("lookupd %s; what it said before still counts", error)
        self.failures = failures


def _static_nsqds(options: DiscoveryOptions) -> frozenset[Nsqd]:
    https: tuple[HttpAddress | None, ...] = options.nsqd_https or (None,) * len(options.nsqds)
    return frozenset(map(Nsqd, options.nsqds, https))


class _Node(NamedTuple):
    nsqd: Nsqd
    topics: frozenset[str]


def _node_nsqds(nodes: Iterable[_Node]) -> Iterable[Nsqd]:
    return (node.nsqd for node in nodes)


def _nodes(question: Question, answer: Any) -> list[_Node]:
    """Those that an answer tells of: none where it says nothing."""
    try:
        nodes: list[_Node] = read_answer(question, answer)
    except DiscoveryError:
        return []
    return nodes


def read_answer(question: Question, answer: Any) -> Any:
    """What a lookupd's answer says: nodes, topics or the nsqds of a topic; ``DiscoveryError`` where it says nothing."""
    address, path = question
    if isinstance(answer, DiscoveryError):
        raise answer
    try:
        if path == _TOPICS:
            return frozenset(topic for topic in answer["topics"] if is_valid_name(topic))
        if path == _NODES:
            return [_Node(_nsqd(producer), _live_topics(producer)) for producer in answer["producers"]]
        # nsqlookupd answers 404 for a topic that it does not know.
        return frozenset(map(_nsqd, answer["producers"] if answer is not None else ()))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise DiscoveryError(address, f"the answer to GET {path} has not the form of nsqlookupd's") from error


def _nsqd(producer: Mapping[str, Any]) -> Nsqd:
    host = producer["broadcast_address"]
    if not isinstance(host, str) or not host or not host.isprintable() or " " in host:
        raise ValueError
    # As it is looked up: a label that is empty or too long would fail there.
    host.encode("idna")
    http_port = producer["http_port"]
    http = HttpAddress(Address(host, _port(http_port))) if http_port else None
    return Nsqd(Address(host, _port(producer["tcp_port"])), http)


def _port(number: object) -> int:
    if type(number) is not int or not 1 <= number <= 65535:
        raise ValueError
    return number


def _live_topics(producer: Mapping[str, Any]) -> frozenset[str]:
    """The topics of a node but for those whose producer was taken out of service."""
    topics, tombstones = producer["topics"] or [], producer.get("tombstones") or []
    buried = {topic for topic, is_buried in zip(topics, tombstones, strict=False) if is_buried}
    return frozenset(topic for topic in topics if is_valid_name(topic)) - buried


def fetch_stats(
    address: HttpAddress, topic: str, channel: str, timeout_s: float, security: Security
) -> TopicStats | None:
    """What an nsqd holds of a topic and its channel; None where it does not have the topic."""
    path = f"/stats?format=json&include_mem=false&topic={quote(topic, safe='')}&channel={quote(channel, safe='')}"
    answer = fetch_json(address, path, timeout_s, security, with_secret=True)
    try:
        found = next((entry for entry in answer["topics"] or [] if entry["topic_name"] == topic), None)
        return None if found is None else _topic_stats(found, channel)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise DiscoveryError(address, f"the answer to GET {path} has not the form of nsqd's") from error


def fetch_all_stats(address: HttpAddress, channel: str, timeout_s: float, security: Security) -> dict[str, TopicStats]:
    """What an nsqd holds of each of its topics and their channel of this name."""
    path = f"/stats?format=json&include_mem=false&channel={quote(channel, safe='')}"
    answer = fetch_json(address, path, timeout_s, security, with_secret=True)
    try:
        return {entry["topic_name"]: _topic_stats(entry, channel) for entry in answer["topics"] or []}
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise DiscoveryError(address, f"the answer to GET {path} has not the form of nsqd's") from error


def _topic_stats(topic: Mapping[str, Any], channel: str) -> TopicStats:
    found = next((entry for entry in topic["channels"] or [] if entry["channel_name"] == channel), None)
    return TopicStats(_count(topic, "depth"), None if found is None else _channel_stats(found))


def _channel_stats(channel: Mapping[str, Any]) -> ChannelStats:
    clients = channel.get("clients") or []
    return ChannelStats(
        depth=_count(channel, "depth"),
        in_flight=_count(channel, "in_flight_count"),
        deferred=_count(channel, "deferred_count"),
        in_flight_at_clients=sum(_count(client, "in_flight_count") for client in clients),
        client_count=_count(channel, "client_count") if "client_count" in channel else len(clients),
        paused=channel["paused"] is True,
    )


def _count(entry: Mapping[str, Any], key: str) -> int:
    number = entry[key]
    if type(number) is not int:
        raise ValueError(key)
    return number
