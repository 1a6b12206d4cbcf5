"""A query on a cluster of two executors of one core, which are killed under it. Run as a program."""

import os
import shutil
import sys
import time
from pathlib import Path

import psutil
import pyspark
from pyspark.sql import DataFrame, SparkSession
from rig.daemons import wait_until
from rig.patience import start_patiently
from rig.processes import below, is_alive
from rig.reading import PLANNER, RECEIVER, processes

from pyspark_nsq.connector.discovery import fetch_stats
from pyspark_nsq.connector.option_kinds import HTTP_ADDRESSES
from pyspark_nsq.connector.settings import Security


def executors() -> list[psutil.Process]:
    return [process for process, command in below() if "CoarseGrainedExecutorBackend" in command]


def in_flight(http: str, topic: str) -> int:
    found = fetch_stats(HTTP_ADDRESSES.parse(http)[0], topic, "c", 10, Security())
    return found.channel.in_flight if found and found.channel else 0


def main(tcp: str, http: str, topic: str, folder: Path) -> None:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.Builder()
        .master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "512m")
        .getOrCreate()
    )
    bodies: dict[int, list[str]] = {}

    def keep(rows: DataFrame, batch: int) -> None:
        if batch == 0:
            grouped = rows.repartition(2).groupBy("id").count().rdd
            before = sorted(map(tuple, grouped.collect()))
            # Their shuffle files go with them: what they had read is read again.
            alive = executors()
            assert alive
            for executor in alive:
                executor.kill()
            after = sorted(map(tuple, grouped.collect()))
            assert before == after == sorted((row.id, 1) for row in rows.collect()), "other rows than before"
        bodies[batch] = [bytes(row.body).decode() for row in rows.collect()]

    reader = spark.readStream.format("nsq").option("topic", topic).option("channel", "c")
    reader = reader.option("nsqdTcpAddresses", tcp).option("nsqdHttpAddresses", http)
    writer = reader.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(folder / "checkpoint"))
    query = start_patiently(writer)
    deadline = time.monotonic() + 90
    while sum(map(len, bodies.values())) < 4000 and time.monotonic() < deadline and not query.exception():
        time.sleep(0.1)
    if failure := query.exception():
        raise SystemExit(str(failure))
    # An idle poll finishes the last batch.
    wait_until(lambda: not in_flight(http, topic), "the FINs of the last batch")
    receivers = processes(RECEIVER)
    assert receivers
    query.stop()
    wait_until(lambda: not any(map(is_alive, receivers)) and not processes(RECEIVER), "the receivers' end")
    wait_until(lambda: not processes(PLANNER), "the planner's end")
    work = Path(pyspark.__file__).parent / "work" / spark.sparkContext.applicationId
    (folder / "bodies").write_text("\n".join(body for batch in bodies.values() for body in batch))
    spark.stop()
    # Where such a cluster keeps its executors' files cannot be chosen.
    shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
