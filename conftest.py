"""What holds for every test of the project."""

import os
import signal
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Started in the background, by nohup or by a test runner's worker, Python ignores these, and so does all that tests
# start: they would wait in vain for a command to end at Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Tests of every room share a process. With gRPC's handlers in it, a fork may end before it has become the program that
# it is for, such as Spark's gateway.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Tests with a Spark of their own keep two cores busy, and Spark gives its Python processes only seconds to start: so
# many of these lines run at once, beside all that mostly waits. Each takes about as long as the others.
SPARK_LINES = (
    (
        "integration/sink",
        "integration/demo",
        "integration/notebooks",
        "integration/faults/test_security",
        "integration/faults/test_network",
    ),
    ("integration/executors", "integration/faults/test_crash", "integration/source/test_security"),
    ("integration/source", "integration/faults/test_hostile", "tests/test_docs"),
)


def line_of(nodeid: str) -> int | None:
    return next((number for number, line in enumerate(SPARK_LINES) if nodeid.startswith(line)), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    items.sort(key=lambda item: line_of(item.nodeid) is None)


class Lines(LoadScopeScheduling):
    """Each line is for one process; all other tests go one by one to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        line = line_of(nodeid)
        return nodeid if line is None else f"line {line}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lines:
    """How tests are dealt to several processes."""
    return Lines(config, log)
