"""What tests of every room share."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

# A busy machine is no reason to fail: nothing here is timed.
settings.register_profile("untimed", deadline=None, print_blob=True)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the checkout."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def go_nsq() -> Path:
    """The folder with Go's nsqd, its tools and its benchmark programs.

    Named by ``NSQ_GO_BIN``, which ``./run test`` sets: on PATH our own nsqd has the same name. Without it the test is
    skipped, or fails where ``NSQ_REQUIRE_GO=1``.
    """
    named = os.environ.get("NSQ_GO_BIN")
    if not named:
        if os.environ.get("NSQ_REQUIRE_GO") == "1":
            pytest.fail("NSQ_REQUIRE_GO=1 but NSQ_GO_BIN names no folder with Go's nsqd")
        pytest.skip(
            "Go's nsqd is not here: install Go and use ./run test, or set NSQ_GO_BIN to a folder with nsqd v1.3.0"
        )
    folder = Path(named).absolute()
    answer = subprocess.run([folder / "nsqd", "--version"], capture_output=True, text=True, check=True)
    assert "built w/go" in answer.stdout, f"NSQ_GO_BIN={named} holds another nsqd: {answer.stdout!r}"
    return folder


@pytest.fixture(scope="session")
def compiling(root: Path) -> ModuleType:
    """tools/compile_broker.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("compile_broker", root / "tools" / "compile_broker.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def compiled_wheel(root: Path, compiling: ModuleType) -> Path:
    """The unpacked wheel with nsqd compiled, and ``bin/nsqd`` in it; made from this checkout where it has changed."""
    absent = compiling.missing()
    if absent and os.environ.get("NSQ_REQUIRE_COMPILED") != "1":
        pytest.skip(f"nsqd cannot be compiled without {' and '.join(absent)}: apt-get install gcc python3-dev")
    made = subprocess.run([sys.executable, root / "tools" / "compiled_wheel.py"], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    return Path(made.stdout.strip())
