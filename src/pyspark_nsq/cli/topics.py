"""``nsq topics``: which topics and channels there are."""

import argparse
import json
import sys
from typing import Any, Final

from pyspark_nsq.cli import settings
from pyspark_nsq.cli.cluster import Cluster, TopicCounts, read_cluster
from pyspark_nsq.cli.tables import number, plain_table
from pyspark_nsq.connector.discovery import Directory

_DESCRIPTION: Final = """\
List the topics, one a line, for scripts; --long tells what they hold.

Those of every nsqd are asked for, so topics that lookupds only remember are not listed.
"""
_EPILOG: Final = """\
examples:
  nsq topics
  nsq topics --long
  nsq topics orders --json | jq '.[0].channels'
"""
_HEADINGS: Final = ("topic", "channels", "messages", "waiting", "unfinished", "nsqds")


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "topics",
        help="list topics and channels",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topics", metavar="TOPIC", nargs="*", help="only these; exit code 1 if one does not exist")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--long", action="store_true", help="a table with channels and counts")
    form.add_argument("--json", action="store_true", help="a list of objects with all that is known")
    settings.add_lookupd(parser)
    settings.add_nsqd_http(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from pyspark_nsq.cli.main import DONE, FAILED

    options = settings.discovery_options(arguments)
    cluster = read_cluster(options, Directory(options))
    if not cluster.nsqds and cluster.failures:
        raise cluster.failures[0]
    known = cluster.topics
    topics = {name: counts for name, counts in known.items() if name in (arguments.topics or known)}
    if arguments.json:
        print(json.dumps([_fields(name, counts) for name, counts in topics.items()], indent=2))
    elif arguments.long:
        print(plain_table(_HEADINGS, [_cells(name, counts) for name, counts in topics.items()], names=2))
    else:
        sys.stdout.writelines(f"{name}\n" for name in topics)
    missing = [name for name in arguments.topics if name not in topics]
    return FAILED if _complain(cluster, missing) else DONE


def _complain(cluster: Cluster, missing: list[str]) -> bool:
    """Whether the answer is not whole."""
    for failure in cluster.failures:
        print(f"nsq: {failure}", file=sys.stderr)
    for name in missing:
        print(f"nsq: there is no topic {name!r}", file=sys.stderr)
    return bool(cluster.failures or missing)


def _cells(name: str, counts: TopicCounts) -> tuple[str, ...]:
    unfinished = sum(channel.unfinished for channel in counts.channels.values())
    numbers = (counts.messages, counts.depth, unfinished, counts.nsqds)
    return (name, ", ".join(counts.channels) or "-", *map(number, numbers))


def _fields(name: str, counts: TopicCounts) -> dict[str, object]:
    from dataclasses import asdict

    return {"topic": name, **asdict(counts)}
