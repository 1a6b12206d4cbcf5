"""What holds for every test of the project."""

import os
import signal

import pytest

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
    ("integration/source",),
    ("integration/sink", "integration/demo", "integration/notebooks"),
    ("integration/executors", "integration/faults/test_security", "tests/test_docs", "tests/test_packaging"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, and keep it in line where several processes run tests."""
    for item in items:
        for number, line in enumerate(SPARK_LINES):
            if item.nodeid.startswith(line):
                item.add_marker(pytest.mark.xdist_group(f"spark-{number}"))
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
