"""Publishes with a secret, in a batch and in a stream, printing all that Spark shows of it: run by test_security.py.

Arguments: a folder for the checkpoint, and the number of rows. The sink's options come as JSON on standard input.
"""

import json
import os
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)
from rig import processes


def main(checkpoint: Path, count: int) -> None:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.Builder().master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    # All that anybody would log.
    spark.sparkContext.setLogLevel("DEBUG")
    options = json.load(sys.stdin)
    rows = spark.range(0, count, 1, 2).select(F.col("id").cast("string").alias("body"))
    rows.write.format("nsq").mode("append").options(**options).save()

    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", count).load()
    writer = stream.select(F.col("value").cast("string").alias("body")).writeStream.format("nsq").options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    while not query.recentProgress and not query.exception():
        query.awaitTermination(1)
    query.explain(extended=True)
    processes.show()
    query.stop()
    for progress in query.recentProgress:
        print(progress.json)
    print(query.exception())

    try:
        wrong = options | {"authSecret": f"no {options['authSecret']}"}
        rows.write.format("nsq").mode("append").options(**wrong).save()
    except PySparkException as refused:
        print("refused:", refused)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
