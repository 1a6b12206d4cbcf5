"""A host that is cut off for longer than the lease: its receiver ends there, the others go on, nothing is lost."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from rig import network
from rig.books import Books
from rig.cluster import Cluster, Driver, receivers, wait_nothing_left
from rig.daemons import Implementation, Nsqd, wait_until
from rig.network import CutHost

COUNT = 500
# Spark's own patience with executors, where its default of minutes would be the test's.
IMPATIENT = {
    "spark.network.timeout": "12s",
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


def test_a_host_that_is_cut_off(driver: Driver, cluster: Cluster, host: CutHost, nsqds: list[Nsqd], topic: str) -> None:
    books = Books(nsqds, topic)
    query = driver.start("query", **books.options, receivers="executors", receiverHost=host.near)
    far = cluster.workers[host.far].temporary

    def both() -> list[psutil.Process]:
        query.wait_for(books.publish(20))
        return receivers(far) if len(receivers(cluster.folder)) == 2 else []

    (receiver,) = wait_until(both, "a receiver on each host")
    host.cut()
    # Half of them may be on their way to nobody.
    books.publish(COUNT)
    wait_until(lambda: not receiver.is_running(), "the end of the receiver that was cut off", 30)
    query.wait_for(books.published)
    books.wait_settled()
    host.mend()
    query.wait_for(books.publish(COUNT))
    books.wait_settled()
    query.stop()
    wait_nothing_left(cluster.folder)
