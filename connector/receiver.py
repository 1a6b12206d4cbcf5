"""The receiver process: keeps connections to nsqds, holds what they deliver until it is finished, serves it to Spark.

Its coordinator starts it as ``python -m pyspark_nsq.connector.receiver``, writes a ``Setup`` to its standard input and
keeps that open: its end, however it comes, ends the receiver. The port it serves on is the one line that it prints, or
why it has none.
"""

import ctypes
import logging
import os
import pickle
import signal
import sys
from dataclasses import dataclass, field
from typing import Final

from pyspark_nsq.connector.channels import ListenError
from pyspark_nsq.connector.receiver_core import ReceiverCore
from pyspark_nsq.connector.receiver_loop import ReceiverLoop
from pyspark_nsq.connector.receiver_service import ReceiverService, StatusBoard, serve
from pyspark_nsq.connector.receiver_setup import set_up_process
from pyspark_nsq.connector.receiver_tls import ReceiverTls
from pyspark_nsq.connector.settings import ConnectionSettings
from pyspark_nsq.connector.source_state import Limits

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1
_SERVER_GRACE_S: Final = 0.5


@dataclass(frozen=True)
class Setup:
    """All that a receiver is told when it starts."""

    host: str
    # The first that is free; 0 is any. One that is started again takes the port of the one before.
    ports: range
    token: str = field(repr=False)
    first_position: int
    limits: Limits
    connection: ConnectionSettings
    sources_interval_s: float
    tls: ReceiverTls | None = None
    lane: int = 0


def main() -> None:
    # From our own parent, through a pipe that nobody else has.
    setup: Setup = pickle.load(sys.stdin.buffer)  # noqa: S301
    set_up_process("INFO")
    _die_with_parent()
    core = ReceiverCore(setup.limits, setup.first_position)
    board = StatusBoard(setup.sources_interval_s)
    loop = ReceiverLoop(core, setup.connection, sys.stdin.fileno(), board)
    signal.signal(signal.SIGTERM, lambda _signal, _frame: loop.stop())
    # Ctrl-C in a terminal goes to every process there: the coordinator decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        service = ReceiverService(core, loop, board, setup.lane)
        server, port = serve(service, setup.token, setup.host, setup.ports, setup.tls)
    except ListenError as error:
        print(error, flush=True)  # noqa: T201
        sys.exit(1)
    print(port, flush=True)  # noqa: T201
    code = 1
    try:
        loop.run()
        code = 0
    except BaseException:
        log.exception("the receiver failed")
    server.stop(_SERVER_GRACE_S).wait()
    logging.shutdown()
    # Threads that still connect somewhere would keep the process for their time-out.
    os._exit(code)


def _die_with_parent() -> None:
    """A second sign of the coordinator's death, should somebody else hold its end of our standard input."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    main()
