"""``nsq tail``: show messages as they come."""

import argparse
import base64
import json
import secrets
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from pyspark_nsq.cli import settings
from pyspark_nsq.cli.arguments import duration_s, positive

if TYPE_CHECKING:
    from pyspark_nsq.cli.reading import Reader, Received

_DESCRIPTION: Final = """\
Show the messages of topics as they come, each body on a line.

Without --channel it reads a channel of its own that ends with the command, and takes nothing from anybody. Where a
topic has no channel at all it ends if an nsqd keeps messages for the first one; what comes while it looks is not kept.
With --channel it takes messages from that channel: what it has shown is finished, and nobody else gets it.
"""
_EPILOG: Final = """\
examples:
  nsq tail orders                            # until Ctrl-C
  nsq tail orders -n 10 --timeout 30s        # 10 messages; exit code 3 if they have not come after 30 seconds
  nsq tail orders payments --json | jq .body
  nsq tail orders --channel archive --timeout 1m > orders.txt
"""
# Without another limit: enough to be quick, little to give back in the end.
_IN_FLIGHT_MAX: Final = 200
# How long Ctrl-C and the end of --timeout may have to wait to be noticed.
_WAIT_S_MAX: Final = 0.5


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "tail",
        help="show messages as they come",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("topics", metavar="TOPIC", nargs="+", help="what to read")
    parser.add_argument("-c", "--channel", help="the channel to take messages from")
    parser.add_argument("-n", "--count", type=positive, help="end after so many messages")
    parser.add_argument(
        "-t", "--timeout", type=duration_s, metavar="TIME", help="end after this time, such as 30s or 5m"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="an object a line: topic, nsqd, id, timestamp (nanoseconds), attempts, and body or, where that is no "
        "UTF-8, body_base64",
    )
    settings.add_lookupd(parser)
    settings.add_nsqd_tcp(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from pyspark_nsq.cli.main import DONE, TIMED_OUT
    from pyspark_nsq.cli.reading import Reader

    channel = arguments.channel or f"tail{secrets.token_hex(4)}#ephemeral"
    options = settings.source_options(arguments, ",".join(arguments.topics), channel)
    with Reader(options, only_looks=not arguments.channel) as reader:
        try:
            shown = _show(reader, arguments)
        except KeyboardInterrupt:
            return DONE
    return DONE if arguments.count in (None, shown) else TIMED_OUT


def _show(reader: "Reader", arguments: argparse.Namespace) -> int:
    """How many messages were shown when the count or the time was reached."""
    shown = 0
    deadline = None if arguments.timeout is None else time.monotonic() + arguments.timeout
    while arguments.count is None or shown < arguments.count:
        left = None if arguments.count is None else arguments.count - shown
        reader.in_flight_max = min(_IN_FLIGHT_MAX, left or _IN_FLIGHT_MAX)
        left_s = _WAIT_S_MAX if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            break
        received = reader.receive(min(left_s, _WAIT_S_MAX))[:left]
        for each in received:
            _write(each, arguments.json)
        # Finished is what has been handed over.
        sys.stdout.flush()
        reader.finish(received)
        shown += len(received)
    return shown


def _write(received: "Received", as_json: bool) -> None:
    message = received.message
    if not as_json:
        sys.stdout.buffer.write(message.body + b"\n")
        return
    fields: dict[str, object] = {
        "topic": received.topic,
        "nsqd": str(received.nsqd),
        "id": message.id.decode("ascii", "backslashreplace"),
        "timestamp": message.timestamp,
        "attempts": message.attempts,
    }
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(message.body).decode()
    sys.stdout.buffer.write(json.dumps(fields, ensure_ascii=False).encode() + b"\n")
