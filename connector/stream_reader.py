"""The stream reader as Spark calls it; it is made in several processes, and runs things in one of them only."""

import os
import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pyspark_nsq.connector.errors import NsqError
from pyspark_nsq.connector.executors import StartPartition, ensure_receiver, start_here
from pyspark_nsq.connector.logs import show_log
from pyspark_nsq.connector.offsets import START, parse_offset
from pyspark_nsq.connector.options import SourceOptions
from pyspark_nsq.connector.rows import RangePartition, read_range

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_nsq.connector.coordinator import Coordinator


class TriggerError(NsqError):
    """A trigger with which messages could not be finished."""


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._invalid_utf8 = options.invalid_utf8
        self._coordinator: Coordinator | None = None
        self._is_stopping = False

    def __getstate__(self) -> dict[str, Any]:
        # Tasks need neither the options, which may hold secrets, nor what runs on the driver.
        return {"_schema": self._schema, "_invalid_utf8": self._invalid_utf8}

    # On the driver.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name, as those below)
        return START.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        # Always a number: ``ReadAllAvailable`` then tells that the trigger is Once.
        return ReadMaxRows(self._options.messages_per_trigger_max or self._options.in_flight_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._started(available_now=True).prepare_drain()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Spark asks for the next batch when the one that ends at ``start`` is committed, and not before."""
        if isinstance(limit, ReadAllAvailable):
            raise TriggerError(
                "Trigger.Once is not supported: it never says that its batch is committed, so that its messages "
                "would come again. Use trigger(availableNow=True)"
            )
        assert isinstance(limit, ReadMaxRows)
        coordinator = self._started()
        begin = parse_offset(start)
        coordinator.finish(begin)
        end = coordinator.latest(begin, limit.max_rows)
        return start if end == begin else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._coordinator.report() if self._coordinator else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._started().partitions(parse_offset(start), parse_offset(end))

    def commit(self, end: dict[str, Any]) -> None:
        self._started().finish(parse_offset(end))

    def stop(self) -> None:
        self._is_stopping = True
        if self._coordinator:
            self._coordinator.stop()
            self._coordinator = None

    def _started(self, available_now: bool = False) -> "Coordinator":
        if self._coordinator is None:
            from pyspark_nsq.connector.coordinator import Coordinator

            show_log()
            self._coordinator = Coordinator(self._options, available_now)
            # Spark ends this process without a word to the reader.
            signal.signal(signal.SIGTERM, self._terminate)
            self._coordinator.start()
        return self._coordinator

    def _terminate(self, number: int, _frame: object) -> None:
        if self._is_stopping:
            # What it has interrupted is the stop, after which the process ends.
            return
        self.stop()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    # In tasks.

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if isinstance(partition, StartPartition):
            start_here(partition.way)
            return iter(())
        assert isinstance(partition, RangePartition)
        way = partition.place.way
        if way and way.starting:
            ensure_receiver(way)
        return read_range(partition, self._schema, self._invalid_utf8)
