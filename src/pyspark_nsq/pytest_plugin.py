"""Fixtures for tests that need a broker: ``nsq`` and ``make_nsq``. pytest finds this by itself once it is installed.

Everybody's pytest imports this file, whether or not it uses NSQ: so it imports nothing until a fixture is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark_nsq.testing import LocalNsq


@pytest.fixture
def make_nsq() -> Iterator[Callable[..., LocalNsq]]:
    """Starts brokers with the arguments of ``pyspark_nsq.testing.local_nsq``; they end with the test."""
    from pyspark_nsq.testing import local_nsq

    with contextlib.ExitStack() as running:

        def make(*args: object, **settings: object) -> LocalNsq:
            return running.enter_context(local_nsq(*args, **settings))  # type: ignore[arg-type]

        yield make


@pytest.fixture
def nsq(make_nsq: Callable[..., LocalNsq]) -> LocalNsq:
    """nsqlookupd and an nsqd, for this test alone."""
    return make_nsq()
