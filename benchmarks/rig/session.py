"""One quiet Spark on two cores, and the rows that it writes."""

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession


def start_spark(name: str, settings: Mapping[str, str] | None = None, master: str = "local[2]") -> SparkSession:
    """A local Spark whose workers run this interpreter."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.Builder().master(master).appName(f"bench-{name}")
    for key, value in {"spark.ui.enabled": "false", "spark.driver.memory": "2g", **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
