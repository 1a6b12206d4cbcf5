"""What the model's parts cost on this machine."""

import json
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from model import Costs
from pyspark.sql import SparkSession
from rig.nsqd import Nsqd
from rig.session import start_spark

from pyspark_nsq.connector.beginning import Beginning
from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.coordinator import Coordinator
from pyspark_nsq.connector.fleet import Fleet
from pyspark_nsq.connector.offsets import START
from pyspark_nsq.connector.options import parse_source_options
from pyspark_nsq.connector.settings import Address, ConnectionSettings
from pyspark_nsq.connector.source_state import Limits
from pyspark_nsq.proto import receiver_pb2 as pb

EXECUTORS = 2
IN_FLIGHT_MAX = 400_000
_MESSAGES = 1_500_000
_SIZE = 200
_RECEIVERS = 16
_LANES = 256
# Topics on an nsqd, all read by each receiver.
_SOURCES = 8
_TASKS = (8, 264)
_BATCHES = 20
_LEASE_S = 2.0


def measure(broker: str) -> Costs:
    spark = start_spark("scaling", {})
    batch, task = _empty_batch(spark), _task(spark)
    nsqd, receiver, rows = _messages(spark, broker)
    spark.stop()
    return Costs(nsqd, receiver, rows, batch, task, _lane(), _status(broker))


def _empty_batch(spark: SparkSession) -> float:
    """What a batch of one row of Spark's own test source takes."""
    with tempfile.TemporaryDirectory() as folder:
        stream = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
        query = stream.writeStream.format("noop").option("checkpointLocation", folder).start()
        while len(query.recentProgress) < _BATCHES:
            time.sleep(0.1)
        took = sorted(progress.durationMs["triggerExecution"] for progress in query.recentProgress[3:])
        query.stop()
    return float(took[len(took) // 2]) / 1000


def _task(spark: SparkSession) -> float:
    """What one more task takes of the driver."""
    context = spark.sparkContext

    def seconds(tasks: int) -> float:
        begin = time.perf_counter()
        context._jsc.sc().range(0, tasks, 1, tasks).count()
        return time.perf_counter() - begin

    for tasks in _TASKS * 3:
        seconds(tasks)
    few, many = (min(seconds(tasks) for _ in range(5)) for tasks in _TASKS)
    return (many - few) / (_TASKS[1] - _TASKS[0])


def _messages(spark: SparkSession, name: str) -> tuple[float, float, float]:
    """The work of nsqd, the receiver and Spark for a message, in one run that is as fast as it can be."""
    with _reading(spark, name) as (broker, first):
        before = _work(broker)
        left = _wait_until_read(broker)
        after = _work(broker)
    done = first - left
    nsqd, receiver, rest = (after[part] - before[part] for part in ("nsqd", "receiver", "spark"))
    return nsqd / done, receiver / done, rest / done


def rate_on_executors(name: str) -> float:
    """Messages a second with two executors of one core each and their receiver, all on this machine with nsqd."""
    spark = start_spark("scaling", {"spark.executor.memory": "1g"}, f"local-cluster[{EXECUTORS},1,1024]")
    with _reading(spark, name, receivers="executors", numPartitions=EXECUTORS) as (broker, first):
        begin = time.perf_counter()
        left = _wait_until_read(broker)
        seconds = time.perf_counter() - begin
    spark.stop()
    return (first - left) / seconds


@contextmanager
def _reading(spark: SparkSession, name: str, **options: Any) -> Iterator[tuple[Nsqd, int]]:
    """A query that reads as fast as it can from an nsqd, and has begun; how many messages are left then."""
    broker = Nsqd(name, 2 * _MESSAGES)
    try:
        broker.reset("bench")
        broker.post("/channel/create?topic=bench&channel=spark")
        broker.fill("bench", _MESSAGES, _SIZE)
        reader = spark.readStream.format("nsq").option("topic", "bench").option("channel", "spark")
        reader = reader.option("nsqdTcpAddresses", broker.tcp).option("nsqdHttpAddresses", broker.http)
        reader = reader.option("maxInFlight", IN_FLIGHT_MAX).option("maxInFlightBytes", "2g").options(**options)
        writer = reader.load().writeStream.format("noop")
        query = writer.option("checkpointLocation", str(broker.folder / "checkpoint")).start()
        while (first := broker.unfinished("bench")) == _MESSAGES:
            time.sleep(0.05)
        yield broker, first
        query.stop()
    finally:
        broker.close()


def _wait_until_read(broker: Nsqd) -> int:
    """How many are left when most have been read: the last batches are small."""
    while (left := broker.unfinished("bench")) > _MESSAGES // 10:
        time.sleep(0.05)
    return left


def _work(broker: Nsqd) -> dict[str, float]:
    """The seconds that each part has worked."""
    work = {"nsqd": 0.0, "receiver": 0.0, "spark": 0.0}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            words = " ".join(process.cmdline())
            part = "nsqd" if f"-data-path={broker.folder}" in words else "spark"
            part = "receiver" if "connector.receiver" in words else part
            work[part] += _seconds(process)
    return work


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _lane() -> float:
    """What planning a batch costs for each lane: where it ends, and its partitions."""
    texts = {"topic": "t", "channel": "c", "nsqdTcpAddresses": "127.0.0.1:1", "numPartitions": str(_LANES)}
    coordinator = Coordinator(parse_source_options(texts | {"receivers": "64"}), available_now=False)
    lanes = [_Lane() for _ in range(_LANES)]
    coordinator._receivers = lanes
    rounds = 20
    begin = time.process_time()
    for _ in range(rounds):
        end = coordinator.latest(START, 10**9)
        coordinator.partitions(START, end)
    return (time.process_time() - begin) / rounds / _LANES


class _Lane:
    incarnation = 0
    address = "127.0.0.1:1"
    status = pb.Status(end=1000)
    past: tuple[pb.Status, ...] = ()
    failure = None


def _status(broker: str) -> float:
    """What a receiver's sign of life costs the driver, of which it gets several a lease."""
    nsqd = Nsqd(broker, _MESSAGES)
    host, _, port = nsqd.tcp.rpartition(":")
    sources = [Source(f"bench-{number}", Address(host, int(port))) for number in range(_SOURCES)]
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder) / "token"
        token.write_text("0123456789abcdef")
        command = [sys.executable, "-m", "pyspark_nsq.connector.nsq_receiver", "--listen", "127.0.0.1:0"]
        command += ["--token-file", str(token)]
        processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(_RECEIVERS)]
        try:
            addresses = ",".join(map(_listening, processes))
            return _status_of(addresses, str(token), sources)
        finally:
            for process in processes:
                process.terminate()
                process.communicate()
            nsqd.close()


