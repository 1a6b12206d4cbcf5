"""What the daemons say they are."""

import sys
from pathlib import Path

from pyspark_nsq.proto import commands

NSQ_VERSION = "1.3.0"
"""The release of Go's NSQ whose behaviour this broker has: clients and nsqadmin choose features by it."""


def version_text(program: str) -> str:
    """``nsqd v1.3.0 (built w/python3.11.7)``: the answer to --version and the first line of the log. Who has compiled
    the daemons reads ``3.11.7-compiled`` there."""
    major, minor, micro = sys.version_info[:3]
    compiled = "" if Path(commands.__file__).suffix == ".py" else "-compiled"
    return f"{program} v{NSQ_VERSION} (built w/python{major}.{minor}.{micro}{compiled})"
