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

# What each process takes whole. Tests with a Spark of their own keep two cores busy, and Spark gives its Python
# processes only seconds to start: three processes have all of those, each about as long as the others, beside all that
# mostly waits. The other groups take minutes too, and share what is costly to make: an image, an environment.
GROUPS = (
    (
        "integration/sink",
        "integration/demo",
        "integration/notebooks",
        "integration/faults/test_security",
        "integration/faults/test_network",
    ),
    ("integration/executors", "integration/faults/test_crash", "integration/source/test_security"),
    ("integration/source", "integration/faults/test_hostile", "tests/test_docs"),
    ("tests/container",),
    ("tests/test_packaging",),
    ("integration/faults/test_broker_kills",),
    ("integration/fuzz/test_fuzzing",),
)


def group_of(nodeid: str) -> int:
    """Its place in ``GROUPS``, or their number for a test that any process may take."""
    return next((number for number, paths in enumerate(GROUPS) if nodeid.startswith(paths)), len(GROUPS))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first; of groups xdist begins with the one of most tests, whatever their order."""
    items.sort(key=lambda item: group_of(item.nodeid))


class Groups(LoadScopeScheduling):
    """Each group is for one process; all other tests go one by one to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        group = group_of(nodeid)
        return f"group {group}" if group < len(GROUPS) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    """How tests are dealt to several processes."""
    return Groups(config, log)
