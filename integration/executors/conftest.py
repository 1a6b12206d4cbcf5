"""Brokers of both makes, a standalone cluster, and a driver on it: they take long to start, so tests share them."""

from collections.abc import Callable, Iterator

import pytest
import trustme
from rig.books import Books
from rig.cluster import Cluster, Driver, receivers, wait_nothing_left
from rig.daemons import Implementation, Nsqd

# Two hosts: each has its own address and its own temporary files.
WORKERS = ("127.0.0.2", "127.0.0.3")

StartDriver = Callable[[], Driver]


@pytest.fixture(scope="module")
def nsqds(makes: list[Implementation], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Nsqd]]:
    """One of each make; what died with a receiver comes again soon."""
    started = [
        Nsqd(make, tmp_path_factory.mktemp(f"nsqd-{make.name}"), flags=["-msg-timeout=4s", "-max-msg-timeout=10m"])
        for make in makes
    ]
    yield started
    for nsqd in started:
        nsqd.stop()


@pytest.fixture
def books(nsqds: list[Nsqd], topic: str) -> Books:
    return Books(nsqds, topic)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Too long for the path of a socket, which on one machine other hosts could open, too.
    folder = tmp_path_factory.mktemp("cluster-whose-hosts-reach-each-other-by-network-only")
    started = Cluster(folder, "127.0.0.1", dict.fromkeys(WORKERS, ()))
    yield started
    started.kill()
    # Whatever a failed test has left.
    for receiver in receivers(started.folder):
        receiver.kill()


@pytest.fixture(scope="module")
def start_driver(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartDriver]:
    """The driver that runs, or a new one."""
    started: list[Driver] = []

    def start() -> Driver:
        if not started or started[-1].process.poll() is not None:
            folder = tmp_path_factory.mktemp("driver")
            events = {
                "spark.eventLog.enabled": "true",
                "spark.eventLog.compress": "false",
                "spark.eventLog.dir": f"file://{cluster.folder}",
            }
            started.append(Driver(cluster.url, folder, events))
        return started[-1]

    yield start
    for driver in started:
        driver.kill()


@pytest.fixture
def driver(start_driver: StartDriver, cluster: Cluster) -> Iterator[Driver]:
    found = start_driver()
    yield found
    if found.process.poll() is None:
        found.call("stop_all")
    wait_nothing_left(cluster.folder)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """TLS between receivers, driver and tasks."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    pair = authority.issue_cert("receivers.example.org")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    pair.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    pair.private_key_pem.write_to_path(folder / "key.pem")
    return {
        "receiverTls": "true",
        "receiverTlsCaFile": str(folder / "ca.pem"),
        "receiverTlsCertFile": str(folder / "cert.pem"),
        "receiverTlsKeyFile": str(folder / "key.pem"),
        "receiverTlsServerName": "receivers.example.org",
    }
