"""What signals do to a daemon: INT and TERM stop it in order, QUIT shows all stacks and ends it with code 2, USR1 is
ignored, and HUP ends it at once, as the system has it."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress

import gevent


def install(stop: Callable[[], object]) -> None:
    """``stop`` runs in a greenlet of its own at INT and TERM; it may be called more than once."""
    gevent.signal_handler(signal.SIGINT, stop)
    gevent.signal_handler(signal.SIGTERM, stop)
    gevent.signal_handler(signal.SIGQUIT, _dump_and_die)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _dump_and_die() -> None:
    from pyspark_nsq.broker.debug import stacks

    with suppress(OSError):
        os.write(2, f"SIGQUIT: quit\n\n{stacks()}".encode("utf-8", "backslashreplace"))  # nobody is kept waiting now
    os._exit(2)
