"""DataFrames whose rows tell their numbers, and how tests write them."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from rig.daemons import Nsqd

BATCH_ROWS = 1_000


def numbered(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    """Rows 0 to ``count``, each with a body that tells its number."""
    return spark.range(0, count, 1, partitions).select(F.concat(F.lit("message "), F.col("id")).alias("body"), "id")


def bodies(count: int, copies: int = 1) -> Counter[bytes]:
    """What these rows become."""
    return Counter({b"message %d" % number: copies for number in range(count)})


def write(rows: DataFrame, *nsqds: Nsqd, **options: str) -> None:
    """Publish them to nsqds named by option."""
    addresses = ",".join(nsqd.tcp for nsqd in nsqds)
    rows.write.format("nsq").mode("append").option("nsqdTcpAddresses", addresses).options(**options).save()


def gated(rows: DataFrame, gate: Path, open_rows: int) -> DataFrame:
    """The same rows, but a task that has given so many waits for the file ``gate`` to appear."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        given = 0
        for batch in batches:
            for first in range(0, batch.num_rows, BATCH_ROWS):
                deadline = time.monotonic() + 60
                while given >= open_rows and not gate.exists():
                    assert time.monotonic() < deadline, "nobody opened the gate"
                    time.sleep(0.01)
                part = batch.slice(first, BATCH_ROWS)
                given += part.num_rows
                yield part

    return rows.mapInArrow(pass_on, rows.schema)
