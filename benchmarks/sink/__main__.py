"""Rows a second from a cached DataFrame into one nsqd, beside a writer of one row at a time, and beside Kafka's sink.

    ./run bench sink [--rows 1000000] [--size 200] [--rounds 3] [--broker go|ours]

All publish the same rows in the same run, in turns. The row writer uses the sink's own connections and MPUBs of the
same size; what differs is columns against rows. Kafka is a broker of one node and Spark's own sink, with default
settings. Each rate is the best of the rounds, the time that of the whole Spark job, and every message is counted.
nsqd keeps all in memory (--mem-queue-size): past it Go's writes message by message to disk, which would be measured.
What matters are the ratios: rates depend on the machine.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_nsq.connector.options import SinkOptions, parse_sink_options
from pyspark_nsq.connector.producer import Producer
from pyspark_nsq.connector.publishing import Request
from pyspark_nsq.proto.commands import mpub

sys.path.insert(0, str(Path(__file__).parents[1]))

from rig.kafka import Kafka, kafka_if_possible
from rig.nsqd import MAKES, Nsqd
from rig.session import start_spark

TOPIC = "bench"
SINK = "the sink, by columns"
# What fits into the sink's own batches of 1 MiB.
ROWS_A_COMMAND = 5_000


class RowWriter(DataSourceWriter):
    """What one writes first: an object a row, collected into commands."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        with Producer(self._options, 0) as producer:
            bodies: list[bytes] = []
            for row in iterator:
                bodies.append(row.body)
                if len(bodies) == ROWS_A_COMMAND:
                    producer.publish(Request(TOPIC, len(bodies), 1, (mpub(TOPIC, bodies),)))
                    bodies = []
            if bodies:
                producer.publish(Request(TOPIC, len(bodies), 1, (mpub(TOPIC, bodies),)))
            producer.finish()
        return WriterCommitMessage()


class RowDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "nsq_rows"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002 (Spark's names)
        return RowWriter(parse_sink_options(self.options))


def cached_rows(spark: SparkSession, count: int, size: int) -> DataFrame:
    text = F.rpad(F.concat(F.lit("message "), F.col("id").cast("string")), size, ".")
    rows = spark.range(0, count, 1, 2).select(F.encode(text, "utf-8").alias("body")).cache()
    rows.count()
    return rows


@dataclass(frozen=True)
class Target:
    """One way to publish: it begins with an empty topic, and tells how many messages have arrived in it."""

    empty: Callable[[], None]
    write: Callable[[], None]
    count: Callable[[], int]


def nsq_target(rows: DataFrame, nsqd: Nsqd, source: str) -> Target:
    writer = rows.write.format(source).mode("append").options(topic=TOPIC, nsqdTcpAddresses=nsqd.tcp)
    return Target(lambda: nsqd.reset(TOPIC), writer.save, lambda: nsqd.message_count(TOPIC))


def kafka_target(rows: DataFrame, kafka: Kafka) -> Target:
    topic = ""

    def begin() -> None:
        nonlocal topic
        topic = kafka.new_topic()

    def write() -> None:
        values = rows.withColumnRenamed("body", "value")
        values.write.format("kafka").options(**kafka.options, topic=topic).save()

    def count() -> int:
        return rows.sparkSession.read.format("kafka").options(**kafka.options, subscribe=topic).load().count()

    return Target(begin, write, count)


def measure(rounds: int, count: int, targets: Mapping[str, Target]) -> dict[str, float]:
    """Rows a second of each, the best of all rounds, taken in turns. The first round warms up."""
    best = dict.fromkeys(targets, 0.0)
    for round_number in range(rounds + 1):
        for name, target in targets.items():
            target.empty()
            start = time.perf_counter()
            target.write()
            rate = count / (time.perf_counter() - start)
            arrived = target.count()
            assert arrived == count, f"{name}: {arrived} of {count} messages arrived"
            if round_number:
                best[name] = max(best[name], rate)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--broker", choices=MAKES, default="go")
    arguments = parser.parse_args()
    with closing(Nsqd(arguments.broker, arguments.rows)) as nsqd, kafka_if_possible() as (kafka, settings):
        spark = start_spark("sink", settings)
        spark.dataSource.register(RowDataSource)
        rows = cached_rows(spark, arguments.rows, arguments.size)
        targets = {
            SINK: nsq_target(rows, nsqd, "nsq"),
            "a row at a time": nsq_target(rows, nsqd, "nsq_rows"),
        }
        if kafka:
            targets["Kafka's sink"] = kafka_target(rows, kafka)
        rates = measure(arguments.rounds, arguments.rows, targets)
        spark.stop()
    print(f"{arguments.rows} rows of {arguments.size} bytes into one nsqd ({arguments.broker}):")
    for name, rate in rates.items():
        ratio = f"   the sink is {rates[SINK] / rate:.1f} times as fast" if name != SINK else ""
        print(f"  {name:<21}{rate:>12,.0f} rows/s{ratio}")


if __name__ == "__main__":
    main()
