"""``nsq stat``: a live table of what the channels hold and how fast it changes."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark_nsq.cli import settings
from pyspark_nsq.cli.arguments import duration_s, positive
from pyspark_nsq.cli.cluster import Cluster, TopicCounts, Topics, read_cluster
from pyspark_nsq.cli.tables import number, plain_table
from pyspark_nsq.connector.discovery import Directory
from pyspark_nsq.connector.errors import DiscoveryError
from pyspark_nsq.connector.options import DiscoveryOptions

if TYPE_CHECKING:
    from rich.table import Table

_DESCRIPTION: Final = """\
Show what each channel holds, added up over the nsqds, again and again: messages that wait (depth), that somebody has
and has not finished (in flight), that wait for their time (deferred), and how many come and are finished a second.
"""
_EPILOG: Final = """\
examples:
  nsq stat                           # a live table, until Ctrl-C
  nsq stat orders payments --every 5s
  nsq stat --once                    # one plain table
  nsq stat --json --count 60 >> stats.jsonl
"""
HEADINGS: Final = (
    "topic",
    "channel",
    "depth",
    "in flight",
    "deferred",
    "in/s",
    "done/s",
    "requeued",
    "timed out",
    "clients",
)
# A channel of a topic, or the topic itself.
_Place = tuple[str, str | None]
# How many messages come and are finished a second.
_Rates = tuple[float, float]
_Failures = tuple[DiscoveryError, ...]


@dataclass(frozen=True)
class Row:
    """A channel, or a topic that has none. The rates are None where there is nothing to compare with."""

    topic: str
    channel: str | None
    depth: int
    in_flight: int
    deferred: int
    in_rate: float | None
    done_rate: float | None
    messages: int
    requeued: int
    timed_out: int
    clients: int
    paused: bool

    @property
    def cells(self) -> tuple[str, ...]:
        name = "-" if self.channel is None else self.channel + (" (paused)" if self.paused else "")
        counts = (self.depth, self.in_flight, self.deferred)
        rates = (self.in_rate, self.done_rate)
        rest = (self.requeued, self.timed_out, self.clients)
        return (self.topic, name, *map(number, counts), *map(number, rates), *map(number, rest))


@dataclass(frozen=True)
class Sample:
    at_s: float
    cluster: Cluster


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "stat",
        help="a live table of depths and rates",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topics", metavar="TOPIC", nargs="*", help="only these")
    parser.add_argument("--every", type=duration_s, default=1.0, metavar="TIME", help="how often; 1s if not given")
    parser.add_argument("-n", "--count", type=positive, help="end after so many tables")
    parser.add_argument("--once", action="store_true", help="one table; the same as --count 1")
    parser.add_argument("--json", action="store_true", help="an object a line for every table")
    settings.add_lookupd(parser)
    settings.add_nsqd_http(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from pyspark_nsq.cli.main import DONE, FAILED

    options = settings.discovery_options(arguments)
    count = 1 if arguments.once else arguments.count
    samples = _samples(options, arguments.every, count)
    try:
        if arguments.json:
            failures = _print_json(samples, arguments.topics)
        elif sys.stdout.isatty() and count != 1:
            failures = _show_live(samples, arguments.topics)
        else:
            failures = _print_tables(samples, arguments.topics)
    except KeyboardInterrupt:
        return DONE
    return FAILED if failures else DONE


def _samples(options: DiscoveryOptions, every_s: float, count: int | None) -> Iterator[Sample]:
    """``DiscoveryError`` where there is nothing to see at first; what is silent later may come back."""
    directory = Directory(options)
    has_seen = False
    due = time.monotonic()
    while count is None or count > 0:
        cluster = read_cluster(options, directory)
        if not has_seen and not cluster.nsqds and cluster.failures:
            raise cluster.failures[0]
        has_seen = True
        yield Sample(time.monotonic(), cluster)
        count = None if count is None else count - 1
        due += every_s
        if count != 0:
            time.sleep(max(0.0, due - time.monotonic()))


def rows(sample: Sample, before: Sample | None, only: list[str]) -> list[Row]:
    rates = _rates(sample, before) if before else {}
    found = []
    for topic, counts in sample.cluster.topics.items():
        if not only or topic in only:
            found += _topic_rows(topic, counts, rates)
    return found


def _topic_rows(topic: str, counts: TopicCounts, rates: Mapping[_Place, _Rates]) -> list[Row]:
    if not counts.channels:
        came, _ = rates.get((topic, None), (None, None))
        return [Row(topic, None, counts.depth, 0, 0, came, None, counts.messages, 0, 0, 0, counts.paused)]
    found = []
    for name, channel in counts.channels.items():
        came, done = rates.get((topic, name), (None, None))
        found.append(
            Row(
                topic,
                name,
                channel.depth,
                channel.in_flight,
                channel.deferred,
                came,
                done,
                channel.messages,
                channel.requeued,
                channel.timed_out,
                channel.clients,
                channel.paused or counts.paused,
            )
        )
    return found


def _rates(now: Sample, before: Sample) -> Mapping[_Place, _Rates]:
    """What came and was finished a second, at the nsqds that have told both times.

    One that was silent in between would bring all that it ever had at once.
    """
    seconds = max(now.at_s - before.at_s, 0.001)
    rates: dict[_Place, _Rates] = {}
    for nsqd, topics in now.cluster.nsqds.items():
        earlier = _progress(before.cluster.nsqds.get(nsqd, {}))
        for place, (came, done) in _progress(topics).items():
            if place in earlier:
                came_before, done_before = earlier[place]
                sums = rates.get(place, (0.0, 0.0))
                # An nsqd that restarted counts from 0 again.
                rates[place] = (
                    sums[0] + max(0, came - came_before) / seconds,
                    sums[1] + max(0, done - done_before) / seconds,
                )
    return rates


def _progress(topics: Topics) -> Mapping[_Place, tuple[int, int]]:
    """How many messages have ever come and been finished, at one nsqd."""
    progress: dict[_Place, tuple[int, int]] = {}
    for topic, counts in topics.items():
        progress[topic, None] = (counts.messages, 0)
        for name, channel in counts.channels.items():
            progress[topic, name] = (channel.messages, channel.messages - channel.unfinished)
    return progress


def _paired(samples: Iterator[Sample]) -> Iterator[tuple[Sample, Sample | None]]:
    before = None
    for sample in samples:
        yield sample, before
        before = sample


def _print_json(samples: Iterator[Sample], only: list[str]) -> _Failures:
    """Those of the last sample."""
    failures: _Failures = ()
    for sample, before in _paired(samples):
        shown = {
            "time": round(time.time(), 3),
            "nsqds": [str(address) for address in sample.cluster.nsqds],
            "channels": [asdict(row) for row in rows(sample, before, only)],
            "failures": [str(failure) for failure in sample.cluster.failures],
        }
        print(json.dumps(shown), flush=True)
        failures = sample.cluster.failures
    return _complain(failures)


def _print_tables(samples: Iterator[Sample], only: list[str]) -> _Failures:
    """Those of the last sample."""
    failures: _Failures = ()
    for sample, before in _paired(samples):
        print(plain_table(HEADINGS, [row.cells for row in rows(sample, before, only)], names=2), flush=True)
        failures = _complain(sample.cluster.failures)
    return failures


def _show_live(samples: Iterator[Sample], only: list[str]) -> _Failures:
    """Those of the last sample."""
    try:
        from rich.live import Live
    except ModuleNotFoundError:
        return _print_tables(samples, only)
    failures: _Failures = ()
    with Live(screen=True, auto_refresh=False) as live:
        for sample, before in _paired(samples):
            live.update(_rich_table(sample, before, only), refresh=True)
            failures = sample.cluster.failures
    return _complain(failures)


def _complain(failures: _Failures) -> _Failures:
    for failure in failures:
        print(f"nsq: {failure}", file=sys.stderr)
    return failures


def _rich_table(sample: Sample, before: Sample | None, only: list[str]) -> "Table":
    from rich.table import Table

    table = Table(title=f"{len(sample.cluster.nsqds)} nsqds at {time.strftime('%H:%M:%S')}", expand=True)
    for position, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if position < 2 else "right", no_wrap=position >= 2)
    for row in rows(sample, before, only):
        table.add_row(*row.cells, style="dim" if not row.messages else None)
    table.caption = _failures_text(sample.cluster.failures)
    return table


def _failures_text(failures: _Failures) -> str:
    return "\n".join(map(str, failures)) or "Ctrl-C ends"