def _listening(process: "subprocess.Popen[str]") -> str:
    assert process.stderr
    for line in process.stderr:
        if "listening on" in line:
            return line.rsplit(maxsplit=1)[1]
    raise SystemExit("nsq-receiver did not start")


def _status_of(addresses: str, token: str, sources: list[Source]) -> float:
    texts = {"topic": "t", "channel": "c", "nsqdTcpAddresses": "127.0.0.1:1", "receivers": addresses}
    options = replace(parse_source_options(texts | {"receiverTokenFile": token}).receivers, lease_s=_LEASE_S)
    limits = Limits("c", 0, 2**20, 2**20, None, None, 0.1, 1.0)
    heard: queue.SimpleQueue[None] = queue.SimpleQueue()
    query = Beginning("s", "t" * 64, 0, limits, ConnectionSettings(), 0.5, _LEASE_S)
    fleet = Fleet(options, query, 1000, lambda: heard.put(None), _nothing, _nothing)
    fleet.start("")
    while len(fleet.live) < _RECEIVERS:
        time.sleep(0.01)
    for receiver in fleet.receivers:
        receiver.assign(sources, sources, [])
    while any(_connections(receiver.status) < _SOURCES for receiver in fleet.receivers):
        time.sleep(0.01)
    begin, before = time.process_time(), heard.qsize()
    time.sleep(5)
    seconds, statuses = time.process_time() - begin, heard.qsize() - before
    fleet.begin_stop()
    fleet.end_stop()
    return seconds / statuses


def _connections(status: pb.Status | None) -> int:
    return sum(source.connections for source in status.sources) if status else 0


def _nothing() -> None:
    pass


def load(path: str) -> Costs:
    return Costs(**json.loads(Path(path).read_text()))
