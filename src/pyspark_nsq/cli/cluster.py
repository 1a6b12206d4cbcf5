"""What the nsqds of a cluster hold, as their ``/stats`` tell it, one by one and added up."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self
from urllib.parse import quote

from pyspark_nsq.connector.discovery import Directory, Nsqd
from pyspark_nsq.connector.errors import DiscoveryError
from pyspark_nsq.connector.http_json import fetch_all, fetch_json
from pyspark_nsq.connector.options import DiscoveryOptions
from pyspark_nsq.connector.settings import HttpAddress, Security

_STATS: Final = "/stats?format=json&include_mem=false&include_clients=false"


@dataclass(frozen=True)
class ChannelCounts:
    """``messages`` ever came into the channel; those not in the three counts behind it are finished."""

    messages: int = 0
    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    requeued: int = 0
    timed_out: int = 0
    clients: int = 0
    paused: bool = False

    @property
    def unfinished(self) -> int:
        return self.depth + self.in_flight + self.deferred

    def __add__(self, other: Self) -> "ChannelCounts":
        sums = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        return ChannelCounts(**{**sums, "paused": self.paused or other.paused})


@dataclass(frozen=True)
class TopicCounts:
    """``messages`` were ever published; ``depth`` of them wait until there is a channel."""

    messages: int
    depth: int
    paused: bool
    nsqds: int
    channels: Mapping[str, ChannelCounts]

    def __add__(self, other: Self) -> "TopicCounts":
        names = [*self.channels, *(name for name in other.channels if name not in self.channels)]
        nothing = ChannelCounts()
        return TopicCounts(
            self.messages + other.messages,
            self.depth + other.depth,
            self.paused or other.paused,
            self.nsqds + other.nsqds,
            {name: self.channels.get(name, nothing) + other.channels.get(name, nothing) for name in names},
        )


NOTHING: Final = TopicCounts(0, 0, False, 0, {})
Topics = Mapping[str, TopicCounts]


@dataclass(frozen=True)
class Cluster:
    """The answers of the nsqds that gave one, by address, and what went wrong with lookupds and the other nsqds."""

    nsqds: Mapping[HttpAddress, Topics]
    failures: tuple[DiscoveryError, ...]

    @property
    def topics(self) -> Topics:
        """Added up over the nsqds, in the order of their names."""
        sums: dict[str, TopicCounts] = defaultdict(lambda: NOTHING)
        for topics in self.nsqds.values():
            for name, counts in topics.items():
                sums[name] += counts
        return dict(sorted(sums.items()))


def read_cluster(options: DiscoveryOptions, directory: Directory) -> Cluster:
    """Ask lookupds for nsqds, and all of those for what they hold."""
    found: Iterable[Nsqd] = directory.nodes()
    addresses = {nsqd.http for nsqd in found if nsqd.http} | set(options.nsqd_https)
    cluster = read_nsqds(addresses, options.request_timeout_s, options.security)
    return Cluster(cluster.nsqds, (*directory.failures, *cluster.failures))


def read_nsqds(addresses: Iterable[HttpAddress], timeout_s: float, security: Security) -> Cluster:
    nsqds: dict[HttpAddress, Topics] = {}
    failures = []
    questions = [(address, _STATS) for address in sorted(addresses)]
    answers = fetch_all(questions, timeout_s, security, with_secret=True)
    for question in questions:
        address, answer = question[0], answers[question]
        try:
            nsqds[address] = parse_stats(address, answer)
        except DiscoveryError as error:
            failures.append(error)
    return Cluster(nsqds, tuple(failures))


def read_topic(address: HttpAddress, topic: str, timeout_s: float, security: Security) -> TopicCounts:
    """What one nsqd holds of one topic; ``DiscoveryError`` where it does not say."""
    answer = fetch_json(address, f"{_STATS}&topic={quote(topic, safe='')}", timeout_s, security, with_secret=True)
    return parse_stats(address, answer).get(topic, NOTHING)


def parse_stats(address: HttpAddress, answer: Any) -> Topics:
    """The topics of an nsqd's answer to ``/stats``. ``DiscoveryError`` for the failure it may be instead."""
    if isinstance(answer, DiscoveryError):
        raise answer
    try:
        return {str(topic["topic_name"]): _topic(topic) for topic in answer["topics"] or []}
    except (LookupError, TypeError, ValueError) as error:
        raise DiscoveryError(address, "the answer to GET /stats has not the form of nsqd's") from error


def _topic(entry: Mapping[str, Any]) -> TopicCounts:
    channels = {str(channel["channel_name"]): _channel(channel) for channel in entry["channels"] or []}
    return TopicCounts(
        _count(entry, "message_count"),
        _count(entry, "depth"),
        entry["paused"] is True,
        1,
        dict(sorted(channels.items())),
    )


def _channel(entry: Mapping[str, Any]) -> ChannelCounts:
    return ChannelCounts(
        messages=_count(entry, "message_count"),
        depth=_count(entry, "depth"),
        in_flight=_count(entry, "in_flight_count"),
        deferred=_count(entry, "deferred_count"),
        requeued=_count(entry, "requeue_count"),
        timed_out=_count(entry, "timeout_count"),
        clients=_count(entry, "client_count"),
        paused=entry["paused"] is True,
    )


def _count(entry: Mapping[str, Any], key: str) -> int:
    number = entry[key]
    if type(number) is not int:
        raise ValueError(key)
    return number
