"""A Spark of two executors publishes, and one of its tasks fails halfway: run by test_local_cluster.py.

Arguments: the number of rows, then TCP address, HTTP address and topic of each nsqd to publish to.
"""

import os
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)


def failing_once(rows: DataFrame, count: int, http: str, topic: str) -> DataFrame:
    """The same rows, but the first attempt at the first of two partitions ends once nsqd has got some of its rows."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import json
        import time
        from urllib.request import urlopen

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        fails = context.partitionId() == 0 and context.attemptNumber() == 0
        # What the sink gets may lag a batch behind.
        yield next(batches)
        yield next(batches)
        for batch in batches:
            deadline = time.monotonic() + 60
            while fails and time.monotonic() < deadline:
                with urlopen(f"http://{http}/stats?format=json&topic={topic}") as response:
                    topics = json.load(response)["topics"]
                if topics and topics[0]["message_count"] > count // 2:
                    raise RuntimeError("the task fails as it was told")
                time.sleep(0.05)
            yield batch

    return rows.mapInArrow(pass_on, rows.schema)


def main(count: int, places: list[str]) -> None:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.Builder().master("local-cluster[2,1,1024]").appName("sink")
    for key, value in {"spark.ui.enabled": "false", "spark.executor.memory": "512m"}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for tcp, http, topic in zip(places[::3], places[1::3], places[2::3], strict=True):
        rows = spark.range(0, count, 1, 2).select(F.concat(F.lit("message "), F.col("id")).alias("body"))
        writer = failing_once(rows, count, http, topic).write.format("nsq").mode("append")
        writer.options(topic=topic, nsqdTcpAddresses=tcp).save()
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
