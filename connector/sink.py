"""The sink: ``df.writeStream.format("nsq")`` and ``df.write.format("nsq")``.

A task publishes its rows as columns and ends when every nsqd has acknowledged them. Spark may run a task again, or a
whole batch: then messages are published again. At least once is what this gives.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_nsq.connector.errors import OptionError
from pyspark_nsq.connector.logs import show_log
from pyspark_nsq.connector.options import SinkOptions, parse_sink_options

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_nsq.connector.producer import Producer
    from pyspark_nsq.connector.sink_columns import Rows, SinkColumns

log = logging.getLogger(__name__)

# Spark hands over at most 10,000 rows at once. Rows of many topics are collected, so that each topic's share of them
# is worth a command.
_COLLECTED_SIZE_MIN: Final = 8 * 2**20


@dataclass(frozen=True)
class NsqCommitMessage(WriterCommitMessage):
    """What a task has published."""

    # Messages acknowledged, by topic and nsqd.
    published: Mapping[tuple[str, str], int] = field(default_factory=dict)
    # Messages that were sent once more after a failure, and may be there twice.
    resent: int = 0
    # Invalid rows left out or dead-lettered, by reason.
    invalid: Mapping[str, int] = field(default_factory=dict)


class NsqStreamWriter(DataSourceStreamArrowWriter):
    """Publishes the batches of a streaming query."""

    def __init__(self, options: SinkOptions, columns: "SinkColumns") -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> NsqCommitMessage:
        return publish(self._options, self._columns, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        show_log()
        log.info("batch %d: %s", batchId, summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        show_log()
        log.warning("batch %d failed; %s: these stay, and come again with the next try", batchId, summary(messages))


class NsqBatchWriter(DataSourceArrowWriter):
    """Publishes a DataFrame once."""

    def __init__(self, options: SinkOptions, columns: "SinkColumns") -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> NsqCommitMessage:
        return publish(self._options, self._columns, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        show_log()
        log.info("write: %s", summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        show_log()
        log.warning("write failed; %s: these stay, and come again with the next try", summary(messages))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> NsqStreamWriter:  # noqa: ARG001
    """The writer of a streaming query, which can only add."""
    return NsqStreamWriter(*_prepare(options, schema))


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> NsqBatchWriter:
    """The writer of ``df.write``."""
    if overwrite:
        raise OptionError('mode overwrite: what was published cannot be taken back; use .mode("append")')
    return NsqBatchWriter(*_prepare(options, schema))


def _prepare(options: Mapping[str, str], schema: StructType) -> tuple[SinkOptions, "SinkColumns"]:
    from pyspark_nsq.connector.sink_columns import choose_columns

    parsed = parse_sink_options(options)
    return parsed, choose_columns(schema, parsed)


def refuse_batch_read() -> NoReturn:
    """NSQ's messages end when they are finished, and Spark does not tell a batch source when that may be."""
    raise OptionError(_BATCH_READ)


_BATCH_READ: Final = """spark.read cannot read NSQ without losing messages: Spark does not tell a batch source \
whether the job succeeded. Read what is there now with a stream that ends by itself:

    (spark.readStream.format("nsq")
        .option("topic", "events").option("channel", "spark")
        .option("lookupdHttpAddresses", "127.0.0.1:4161")
        .load()
        .writeStream.trigger(availableNow=True)
        .option("checkpointLocation", "/path/to/checkpoint")
        .format("parquet").option("path", "/path/to/table")
        .start().awaitTermination())
"""


def publish(options: SinkOptions, columns: "SinkColumns", batches: Iterator["pa.RecordBatch"]) -> NsqCommitMessage:
    """Publish a task's rows; returns once all are acknowledged."""
    show_log()
    from pyspark_nsq.connector.producer import Producer

    invalid: Counter[str] = Counter()
    with Producer(options, _turn()) as producer:
        for collected in _collect(batches, _COLLECTED_SIZE_MIN if columns.topic is not None else 0):
            invalid += _publish_rows(producer, options, columns, collected)
        producer.finish()
    books = producer.books
    published = {(topic, str(address)): count for (topic, address), count in books.stored.items()}
    return NsqCommitMessage(published, books.resent, dict(invalid))


