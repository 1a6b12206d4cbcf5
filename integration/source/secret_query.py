"""A query with secrets, printing all that Spark shows of it. Run as a program, with options as JSON on its input."""

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from rig import processes


def main(checkpoint: Path, row_count: int) -> None:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.Builder().master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    # All that anybody would log.
    spark.sparkContext.setLogLevel("DEBUG")
    rows = spark.readStream.format("nsq").options(**json.load(sys.stdin)).load()
    rows.explain(extended=True)
    writer = rows.writeStream.format("memory").queryName("rows").option("checkpointLocation", str(checkpoint))
    query = writer.start()
    deadline = time.monotonic() + 120
    while spark.table("rows").count() < row_count and time.monotonic() < deadline and not query.exception():
        time.sleep(0.1)
    query.explain(extended=True)
    for progress in query.recentProgress:
        print(progress.json)
    print(query.status, query.exception(), rows)
    processes.show()
    assert spark.table("rows").count() == row_count
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
