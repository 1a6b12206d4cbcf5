"""``nsq pub``: publish what comes on standard input, or what files hold."""

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark_nsq.cli import settings
from pyspark_nsq.cli.arguments import duration_ms_of, positive, rate, separator
from pyspark_nsq.connector.errors import OptionError
from pyspark_nsq.connector.options import SinkOptions

_DESCRIPTION: Final = """\
Publish each line of standard input, or of files, as a message. Empty lines are left out, as NSQ has no empty messages.

It ends when all is acknowledged. Where an nsqd fails, another one gets what it had not acknowledged: that can make
duplicates, and loses nothing.
"""
_EPILOG: Final = """\
examples:
  echo '{"order": 1}' | nsq pub orders
  nsq pub orders -m '{"order": 1}' -m '{"order": 2}'
  nsq pub orders --rate 1000 < events.jsonl        # 1000 messages a second
  nsq pub images --whole *.png                     # each file is a message
  tail -f access.log | nsq pub access              # each line as soon as it is there
  find . -print0 | nsq pub paths --separator '\\0'
"""
_READ_SIZE: Final = 256 * 1024
_BATCH_SIZE_MAX: Final = 512 * 1024
# With a rate: batches so small that it is even to the eye.
_BATCHES_A_SECOND: Final = 20


@dataclass
class Sum:
    messages: int = 0
    size: int = 0


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "pub",
        help="publish lines or files",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topic", metavar="TOPIC", help="where to publish")
    parser.add_argument("files", metavar="FILE", nargs="*", help="what to publish; - is standard input")
    parser.add_argument("-m", "--message", action="append", help="publish this text; may be repeated")
    parser.add_argument("--whole", action="store_true", help="each file is one message")
    parser.add_argument(
        "--separator", type=separator, default=b"\n", metavar="TEXT", help=r"what ends a message; \n if not given"
    )
    parser.add_argument("--rate", type=rate, metavar="N", help="so many messages a second at most")
    parser.add_argument("--defer", type=duration_ms_of, metavar="TIME", help="deliver them after this time, such as 5s")
    parser.add_argument("--batch", type=positive, default=1000, metavar="N", help="so many messages a command at most")
    parser.add_argument("--json", action="store_true", help="say at the end what was published, as an object")
    settings.add_lookupd(parser)
    settings.add_nsqd_tcp(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from pyspark_nsq.cli.main import DONE, INTERRUPTED

    if arguments.message and arguments.files:
        raise OptionError("--message and files: give one of them")
    options = settings.sink_options(arguments, arguments.topic)
    done = Sum()
    start = time.monotonic()
    code = DONE
    try:
        publish_all(options, _pieces(arguments), arguments, done)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if arguments.json:
        seconds = round(time.monotonic() - start, 3)
        print(json.dumps({"messages": done.messages, "bytes": done.size, "seconds": seconds}))
    return code


def publish_all(options: SinkOptions, pieces: Iterable[list[bytes]], arguments: argparse.Namespace, done: Sum) -> None:
    """A piece is what there was to read at once; it is acknowledged before the next is read."""
    portion = arguments.batch
    if arguments.rate:
        portion = min(portion, max(1, int(arguments.rate / _BATCHES_A_SECOND)))
    due = time.monotonic()
    turns = itertools.count()
    for piece in pieces:
        for batch in _batches(piece, portion):
            if arguments.rate:
                time.sleep(max(0.0, due - time.monotonic()))
                # After a pause in the input it goes on at this rate, not faster.
                due = max(due, time.monotonic() - 1 / _BATCHES_A_SECOND) + len(batch) / arguments.rate
            publish(options, batch, arguments.defer, next(turns))
            done.messages += len(batch)
            done.size += sum(map(len, batch))


def publish(options: SinkOptions, bodies: Sequence[bytes], defer_ms: int | None, turn: int) -> None:
    """Returns when they are acknowledged."""
    from pyspark_nsq.connector.producer import Producer
    from pyspark_nsq.connector.publishing import Request
    from pyspark_nsq.proto import commands

    topic = options.topic or ""
    if defer_ms is None:
        pieces: tuple[bytes, ...] = (commands.mpub(topic, bodies),)
    else:
        pieces = tuple(commands.dpub(topic, defer_ms, body) for body in bodies)
    with Producer(options, turn) as producer:
        producer.publish(Request(topic, len(bodies), len(pieces), pieces))
        producer.finish()


def _batches(bodies: Sequence[bytes], count_max: int) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        if batch and (len(batch) >= count_max or size + len(body) > _BATCH_SIZE_MAX):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += len(body)
    if batch:
        yield batch


def _pieces(arguments: argparse.Namespace) -> Iterator[list[bytes]]:
    """The messages, as many at once as are there."""
    if arguments.message:
        yield [os.fsencode(text) for text in arguments.message if text]
        return
    for name in arguments.files or ["-"]:
        if arguments.whole:
            content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
            yield [content] if content else []
        elif name == "-":
            yield from split_stream(sys.stdin.fileno(), arguments.separator)
        else:
            with Path(name).open("rb") as file:
                yield from split_stream(file.fileno(), arguments.separator)


def split_stream(fd: int, end: bytes, size_max: int = 64 * 2**20) -> Iterator[list[bytes]]:
    """What stands between separators, as soon as it can be read; what follows the last one counts too."""
    rest = b""
    while data := os.read(fd, _READ_SIZE):
        *whole, rest = (rest + data).split(end)
        if len(rest) > size_max:
            raise OSError(f"no separator {end!r} in {len(rest)} bytes: this is no message")
        yield [body for body in whole if body]
    if rest:
        yield [rest]
