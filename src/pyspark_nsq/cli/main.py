"""``nsq``: which sub-command is meant, and what the shell is told about how it ended."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from pyspark_nsq import __version__

DONE: Final = 0
FAILED: Final = 1
WRONG_USE: Final = 2
TIMED_OUT: Final = 3
INTERRUPTED: Final = 130

_DESCRIPTION: Final = "Look at NSQ's topics, read them, and publish to them."
_EPILOG: Final = f"""\
-l (nsqlookupd, HTTP) or -d (nsqd) says where NSQ is; without either $NSQ_LOOKUPD_HTTP_ADDRESSES, or 127.0.0.1:4161.
'nsq COMMAND --help' tells more about each command.

exit codes:
  {DONE}    done
  {FAILED}    something failed: the last line on standard error says what
  {WRONG_USE}    wrong use of the command
  {TIMED_OUT}    the --timeout came before the --count
  {INTERRUPTED}  interrupted; tail and stat are done at the first Ctrl-C
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(arguments: Sequence[str] | None) -> int:
    # Only here, so that a sub-command pays for what it uses and no more.
    from pyspark_nsq.connector.errors import NsqError, OptionError

    parsed = make_parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="nsq: %(message)s", stream=sys.stderr)
    run: Callable[[argparse.Namespace], int] = parsed.run
    try:
        code = run(parsed)
        sys.stdout.flush()
    except OptionError as error:
        return _complain(error, WRONG_USE)
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (NsqError, OSError) as error:
        return _complain(error, FAILED)
    return code


def _complain(error: Exception, code: int) -> int:
    print(f"nsq: {error}", file=sys.stderr)
    return code


class _Parser(argparse.ArgumentParser):
    """Takes options among the positional arguments too, as in ``nsq pub images --whole *.png``."""

    _is_inner = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._is_inner:
            return super().parse_known_args(args, namespace)
        self._is_inner = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_inner = False


def make_parser() -> argparse.ArgumentParser:
    from pyspark_nsq.cli import pub, stat, tail, topics

    parser = argparse.ArgumentParser(
        prog="nsq", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"nsq {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    for command in (tail, pub, stat, topics):
        command.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
