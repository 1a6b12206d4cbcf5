"""What every receiver process begins with, whoever has started it."""

import logging
import os
import resource


def set_up_process(level: str) -> None:
    """Log to standard error, which may be closed before us, and allow as many connections as the system does."""
    form = f"%(asctime)s %(levelname)s nsq receiver {os.getpid()}: %(message)s"
    logging.basicConfig(level=level, format=form)
    logging.raiseExceptions = False
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
