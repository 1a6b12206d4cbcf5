"""The source and the sink, with gates: the code of the product, stopped where a test wants to strike."""

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from os import getpid
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from faults.gates import COMMITTED, HALF_WAY, PLANNED, RECEIVED, WRITTEN, Gates
from pyspark_nsq.connector.executors import started_at
from pyspark_nsq.connector.offsets import parse_offset
from pyspark_nsq.connector.options import SourceOptions, parse_sink_options
from pyspark_nsq.connector.planning import available
from pyspark_nsq.connector.rows import RangePartition
from pyspark_nsq.connector.sink import NsqCommitMessage, NsqStreamWriter
from pyspark_nsq.connector.sink_columns import choose_columns
from pyspark_nsq.connector.source import NsqDataSource
from pyspark_nsq.connector.stream_reader import NsqStreamReader

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_nsq.connector.coordinator import Coordinator

# Its number, and when it started: another process may get that number later.
PLANNER_NOTE = "planner"
RECEIVER_NOTE = "receiver"
PROXY_NOTE = "receiver-proxy"


class HeldReader(NsqStreamReader):
    def __init__(self, options: SourceOptions, schema: StructType, gates: Gates) -> None:
        super().__init__(options, schema)
        self._gates = gates

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_gates": self._gates}

    def _started(self, available_now: bool = False) -> "Coordinator":
        if self._coordinator is None:
            self._gates.note(PLANNER_NOTE, f"{getpid()} {started_at(getpid())}")
        return super()._started(available_now)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        if start["session"] and self._started().session == start["session"]:
            self._gates.wait(COMMITTED)
        end = super().latestOffset(start, limit)
        wanted = self._gates.text(RECEIVED)
        if wanted is None or end is start:
            return end
        first, last = parse_offset(start), parse_offset(end)
        starts = first.ends or [0] * len(last.ends)
        parts = map(available, starts, last.ends)
        if sum(part.end - part.first for part in parts) >= int(wanted):
            self._gates.arrive(RECEIVED)
        return start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        # Spark begins with a batch of nothing.
        if start != end:
            self._gates.wait(PLANNED)
        planned = super().partitions(start, end)
        proxy = self._gates.noted(PROXY_NOTE)
        for partition in planned:
            assert isinstance(partition, RangePartition)
            self._gates.note(RECEIVER_NOTE, partition.place.address)
            if proxy:
                partition.place = replace(partition.place, address=proxy, socket="")
        return planned

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        with self._apart():
            for rows in super().read(partition):
                middle = rows.num_rows // 2
                yield rows.slice(0, middle)
                self._gates.wait(HALF_WAY)
                yield rows.slice(middle)

    def _apart(self) -> AbstractContextManager[object]:
        """What goes through a proxy comes as if from another host: in memory that both have it would go past it."""
        if not self._gates.noted(PROXY_NOTE):
            return nullcontext()
        return mock.patch("pyspark_nsq.connector.shared_memory.memory_domain", return_value="")


class HeldWriter(NsqStreamWriter):
    """Stops when all is published and Spark does not know."""

    gates: Gates

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        super().commit(messages, batchId)
        if any(isinstance(message, NsqCommitMessage) and message.published for message in messages):
            self.gates.wait(WRITTEN)


class HeldSource(NsqDataSource):
    """Takes one option more, ``gates``: the folder."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._gates = Gates(Path(options["gates"]))
        others = {name: value for name, value in options.items() if name.lower() != "gates"}
        super().__init__(CaseInsensitiveDict(others))

    @classmethod
    def name(cls) -> str:
        return "nsq_held"

    def streamReader(self, schema: StructType) -> HeldReader:  # noqa: N802
        return HeldReader(self._source_options(), schema, self._gates)

    def streamWriter(self, schema: StructType, overwrite: bool) -> HeldWriter:  # noqa: ARG002, N802
        options = parse_sink_options(self.options)
        writer = HeldWriter(options, choose_columns(schema, options))
        writer.gates = self._gates
        return writer
