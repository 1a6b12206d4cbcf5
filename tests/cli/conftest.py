"""A broker and the ``nsq`` command as somebody at a shell has it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_nsq.testing import LocalNsq, local_nsq

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalNsq]:
    """Two nsqds that tests share: the topics are theirs."""
    with local_nsq(nsqds=2) as nsq:
        yield nsq


@pytest.fixture
def variables(cluster: LocalNsq) -> dict[str, str]:
    """The environment in which ``nsq`` finds the cluster without being told."""
    return os.environ | {"NSQ_LOOKUPD_HTTP_ADDRESSES": cluster.lookupd_http_address}


@pytest.fixture
def command() -> list[str | Path]:
    return [sys.executable, "-m", "pyspark_nsq.cli.main"]


@pytest.fixture
def nsq_command(command: list[str], variables: dict[str, str]) -> Run:
    """Runs ``nsq`` to its end."""

    def run(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments], input=stdin, env=variables, capture_output=True, text=True, timeout=60
        )

    return run
