"""Make Spark start quickly, for tests that start it often: see ``quick_spark`` in run.

Its Python processes import pyspark from an archive of sources, which each of them would compile anew. And its JVM
remembers the classes that a query takes.
"""

import zipfile
from importlib._bootstrap_external import _code_to_hash_pyc  # type: ignore[import-not-found]
from importlib.util import source_hash
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession


def compile_archive(path: Path) -> None:
    """Put the compiled modules beside their sources, in a copy that takes the archive's place at once."""
    new = path.with_suffix(".new")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as compiled:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith(".py"):
                code = compile(content, f"{path}/{name}", "exec", dont_inherit=True)
                compiled.writestr(f"{name}c", _code_to_hash_pyc(code, source_hash(content), checked=False))
            if not name.endswith(".pyc"):
                compiled.writestr(name, content)
    new.replace(path)


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
    compile_archive(Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip")
    run_a_query()
