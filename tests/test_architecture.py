"""ARCHITECTURE.md says what may import what; this holds the code to it."""

import ast
from pathlib import Path

import pytest

# Reading a clock counts as touching the world: time is handed in.
WORLD = {"asyncio", "multiprocessing", "select", "selectors", "socket", "socketserver", "ssl", "subprocess", "time"}
_LIGHT = {"gevent", "google", "grpc", "pandas", "pyarrow", "pyspark", "pyspark_nsq.broker", "pyspark_nsq.demo"}
FORBIDDEN = {
    "proto": WORLD | {"gevent", "grpc", "pyspark", "pyspark_nsq.broker", "pyspark_nsq.connector"},
    "broker": {"google", "grpc", "pandas", "pyarrow", "pyspark", "pyspark_nsq.connector"},
    "connector": {"gevent", "pyspark_nsq.broker"},
    "src/pyspark_nsq/cli": _LIGHT,
    "src/pyspark_nsq/demo": {"gevent", "grpc", "pyspark_nsq.broker"},
    "src/pyspark_nsq/launch.py": _LIGHT,
    "src/pyspark_nsq/metrics.py": {"gevent", "google", "grpc", "pyspark_nsq.broker"},
    "src/pyspark_nsq/testing.py": _LIGHT,
    "src/pyspark_nsq/pytest_plugin.py": _LIGHT,
    "src/pyspark_nsq/container.py": {"google", "grpc", "pandas", "pyarrow", "pyspark", "pyspark_nsq.connector"},
}


def imported(source: str) -> set[str]:
    """Every module a source text imports, at its head or inside a function, by full name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide what a module stands on"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def violations(source: str, forbidden: set[str]) -> set[str]:
    """The forbidden modules that a source text imports, whole or in part."""
    return {name for name in imported(source) for rule in forbidden if f"{name}.".startswith(f"{rule}.")}


@pytest.mark.parametrize("room", FORBIDDEN)
def test_a_room_imports_only_what_it_may(root: Path, room: str) -> None:
    seen = 0
    place = root / room
    for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
        # The contract's generated half is the one place in proto that knows gRPC.
        allowed = {"grpc"} if path.name.endswith("_pb2_grpc.py") else set()
        found = violations(path.read_text(), FORBIDDEN[room] - allowed)
        assert not found, f"{path.relative_to(root)} imports {sorted(found)}, which {room} may not"
        seen += 1
    assert seen, f"{room} holds no Python at all"


@pytest.mark.parametrize(
    "source",
    [
        "import gevent",
        "import gevent.server as s",
        "from gevent import monkey",
        "def f():\n    from gevent.pool import Pool",
        "from pyspark_nsq import broker",
        "from pyspark_nsq.broker.nsqd import main",
    ],
)
def test_a_forbidden_import_is_seen(source: str) -> None:
    assert violations(source, FORBIDDEN["connector"])


@pytest.mark.parametrize("source", ["import geventually", "from pyspark_nsq.proto import broker", "import grpc"])
def test_a_lookalike_is_not_mistaken(source: str) -> None:
    assert not violations(source, FORBIDDEN["connector"])
