"""From NSQ through Spark into NSQ, and out again: every message is accounted for."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from rig.daemons import Lookupd, Nsqd, wait_until
from rig.frames import bodies
from rig.patience import start_patiently

COUNT = 20_000


def read(spark: SparkSession, lookupd: Lookupd, topic: str) -> DataFrame:
    options = {"topic": topic, "channel": "c", "lookupdHttpAddresses": lookupd.http}
    return spark.readStream.format("nsq").options(**options).load()


def wait_finished(nsqds: list[Nsqd], topic: str) -> None:
    """nsqd executes the last FINs when the query has already sent them and ended."""
    wait_until(lambda: [nsqd.unfinished(topic, "c") for nsqd in nsqds] == [0, 0], f"all FINs of {topic}")


def test_source_to_sink_to_source(
    spark: SparkSession,
    start_lookupd: Callable[..., Lookupd],
    start_nsqd: Callable[..., Nsqd],
    topic: str,
    tmp_path: Path,
) -> None:
    lookupd = start_lookupd()
    nsqds = [start_nsqd(lookupds=(lookupd,)) for _ in range(2)]
    for number, nsqd in enumerate(nsqds):
        nsqd.make_channel(topic, "c")
        nsqd.make_channel(f"{topic}-out", "c")
        nsqd.publish(topic, list(bodies(COUNT))[number::2])
    wait_until(lambda: len(lookupd.producers(f"{topic}-out")) == 2, "both nsqds at lookupd")

    through = read(spark, lookupd, topic).select("body").writeStream.format("nsq")
    through = through.options(topic=f"{topic}-out", lookupdHttpAddresses=lookupd.http, connectionIdleTimeout="1s")
    through = through.option("checkpointLocation", str(tmp_path / "through")).trigger(availableNow=True)
    query = start_patiently(through)
    assert query.awaitTermination(200)
    wait_finished(nsqds, topic)
    assert sum(nsqd.message_count(f"{topic}-out") for nsqd in nsqds) == COUNT

    found: Counter[bytes] = Counter()

    def count(rows: DataFrame, _batch: int) -> None:
        found.update(bytes(row.body) for row in rows.collect())

    out = read(spark, lookupd, f"{topic}-out").writeStream.foreachBatch(count)
    query = start_patiently(out.option("checkpointLocation", str(tmp_path / "out")).trigger(availableNow=True))
    assert query.awaitTermination(200)
    assert found == bodies(COUNT)
    wait_finished(nsqds, f"{topic}-out")
    wait_until(lambda: not any(nsqd.connections() for nsqd in nsqds), "the end of all connections")
