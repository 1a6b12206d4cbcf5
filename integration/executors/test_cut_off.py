"""A host that is cut off for longer than the lease: its receiver ends there, the others go on, nothing is lost."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql.datasource import InputPartition
from rig import network
from rig.books import Books
from rig.cluster import Cluster, Driver, python_workers, receivers, wait_nothing_left
from rig.daemons import Implementation, Nsqd, wait_until
from rig.network import CutHost
from rig.processes import is_alive

from pyspark_nsq.connector.coordinator import Coordinator
from pyspark_nsq.connector.offsets import START, Offset
from pyspark_nsq.connector.options import parse_source_options
from pyspark_nsq.connector.rows import RangePartition, fetch

COUNT = 500
# What a task does that has nothing to read, within an executor that lives until it is killed.
TASK = """
import pickle, sys
from pyspark_nsq.connector.executors import start_here
start_here(pickle.load(sys.stdin.buffer).way)
"""
# Spark's own patience with executors, where its default of minutes would be the test's.
IMPATIENT = {
    "spark.network.timeout": "12s",
    "spark.network.timeoutInterval": "4s",
    "spark.executor.heartbeatInterval": "3s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "12s",
    "spark.task.maxFailures": "20",
}


@pytest.fixture
def host() -> Iterator[CutHost]:
    if reason := network.why_not():
        pytest.skip(reason)
    made = CutHost()
    yield made
    made.remove()


@pytest.fixture
def nsqds(makes: list[Implementation], host: CutHost, tmp_path: Path) -> Iterator[list[Nsqd]]:
    class Reachable(Nsqd):
        host = ""

    Reachable.host = host.near
    started: list[Nsqd] = []
    for make in makes:
        flags = ["-msg-timeout=4s", "-max-msg-timeout=10m"]
        started.append(Reachable(make, tmp_path / f"nsqd-{make.name}", flags=flags))
    yield started
    for nsqd in started:
        nsqd.stop()


@pytest.fixture
def cluster(host: CutHost, tmp_path: Path) -> Iterator[Cluster]:
    """A worker beside the driver, and one that can be cut off."""
    started = Cluster(tmp_path / "cluster", host.near, {host.near: (), host.far: host.prefix})
    yield started
    started.kill()
    for receiver in receivers(started.folder):
        receiver.kill()


@pytest.fixture
def driver(cluster: Cluster, host: CutHost, tmp_path: Path) -> Iterator[Driver]:
    started = Driver(cluster.url, tmp_path / "driver", IMPATIENT, host.near)
    yield started
    started.kill()


class Executor:
    """What Python finds above it on an executor's host, as far as receivers need it."""

    def __init__(self, host: CutHost, folder: Path, task: InputPartition) -> None:
        shell = f'"{sys.executable}" -c "$TASK"; exec sleep 1000'
        variables = os.environ | {"TMPDIR": str(folder), "TASK": TASK}
        self.process = subprocess.Popen([*host.prefix, "sh", "-c", shell], stdin=subprocess.PIPE, env=variables)
        assert self.process.stdin
        self.process.stdin.write(pickle.dumps(task))
        self.process.stdin.close()


def test_a_receiver_that_is_cut_off_ends_and_is_given_up(
    host: CutHost, nsqds: list[Nsqd], topic: str, tmp_path: Path
) -> None:
    """Without Spark: a coordinator here, and what its tasks do there."""
    books = Books(nsqds, topic)
    books.publish(COUNT)
    total = COUNT * len(nsqds)
    options = {**books.options, "receivers": "executors", "receiverHost": host.near, "heartbeatInterval": "1s"}
    coordinator = Coordinator(parse_source_options(options), available_now=False)
    coordinator.start()
    first = coordinator.latest(START, total)
    executor = Executor(host, tmp_path, coordinator.partitions(START, first)[0])
    try:
        books.wait_in_flight(total)
        end = wait_until(lambda: _end_of(coordinator, first, total), "all messages in a batch")
        tasks = [task for task in coordinator.partitions(first, end) if isinstance(task, RangePartition)]
        assert sum(piece.rows.message_count for task in tasks for piece in fetch(task, ["id"])) == total
        (receiver,) = receivers(tmp_path)
        host.cut()
        wait_until(lambda: not is_alive(receiver), "the receiver's end", 30)
        wait_nothing_left(tmp_path)
        # Tasks that ask for the range now, or planned it before, get nothing.
        assert [list(fetch(task, ["id"])) for task in tasks] == [[]] * len(tasks)
        assert coordinator._look().lost == total
        books.wait_all_back(total)
    finally:
        coordinator.stop()
        executor.process.kill()
        executor.process.wait()


def _end_of(coordinator: Coordinator, start: Offset, count: int) -> Offset | None:
    end = coordinator.latest(start, count)
    return end if sum(end.ends) % 2**40 == count else None


def test_a_host_that_is_cut_off(
    driver: Driver, cluster: Cluster, host: CutHost, nsqds: list[Nsqd], topic: str, tls: dict[str, str]
) -> None:
    books = Books(nsqds, topic)
    options = {**books.options, **tls, "receiverHost": host.near, "heartbeatInterval": "1s"}
    query = driver.start("query", receivers="executors", **options)
    far = cluster.workers[host.far].temporary

    def both() -> list[psutil.Process]:
        query.wait_for(books.publish(20))
        return receivers(far) if len(receivers(cluster.folder)) == 2 else []

    (receiver,) = wait_until(both, "a receiver on each host")
    # Neither sees the other's memory: what one has received the other one's tasks get by TCP, under TLS.
    assert os.readlink(f"/proc/{receiver.pid}/ns/pid") != os.readlink("/proc/self/ns/pid")

    def read_there() -> bool:
        query.wait_for(books.publish(20))
        workers = python_workers(cluster.workers[host.near].temporary)
        connections = [each for worker in workers for each in worker.net_connections("tcp")]
        # gRPC's have addresses such as ::ffff:10.0.0.1.
        return any(each.raddr and each.raddr.ip.endswith(host.far) for each in connections)

    wait_until(read_there, "tasks that read from the other host's receiver")
    host.cut()
    # Half of them may be on their way to nobody.
    books.publish(COUNT)
    wait_until(lambda: not is_alive(receiver), "the end of the receiver that was cut off", 30)
    query.wait_for(books.published)
    books.wait_settled()
    host.mend()
    query.wait_for(books.publish(COUNT))
    books.wait_settled()
    query.stop()
    wait_nothing_left(cluster.folder)
