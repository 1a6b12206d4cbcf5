"""What tests of every room share."""

import os
import subprocess
from pathlib import Path

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
