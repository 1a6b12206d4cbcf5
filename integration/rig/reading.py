"""Queries over the source whose every row is kept."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from pyspark.sql import DataFrame, Row, SparkSession

from rig.daemons import Nsqd, wait_until
from rig.patience import start_patiently
from rig.processes import below, is_alive

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

RECEIVER = "pyspark_nsq.connector.receiver"
PLANNER = "python_streaming_source_runner"


def processes(name: str) -> list[psutil.Process]:
    """Those that this test run started and that run a module of this name."""
    return [process for process, command in below() if name in command]


class Reading:
    """A query that runs, and the rows of each of its batches."""

    def __init__(self, spark: SparkSession, checkpoint: Path) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.receivers: list[psutil.Process] = []
        self.before_batch: Callable[[DataFrame, int], None] = lambda _rows, _batch: None
        self.query: StreamingQuery
        self._spark = spark
        self._checkpoint = checkpoint

    def start(self, nsqds: tuple[Nsqd, ...], options: dict[str, Any], schema: str | None, **trigger: Any) -> "Reading":
        reader = self._spark.readStream.format("nsq").option("channel", "c")
        if nsqds:
            reader = reader.option("nsqdTcpAddresses", ",".join(nsqd.tcp for nsqd in nsqds))
            reader = reader.option("nsqdHttpAddresses", ",".join(nsqd.http for nsqd in nsqds))
        for name, value in options.items():
            reader = reader.option(name, value)
        if schema:
            reader = reader.schema(schema)
        writer = reader.load().writeStream.foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        self.query = start_patiently(writer.trigger(**trigger) if trigger else writer)
        return self

    def _keep(self, rows: DataFrame, batch: int) -> None:
        self.before_batch(rows, batch)
        self.batches[batch] = rows.collect()

    @property
    def rows(self) -> list[Row]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]

    def bodies(self) -> Counter[bytes]:
        return Counter(bytes(row.body) for row in self.rows)

    def wait_for(self, bodies: Counter[bytes], timeout_s: float = 120) -> None:
        """Until each of these has come at least once."""

        def all_here() -> bool:
            self.check()
            return bodies.keys() <= self.bodies().keys()

        wait_until(all_here, f"{len(bodies)} different messages", timeout_s)

    def check(self) -> None:
        """A query that has failed fails the test."""
        if failure := self.query.exception():
            raise AssertionError(str(failure))

    def find_receivers(self) -> list[psutil.Process]:
        self.receivers = wait_until(lambda: processes(RECEIVER), "a receiver process")
        return self.receivers

    def stop(self) -> None:
        self.receivers += processes(RECEIVER)
        self.query.stop()

    def gone(self) -> bool:
        """Whether no process of the query is left."""
        return not any(map(is_alive, self.receivers))


class HangingBatch:
    """Done before a batch, this keeps it from ending; a stop of the query can end it."""

    def __init__(self) -> None:
        self._begun = threading.Event()

    def __call__(self, rows: DataFrame, _batch: int) -> None:
        self._begun.set()
        # In tasks: those can be cancelled.
        rows.foreach(lambda _row: time.sleep(600))

    def wait_begun(self) -> None:
        assert self._begun.wait(90), "waited in vain for a batch"


def settled(nsqd: Nsqd, topic: str) -> bool:
    """Whether the channel owes nobody a message."""
    return nsqd.unfinished(topic, "c") == 0


def wait_settled(nsqd: Nsqd, topic: str) -> None:
    wait_until(lambda: settled(nsqd, topic), f"an empty channel of {topic}, it is {nsqd.stats(topic, 'c')}")


def numbered(first: int, count: int) -> list[bytes]:
    return [b"message %d" % number for number in range(first, first + count)]
