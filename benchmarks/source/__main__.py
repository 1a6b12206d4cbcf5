"""Rows a second from one nsqd into Spark, beside a source that yields tuples; the cost of idling; and latency.

    ./run bench source [--rows 2000000] [--size 200] [--in-flight 400000] [--broker go|ours]

Both sources read through the same receiver; what differs is what a task hands to Spark: record batches, or a tuple a
row as most Python sources do. A rate is that of the middle of a run: from a fifth of the messages to all but a tenth.
Idling is the CPU time of the connector's own processes. Latency is from publishing one message until nsqd has its FIN,
so that Spark has committed its batch; beside it what a batch of one row of Spark's own test source takes.
What matters are the ratios: rates depend on the machine.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from pyspark_nsq.connector.source import NsqDataSource
from pyspark_nsq.connector.stream_reader import NsqStreamReader

sys.path.insert(0, str(Path(__file__).parents[1]))

from rig.nsqd import MAKES, Nsqd
from rig.session import start_spark

TOPIC, CHANNEL = "bench", "spark"
OWN_PROCESSES = ("python_streaming_source_runner", "pyspark_nsq.connector.receiver")


class TupleReader(NsqStreamReader):
    """What one writes first: an object a row."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for batch in super().read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class TupleDataSource(NsqDataSource):
    @classmethod
    def name(cls) -> str:
        return "nsq_tuples"

    def streamReader(self, schema: StructType) -> NsqStreamReader:  # noqa: N802 (Spark's name)
        return TupleReader(self._source_options(), schema)


class Bench:
    def __init__(self, spark: SparkSession, nsqd: Nsqd, in_flight: int) -> None:
        self._spark = spark
        self._nsqd = nsqd
        self._in_flight = in_flight
        self._runs = 0

    def start(self, source: str) -> StreamingQuery:
        reader = self._spark.readStream.format(source).option("topic", TOPIC).option("channel", CHANNEL)
        reader = reader.option("nsqdTcpAddresses", self._nsqd.tcp).option("nsqdHttpAddresses", self._nsqd.http)
        reader = reader.option("maxInFlight", self._in_flight).option("maxInFlightBytes", "2g")
        return self._write(reader.load())

    def _write(self, rows: Any) -> StreamingQuery:
        self._runs += 1
        checkpoint = self._nsqd.folder / f"checkpoint-{self._runs}"
        query: StreamingQuery = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
        return query

    def rate(self, source: str, count: int, size: int) -> float:
        """Rows a second of a run's middle, all finished in nsqd."""
        self._nsqd.fill(TOPIC, count, size)
        query = self.start(source)
        times: list[tuple[float, int]] = []
        while (left := self._nsqd.unfinished(TOPIC)) and not query.exception():
            times.append((time.perf_counter(), count - left))
            time.sleep(0.1)
        query.stop()
        if failure := query.exception():
            raise SystemExit(str(failure))
        middle = [(when, done) for when, done in times if count * 0.2 <= done <= count * 0.9]
        (begin, first), (end, last) = middle[0], middle[-1]
        return (last - first) / (end - begin)

    def idle(self, seconds: float) -> float:
        """The part of a core that the connector's processes use while nothing comes."""
        query = self.start("nsq")
        self._wait(lambda: len(_own_processes()) == len(OWN_PROCESSES))
        time.sleep(3)
        processes = _own_processes()
        before, begin = sum(map(_cpu_s, processes)), time.perf_counter()
        time.sleep(seconds)
        used, passed = sum(map(_cpu_s, processes)) - before, time.perf_counter() - begin
        query.stop()
        return used / passed

    def latency(self, count: int) -> float:
        """Seconds from publishing one message until its batch is committed, the median."""
        query = self.start("nsq")
        found = []
        for _ in range(count):
            begin = time.perf_counter()
            self._nsqd.post(f"/pub?topic={TOPIC}", b"one")
            self._wait(lambda: self._nsqd.unfinished(TOPIC) == 0)
            found.append(time.perf_counter() - begin)
        query.stop()
        # The first batches warm up.
        return statistics.median(found[count // 3 :])

    def spark_batch(self, count: int) -> float:
        """Seconds that Spark takes for a batch of one row of its own source, the median."""
        reader = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
        query = self._write(reader.load())
        self._wait(lambda: len(query.recentProgress) >= count)
        query.stop()
        times = [progress.durationMs["triggerExecution"] for progress in query.recentProgress]
        return statistics.median(times[count // 3 :]) / 1000

    @staticmethod
    def _wait(is_done: Callable[[], bool]) -> None:
        while not is_done():
            time.sleep(0.005)


def _own_processes() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        # Spark's workers come and go meanwhile.
        with suppress(psutil.NoSuchProcess):
            if any(name in word for word in process.cmdline() for name in OWN_PROCESSES):
                found.append(process)
    return found


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--in-flight", type=int, default=400_000)
    parser.add_argument("--broker", choices=MAKES, default="go")
    arguments = parser.parse_args()
    nsqd = Nsqd(arguments.broker, arguments.rows)
    try:
        nsqd.post(f"/topic/create?topic={TOPIC}")
        nsqd.post(f"/channel/create?topic={TOPIC}&channel={CHANNEL}")
        spark = start_spark("source")
        spark.dataSource.register(TupleDataSource)
        bench = Bench(spark, nsqd, arguments.in_flight)
        bench.rate("nsq", arguments.rows // 4, arguments.size)
        rates = {source: bench.rate(source, arguments.rows, arguments.size) for source in ("nsq", "nsq_tuples")}
        idle, latency, own = bench.idle(10), bench.latency(15), bench.spark_batch(15)
        spark.stop()
    finally:
        nsqd.close()
    print(f"{arguments.rows} rows of {arguments.size} bytes from one nsqd ({arguments.broker}), noop sink:")
    print(f"  record batches         {rates['nsq']:>10,.0f} rows/s")
    print(f"  tuples                 {rates['nsq_tuples']:>10,.0f} rows/s")
    print(f"  ratio                  {rates['nsq'] / rates['nsq_tuples']:>10.1f}")
    print(f"  an idle query          {idle * 100:>10.1f} % of a core, planner and receiver")
    print(f"  publish to committed   {latency * 1000:>10.0f} ms for one message")
    print(f"  a batch of Spark's own {own * 1000:>10.0f} ms for one row")


if __name__ == "__main__":
    main()
