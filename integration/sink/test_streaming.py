"""Streaming queries into NSQ."""

import shutil
from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from rig.consumer import drain
from rig.daemons import Nsqd

SECRET = "open-sesame"


def publish_lines(spark: SparkSession, folder: Path, nsqd: Nsqd, topic: str) -> StreamingQuery:
    """Publish the lines of all new files, and end."""
    writer = spark.readStream.text(str(folder / "in")).writeStream.format("nsq").queryName(topic)
    options = {"topic": topic, "nsqdTcpAddresses": nsqd.tcp, "authSecret": SECRET}
    query = writer.options(**options).option("checkpointLocation", str(folder / "checkpoint"))
    started = query.trigger(availableNow=True).start()
    assert started.awaitTermination(120)
    return started


def test_batches_are_published_once_and_again_only_when_spark_repeats_one(
    spark: SparkSession, shared_nsqd: Nsqd, topic: str, tmp_path: Path
) -> None:
    shared_nsqd.make_channel(topic, "c")
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number} a\n{number} b\n")
        query = publish_lines(spark, tmp_path, shared_nsqd, topic)
    assert drain(shared_nsqd, topic, "c") == Counter({b"0 a": 1, b"0 b": 1, b"1 a": 1, b"1 b": 1})

    # As if the driver had died between the sink and the commit log.
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    publish_lines(spark, tmp_path, shared_nsqd, topic)
    assert drain(shared_nsqd, topic, "c") == Counter({b"1 a": 1, b"1 b": 1})

    told = [query._jsq.explainInternal(True), str(query.lastProgress)]
    told += [path.read_text() for path in (tmp_path / "checkpoint").rglob("*") if path.suffix == "" and path.is_file()]
    assert not [text for text in told if SECRET in text]
    shutil.rmtree(tmp_path / "checkpoint")