def _turn() -> int:
    """Which nsqd this task begins with: another one for each partition, and for each batch."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return 0
    batch_id = context.getLocalProperty("streaming.sql.batchId") or str(context.stageId())
    return context.partitionId() + context.attemptNumber() + int(batch_id)


def _collect(batches: Iterator["pa.RecordBatch"], size_min: int) -> Iterator[list["pa.RecordBatch"]]:
    """Several batches at a time, of so many bytes together or more but for the last."""
    collected: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            collected.append(batch)
            size += batch.nbytes
        if collected and size >= size_min:
            yield collected
            collected, size = [], 0
    if collected:
        yield collected


def _publish_rows(
    producer: "Producer", options: SinkOptions, columns: "SinkColumns", batches: Sequence["pa.RecordBatch"]
) -> Counter[str]:
    """Publish these rows; how many were invalid, by reason. All are checked before the first is sent."""
    from pyspark_nsq.connector.dead_letters import dead_letters
    from pyspark_nsq.connector.sink_columns import (
        InvalidRowError,
        Rows,
        by_topic,
        describe_invalid,
        find_invalid,
        read_rows,
        valid_rows,
    )

    rows = read_rows(list(batches), columns)
    invalid = find_invalid(rows, options)
    if len(invalid.rows):
        if options.on_invalid == "fail":
            raise InvalidRowError(describe_invalid(rows, invalid, options))
        if options.dead_letter_topic is not None:
            _send(producer, options, options.dead_letter_topic, Rows(dead_letters(rows, invalid, options), None, None))
    for topic, part in by_topic(valid_rows(rows, invalid), options):
        _send(producer, options, topic, part)
    return invalid.counts()


def _send(producer: "Producer", options: SinkOptions, topic: str, rows: "Rows") -> None:
    from pyspark_nsq.connector.publishing import Request
    from pyspark_nsq.connector.sink_columns import split_deferred
    from pyspark_nsq.proto.dpub import encode_dpubs
    from pyspark_nsq.proto.mpub import encode_mpubs

    at_once, deferred = split_deferred(rows)
    mpubs = encode_mpubs(
        topic,
        at_once.bodies,
        message_size_max=options.message_size_max,
        body_size_max=options.body_size_max,
        batch_size_max=options.batch_size_max,
        count_max=options.batch_messages_max,
    )
    for mpub in mpubs:
        producer.publish(Request(topic, mpub.message_count, 1, (mpub.head, memoryview(mpub.messages))))
    if deferred is None:
        return
    dpubs = encode_dpubs(
        topic,
        deferred.bodies,
        deferred.delays_ms,
        batch_size_max=options.batch_size_max,
        count_max=options.batch_messages_max,
    )
    for batch in dpubs:
        producer.publish(Request(topic, batch.message_count, batch.message_count, (memoryview(batch.data),)))


def summary(messages: Sequence[WriterCommitMessage | None]) -> str:
    """What the tasks of a batch have published, in a line."""
    done = [message for message in messages if isinstance(message, NsqCommitMessage)]
    by_nsqd: Counter[str] = Counter()
    topics: Counter[str] = Counter()
    invalid: Counter[str] = Counter()
    for message in done:
        invalid.update(message.invalid)
        for (topic, nsqd), count in message.published.items():
            by_nsqd[nsqd] += count
            topics[topic] += count
    text = f"published {by_nsqd.total()} messages to {_named(topics, 'topics')} on {_named(by_nsqd, 'nsqds')}"
    if resent := sum(message.resent for message in done):
        text += f"; sent {resent} of them again after a failure, which may be there twice"
    if invalid:
        text += f"; invalid: {', '.join(f'{count} rows as {reason}' for reason, count in invalid.most_common())}"
    return text


def _named(counts: Counter[str], what: str) -> str:
    """The largest counts with their names, and how many more there are."""
    shown_max = 5
    shown = ", ".join(f"{name} {count}" for name, count in counts.most_common(shown_max))
    more = f" and {len(counts) - shown_max} more" if len(counts) > shown_max else ""
    return f"{len(counts)} {what}" + (f" ({shown}{more})" if counts else "")
