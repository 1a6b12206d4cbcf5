"""A query with two secrets, from a topic to a topic, of which Spark keeps and shows all that it can.

Run as a program with a folder; options come as JSON on its input. It prints what its processes show of themselves.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rig import processes
from rig.ports import wider_than_loopback


def main(folder: Path, options: dict[str, Any]) -> None:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    (folder / "events").mkdir()
    spark = (
        SparkSession.Builder()
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", str(folder / "events"))
        # What is compressed could hide anything.
        .config("spark.eventLog.compress", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("DEBUG")
    sink = options.pop("sink")
    rows = spark.readStream.format("nsq").options(**options).load()
    rows.explain(extended=True)

    def publish(batch: DataFrame, _number: int) -> None:
        # In the midst of a batch everything runs that ever does.
        processes.show()
        print("wider than loopback:", wider_than_loopback(os.getpid()))
        batch.select("body").write.format("nsq").mode("append").options(**sink).save()

    writer = rows.writeStream.foreachBatch(publish).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(120)
    query.explain(extended=True)
    print(query.status, query.exception(), rows, query.lastProgress)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.load(sys.stdin))
