"""Have Spark do what tests have it do: its JVM remembers the classes that this takes (see ``quick_java`` in run)."""

from pyspark.sql import DataFrame, SparkSession


def main() -> None:
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
    main()
