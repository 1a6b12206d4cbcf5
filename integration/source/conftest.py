"""Starts queries over the source, and makes sure that none leaves anything behind."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from rig.daemons import Daemon, Nsqd, wait_until
from rig.reading import PLANNER, RECEIVER, Reading, processes


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


StartReading = Callable[..., Reading]


@pytest.fixture
def start_reading(
    request: pytest.FixtureRequest, spark: SparkSession, checkpoint: Path, temporary: Path, daemons: list[Daemon]
) -> Iterator[StartReading]:
    """Starts a query on the source; at the end nothing of it may be left, and every message must be finished."""
    started: list[Reading] = []

    def start(
        *nsqds: Nsqd,
        schema: str | None = None,
        trigger: dict[str, Any] | None = None,
        before_batch: Callable[[DataFrame, int], None] | None = None,
        **options: Any,
    ) -> Reading:
        reading = Reading(spark, checkpoint)
        if before_batch:
            reading.before_batch = before_batch
        started.append(reading.start(nsqds, options, schema, **(trigger or {})))
        return reading

    yield start
    for reading in started:
        reading.stop()
    wait_until(lambda: all(reading.gone() for reading in started), "the receivers' end")
    wait_until(lambda: not processes(RECEIVER) and not processes(PLANNER), "the end of all of the source's processes")
    for nsqd in (daemon for daemon in daemons if isinstance(daemon, Nsqd) and daemon.process.poll() is None):
        wait_until(lambda nsqd=nsqd: nsqd.connections() == 0, "the end of all connections")  # type: ignore[misc]
        if not request.node.get_closest_marker("leaves_messages"):
            wait_until(lambda nsqd=nsqd: nsqd.unfinished_everywhere() == 0, "empty channels")  # type: ignore[misc]
    assert not list(temporary.iterdir())
