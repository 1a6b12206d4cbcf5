"""Rows a second from a cached DataFrame into one nsqd: the sink, beside a writer that handles one row at a time.

    ./run bench sink [--rows 1000000] [--size 200] [--rounds 3] [--broker go|ours]

Both writers publish the same rows in the same run, in turns, over the same connections code with MPUBs of the same
size; what differs is columns against rows. Each rate is the best of the rounds, the time that of the whole Spark job.
nsqd keeps all in memory (--mem-queue-size): past it Go's writes message by message to disk, which would be measured.
What matters is the ratio: rates depend on the machine.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_nsq.connector.options import SinkOptions, parse_sink_options
from pyspark_nsq.connector.producer import Producer
from pyspark_nsq.connector.publishing import Request
from pyspark_nsq.proto.commands import mpub

TOPIC = "bench"
# What fits into the sink's own batches of 1 MiB.
ROWS_A_COMMAND = 5_000


class RowWriter(DataSourceWriter):
    """What one writes first: an object a row, collected into commands."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        with Producer(self._options, 0) as producer:
            bodies: list[bytes] = []
            for row in iterator:
                bodies.append(row.body)
                if len(bodies) == ROWS_A_COMMAND:
                    producer.publish(Request(TOPIC, len(bodies), 1, (mpub(TOPIC, bodies),)))
                    bodies = []
            if bodies:
                producer.publish(Request(TOPIC, len(bodies), 1, (mpub(TOPIC, bodies),)))
            producer.finish()
        return WriterCommitMessage()


class RowDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "nsq_rows"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002 (Spark's names)
        return RowWriter(parse_sink_options(self.options))


class Broker:
    """An nsqd of its own, in a folder of its own."""

    def __init__(self, executable: Path, rows: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-sink-"))
        flags = ["-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0", f"-data-path={self.folder}"]
        flags.append(f"-mem-queue-size={rows}")
        self.process = subprocess.Popen([executable, *flags], stderr=subprocess.PIPE, text=True)
        ports: dict[str, str] = {}
        assert self.process.stderr is not None
        while {"TCP", "HTTP"} - ports.keys():
            line = self.process.stderr.readline()
            if not line:
                raise SystemExit(f"{executable} did not start")
            if match := re.search(r"(TCP|HTTP): listening on (\S+)", line):
                ports[match[1]] = match[2]
        self.tcp, self.http = ports["TCP"], ports["HTTP"]
        # Nobody reads on, and it must not fill up.
        self.drain = subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=subprocess.DEVNULL)

    def reset(self) -> None:
        """Begin with an empty topic."""
        for action in ("delete", "create"):
            try:
                urllib.request.urlopen(f"http://{self.http}/topic/{action}?topic={TOPIC}", b"", timeout=60).close()
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise

    def message_count(self) -> int:
        with urllib.request.urlopen(f"http://{self.http}/stats?format=text&topic={TOPIC}", timeout=60) as response:
            match = re.search(rf"\[{TOPIC}\s*\].*msgs: (\d+)", response.read().decode())
        return int(match[1]) if match else 0

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.drain.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def executable_of(broker: str) -> Path:
    if broker == "ours":
        return Path(sys.executable).parent / "nsqd"
    folder = os.environ.get("NSQ_GO_BIN")
    if folder is None:
        raise SystemExit("set NSQ_GO_BIN to a folder with Go's nsqd, or choose --broker ours")
    return Path(folder) / "nsqd"


def start_spark() -> SparkSession:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.Builder().master("local[2]").appName("bench-sink")
    for key, value in {"spark.ui.enabled": "false", "spark.driver.memory": "2g"}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def cached_rows(spark: SparkSession, count: int, size: int) -> DataFrame:
    text = F.rpad(F.concat(F.lit("message "), F.col("id").cast("string")), size, ".")
    rows = spark.range(0, count, 1, 2).select(F.encode(text, "utf-8").alias("body")).cache()
    rows.count()
    return rows


def measure(rounds: int, count: int, broker: Broker, writers: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """Rows a second of each, the best of all rounds, taken in turns. The first round warms up."""
    best = dict.fromkeys(writers, 0.0)
    for round_number in range(rounds + 1):
        for name, write in writers.items():
            broker.reset()
            start = time.perf_counter()
            write()
            rate = count / (time.perf_counter() - start)
            assert broker.message_count() == count, f"{name}: {broker.message_count()} of {count} messages arrived"
            if round_number:
                best[name] = max(best[name], rate)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--broker", choices=["go", "ours"], default="go")
    arguments = parser.parse_args()
    broker = Broker(executable_of(arguments.broker), arguments.rows)
    try:
        spark = start_spark()
        spark.dataSource.register(RowDataSource)
        rows = cached_rows(spark, arguments.rows, arguments.size)

        def write(name: str) -> None:
            options = {"topic": TOPIC, "nsqdTcpAddresses": broker.tcp}
            rows.write.format(name).mode("append").options(**options).save()

        rates = measure(
            arguments.rounds,
            arguments.rows,
            broker,
            {"columns": lambda: write("nsq"), "rows": lambda: write("nsq_rows")},
        )
        spark.stop()
    finally:
        broker.close()
    print(f"{arguments.rows} rows of {arguments.size} bytes into one nsqd ({arguments.broker}):")
    print(f"  the sink, by columns   {rates['columns']:>10,.0f} rows/s")
    print(f"  a row at a time        {rates['rows']:>10,.0f} rows/s")
    print(f"  ratio                  {rates['columns'] / rates['rows']:>10.1f}")


if __name__ == "__main__":
    main()
