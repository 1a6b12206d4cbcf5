"""Rows a second from one nsqd into Spark, beside other sources; the cost of idling; and latency.

    ./run bench source [--rows 2000000] [--size 200] [--in-flight 400000] [--rounds 3] [--broker go|ours] [--skip-kafka]

Beside the source as it is: the same for a schema that wants only the bodies; a source that hands Spark a tuple a row,
as most Python sources do, through the same receiver; and Spark's Kafka source, with batches of about the same size,
from a Kafka of one node. A rate is that of the middle of a run: from a fifth of the messages to all but a tenth. The
processor time a row is told by who used it in that time. Idling is the CPU time of the connector's own processes.
Latency is from publishing one message until nsqd has its FIN, so that Spark has committed its batch; beside it what a
batch of one row of Spark's own test source takes, and how long Spark waits for the
source's latest offset. What matters are the ratios: rates depend on the machine.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from pyspark_nsq.connector.source import NsqDataSource
from pyspark_nsq.connector.stream_reader import NsqStreamReader

sys.path.insert(0, str(Path(__file__).parents[1]))

from rig.kafka import Kafka, kafka_if_possible
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


class Run(NamedTuple):
    """The middle of a run: rows a second, and microseconds of processor time a row by who used it."""

    rate: float
    costs: dict[str, float]

    def __str__(self) -> str:
        costs = ", ".join(f"{who} {cost:.2f}" for who, cost in sorted(self.costs.items()) if cost >= 0.01)
        return f"{self.rate:>10,.0f} rows/s   {sum(self.costs.values()):5.2f} us of CPU a row: {costs}"


class Bench:
    def __init__(self, spark: SparkSession, nsqd: Nsqd, in_flight: int) -> None:
        self._spark = spark
        self._nsqd = nsqd
        self._in_flight = in_flight
        self._runs = 0

    def start(self, source: str, schema: str | None = None) -> StreamingQuery:
        reader = self._spark.readStream.format(source).option("topic", TOPIC).option("channel", CHANNEL)
        reader = reader.option("nsqdTcpAddresses", self._nsqd.tcp).option("nsqdHttpAddresses", self._nsqd.http)
        reader = reader.option("maxInFlight", self._in_flight).option("maxInFlightBytes", "2g")
        return self._write((reader.schema(schema) if schema else reader).load())

    def _write(self, rows: Any) -> StreamingQuery:
        self._runs += 1
        checkpoint = self._nsqd.folder / f"checkpoint-{self._runs}"
        query: StreamingQuery = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
        return query

    def nsq(self, source: str, count: int, size: int, schema: str | None = None) -> Run:
        """All messages finished in nsqd."""
        self._nsqd.fill(TOPIC, count, size)
        return middle_of(self.start(source, schema), count, lambda: count - self._nsqd.unfinished(TOPIC))

    def kafka(self, kafka: Kafka, count: int, size: int) -> Run:
        """The same messages from Kafka, in batches as large as those of ours can be on average."""
        topic = kafka.new_topic()
        rows = self._spark.range(count).selectExpr(f"repeat('x', {size}) AS value")
        rows.write.format("kafka").options(**kafka.options, topic=topic).save()
        reader = self._spark.readStream.format("kafka").options(**kafka.options, subscribe=topic)
        reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", self._in_flight // 2)
        query = self._write(reader.load())
        return middle_of(query, count, lambda: sum(progress.numInputRows for progress in query.recentProgress))

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

    def latency(self, count: int) -> tuple[float, list[int]]:
        """Seconds from publishing one message until its batch is committed, the median; and how many milliseconds
        Spark waited for each latest offset."""
        query = self.start("nsq")
        found = []
        for _ in range(count):
            begin = time.perf_counter()
            self._nsqd.post(f"/pub?topic={TOPIC}", b"one")
            self._wait(lambda: self._nsqd.unfinished(TOPIC) == 0)
            found.append(time.perf_counter() - begin)
        query.stop()
        # The first batches warm up.
        offsets = [progress.durationMs["latestOffset"] for progress in query.recentProgress][count // 3 :]
        return statistics.median(found[count // 3 :]), offsets

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


def middle_of(query: StreamingQuery, count: int, done: Callable[[], int]) -> Run:
    """Look on until all of so many messages are done."""
    looks: list[tuple[float, int, dict[str, float]]] = []
    while (now_done := done()) < count and not query.exception():
        if count * 0.2 <= now_done <= count * 0.9:
            looks.append((time.perf_counter(), now_done, cpu_by_role()))
        # To look more often would cost what is measured.
        time.sleep(0.4)
    query.stop()
    if failure := query.exception():
        raise SystemExit(str(failure))
    (begin, first, before), (end, last, after) = looks[0], looks[-1]
    costs = {role: (after[role] - before.get(role, 0.0)) * 1e6 / (last - first) for role in after}
    return Run((last - first) / (end - begin), costs)


ROLES = {
    "pyspark_nsq.connector.receiver": "receiver",
    "python_streaming_source_runner": "planner",
    "pyspark.daemon": "Python workers",
    "kafka.Kafka": "Kafka",
    "org.apache.spark.deploy.SparkSubmit": "Spark's JVM",
    "nsqd": "nsqd",
}


def cpu_by_role() -> dict[str, float]:
    """Seconds of processor time so far, of the processes that this one has started."""
    found: dict[str, float] = dict.fromkeys(ROLES.values(), 0.0)
    for process in psutil.Process().children(recursive=True):
        # Spark's workers come and go meanwhile.
        with suppress(psutil.NoSuchProcess):
            words = process.cmdline()
            role = next((role for name, role in ROLES.items() if any(name in word for word in words)), None)
            if role:
                found[role] += _cpu_s(process)
    return found


def _own_processes() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
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
    parser.add_argument("--rounds", type=int, default=3, help="of which the best one counts")
    parser.add_argument("--broker", choices=MAKES, default="go")
    parser.add_argument("--skip-kafka", action="store_true")
    arguments = parser.parse_args()
    beside = nullcontext((None, {})) if arguments.skip_kafka else kafka_if_possible()
    with closing(Nsqd(arguments.broker, arguments.rows)) as nsqd, beside as (kafka, settings):
        nsqd.post(f"/topic/create?topic={TOPIC}")
        nsqd.post(f"/channel/create?topic={TOPIC}&channel={CHANNEL}")
        spark = start_spark("source", settings)
        spark.dataSource.register(TupleDataSource)
        bench = Bench(spark, nsqd, arguments.in_flight)
        print(f"{arguments.rows} rows of {arguments.size} bytes from one nsqd ({arguments.broker}), noop sink:")
        # Java compiles for a while what it runs often, beside what is measured.
        for _ in range(2):
            bench.nsq("nsq", arguments.rows, arguments.size)
        rows, size, rounds = arguments.rows, arguments.size, arguments.rounds
        show("all columns", best_of(rounds, lambda: bench.nsq("nsq", rows, size)))
        show("body alone", best_of(rounds, lambda: bench.nsq("nsq", rows, size, "body BINARY")))
        show("as tuples", best_of(rounds, lambda: bench.nsq("nsq_tuples", rows // 2, size)))
        if kafka:
            bench.kafka(kafka, arguments.rows // 2, arguments.size)
            show("Kafka's source", best_of(rounds, lambda: bench.kafka(kafka, rows, size)))
        show("an idle query", f"{bench.idle(10) * 100:>10.1f} % of a core, planner and receiver")
        latency, offsets = bench.latency(15)
        show("publish to committed", f"{latency * 1000:>10.0f} ms for one message")
        show("the latest offset", f"{statistics.median(offsets):>10.0f} ms, {max(offsets)} at most")
        show("a batch of Spark's own", f"{bench.spark_batch(15) * 1000:>10.0f} ms for one row")
        spark.stop()


def best_of(rounds: int, run: Callable[[], Run]) -> Run:
    """What the machine's other work disturbed least."""
    return max((run() for _ in range(rounds)), key=lambda each: each.rate)


def show(what: str, value: object) -> None:
    print(f"  {what:<22} {value}", flush=True)


if __name__ == "__main__":
    main()
