"""Make Spark start quickly, for tests that start it often: see ``quick_spark`` in run.

Its Python processes import pyspark from an archive, and before their first task read the list of its contents once for
each package. And its JVM remembers the classes that a query takes.
"""

import compileall
import shutil
import zipfile
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession


def unpack(archive: Path) -> None:
    """Put a folder in its place, which Python takes as well, with what is compiled in it."""
    new = archive.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(new, [name for name in packed.namelist() if "/tests/" not in name])
    compileall.compile_dir(new, stripdir=str(new), prependdir=str(archive), quiet=2)
    archive.unlink()
    new.rename(archive)


def run_a_query() -> None:
    spark = SparkSession.Builder().master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def look(rows: DataFrame, _batch: int) -> None:
        rows.groupBy("value").count().collect()

    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = stream.writeStream.foreachBatch(look).start()
    while not query.recentProgress and query.isActive:
        query.awaitTermination(1)
    query.stop()
    spark.range(10).mapInArrow(lambda batches: batches, "id long").collect()
    spark.stop()


if __name__ == "__main__":
    for found in (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"):
        if found.is_file():
            unpack(found)
    run_a_query()
