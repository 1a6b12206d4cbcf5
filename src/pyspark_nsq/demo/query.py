"""The Spark side of the demo."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pyspark_nsq.testing import LocalNsq

EVENTS: Final = "shop.events"
RESULTS: Final = "shop.revenue"
CHANNEL: Final = "revenue"
WINDOW_S: Final = 5
_JAVA_TIMEOUT_S: Final = 20.0
_EVENT: Final = "number long, time double, country string, action string, price double"


def make_session(folder: Path) -> "SparkSession":
    """A Spark on loopback in this machine, quiet."""
    # Before the import: pyspark reads them as it loads.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # A busy machine may take long to start Spark's Python workers.
        "spark.python.authenticate.socketTimeout": "60s",
    }
    builder = SparkSession.Builder().master("local[*]").appName("pyspark-nsq demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def end_session(spark: "SparkSession") -> None:
    """Stop Spark and its Java process, which would otherwise outlive this one by a moment."""
    from pyspark import SparkContext

    spark.stop()
    gateway = SparkContext._gateway
    java = getattr(gateway, "proc", None)
    if gateway is None or java is None:
        return
    gateway.shutdown()
    java.stdin.close()
    try:
        java.wait(_JAVA_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()


def start_query(spark: "SparkSession", nsq: "LocalNsq", folder: Path) -> "StreamingQuery":
    """Counts events and adds up orders by window and country, and publishes what has changed after each batch."""
    from pyspark.sql import functions as f

    stream = spark.readStream.format("nsq").options(**nsq.options, topic=EVENTS, channel=CHANNEL).load()
    event = f.from_json(f.col("body").cast("string"), _EVENT).alias("event")
    events = stream.select(event).select("event.*", f.timestamp_seconds("event.time").alias("at"))
    order = f.col("action") == "order"
    results = (
        events.withWatermark("at", "1 minute")
        .groupBy(f.window("at", f"{WINDOW_S} seconds"), "country")
        .agg(
            f.count("*").alias("events"),
            f.sum("number").alias("number_sum"),
            f.count(f.when(order, 1)).alias("orders"),
            f.round(f.sum(f.when(order, f.col("price"))), 2).alias("revenue"),
        )
        .withColumn("start", f.unix_timestamp("window.start"))
    )
    body = f.to_json(f.struct("start", "country", "events", "number_sum", "orders", "revenue")).alias("body")

    def publish(changed: "DataFrame", _: int) -> None:
        changed.write.format("nsq").options(**nsq.options, topic=RESULTS).mode("append").save()

    # Spark lets no sink written in Python take updates directly; a batch of them is as good as any other batch.
    updates = results.select(body).writeStream.outputMode("update").foreachBatch(publish)
    return updates.option("checkpointLocation", str(folder / "checkpoint")).start()
