"""Receivers on a standalone cluster of two hosts: who dies, and what becomes of processes, files and messages."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from rig.books import Books
from rig.cluster import Cluster, Driver, Query, executors, receivers, wait_nothing_left
from rig.daemons import Nsqd, wait_until
from rig.feeding import feed_until, start, two_receivers
from rig.ports import free_ports
from rig.receivers import NsqReceiver

COUNT = 1000
# So many messages in flight, where more of them wait.
BUDGET = 100
TOKEN = re.compile(r"[0-9a-f]{64}")


def hang_with(books: Books, query: Query) -> int:
    """Have a batch that does not end; how many messages the receivers hold."""
    query.gate.touch()
    books.publish(COUNT)
    books.wait_in_flight(COUNT * len(books.nsqds))
    return COUNT * len(books.nsqds)


def test_each_host_receives_under_tls_and_tells_no_token(
    driver: Driver, cluster: Cluster, books: Books, tls: dict[str, str]
) -> None:
    books.publish(COUNT)
    query = start(driver, books, **tls)
    bodies = query.wait_for(books.published)
    feed_until(books, query, lambda: two_receivers(cluster), "two receivers")
    # Both sources are read, by both receivers.
    feed_until(books, query, lambda: len(query.state()["report"]["ends"]) == 2, "two lanes")
    feed_until(books, query, lambda: all(count(query)), "messages of both receivers")
    query.wait_for(books.published)
    books.wait_settled()
    bodies = query.bodies()
    shown = "\n".join(" ".join([*each.cmdline(), *each.environ().values()]) for each in receivers(cluster.folder))
    query.stop()
    assert bodies == books.published
    files = [*query.checkpoint.rglob("*"), *cluster.folder.rglob("*"), driver.log]
    shown += "\n".join(path.read_text(errors="replace") for path in files if path.is_file() and path.suffix != ".jar")
    assert "SparkListenerApplicationStart" in shown
    assert not TOKEN.search(shown)
    wait_nothing_left(cluster.folder)
    assert [nsqd.connections() for nsqd in books.nsqds] == [0] * len(books.nsqds)


def count(query: Query) -> list[int]:
    """How many messages each lane has given."""
    return [end % 2**40 for end in query.state()["report"]["ends"]]


def test_a_killed_receiver_is_replaced_at_its_port(driver: Driver, cluster: Cluster, books: Books) -> None:
    # One for the driver's side, and one for each receiver.
    ports = free_ports(3)
    # On each nsqd as much as the query may have in flight of both.
    budget: dict[str, Any] = {"count": BUDGET, "in_flight_max": BUDGET}
    # Its successor comes long before its lease is over.
    options = {"receiverPorts": f"{ports[0]}-{ports[-1]}", "receiverLease": "20s"}
    query = start(driver, books, maxInFlight=BUDGET, **options)
    victim = feed_until(books, query, lambda: two_receivers(cluster), "two receivers", **budget)[0]
    victim.kill()

    def replaced() -> list[psutil.Process]:
        found = two_receivers(cluster)
        return [] if victim in found else found

    found = feed_until(books, query, replaced, "another receiver", **budget)
    feed_until(books, query, lambda: of_a_successor(query), "messages of that receiver", **budget)
    assert two_receivers(cluster) == found, "nobody has called it, and it has ended"
    books.wait_settled()
    query.stop()


def of_a_successor(query: Query) -> bool:
    """Whether a lane has given messages that are not its first receiver's."""
    return any(end > 2**40 and end % 2**40 for end in query.state()["report"]["ends"])


def test_available_now_ends_with_all_that_was_there(driver: Driver, cluster: Cluster, books: Books) -> None:
    there = books.publish(COUNT)
    query = start(driver, books, available_now=True)
    query.wait_ended()
    assert query.bodies() == there
    books.wait_settled()
    wait_nothing_left(cluster.folder)


def test_a_killed_executor_takes_its_receiver_along_and_the_next_one_brings_another(
    driver: Driver, cluster: Cluster, books: Books
) -> None:
    query = start(driver, books)
    query.wait_for(books.publish(COUNT))
    feed_until(books, query, lambda: two_receivers(cluster), "two receivers")
    worker = next(iter(cluster.workers.values()))
    (receiver,) = receivers(worker.temporary)
    for executor in executors(worker.temporary):
        executor.kill()
    books.publish(COUNT)
    wait_until(lambda: not receiver.is_running(), "the end of the executor's receiver", 30)
    query.wait_for(books.published)
    feed_until(books, query, lambda: two_receivers(cluster), "a receiver for the worker's next executor")
    books.wait_settled()
    query.stop()


def test_a_stop_in_the_middle_of_a_batch_gives_everything_back(driver: Driver, cluster: Cluster, books: Books) -> None:
    query = start(driver, books)
    query.wait_for(books.publish(10))
    count = hang_with(books, query)
    query.stop()
    wait_nothing_left(cluster.folder)
    books.wait_all_back(count)
    # The same query goes on where it was.
    query.gate.unlink()
    again = start(driver, books)
    again.wait_for(books.published)
    books.wait_settled()
    again.stop()


@pytest.fixture
def operated(tls: dict[str, str], tmp_path: Path) -> Iterator[list[NsqReceiver]]:
    """Two nsq-receivers with the same token."""
    flags = ["--tls-cert", tls["receiverTlsCertFile"], "--tls-key", tls["receiverTlsKeyFile"]]
    with ExitStack() as ending:
        started = [NsqReceiver(tmp_path / name, flags) for name in "ab"]
        for each in started:
            ending.callback(each.kill)
        yield started


def test_receivers_of_an_operator_serve_several_queries(
    driver: Driver,
    nsqds: list[Nsqd],
    topic: str,
    tls: dict[str, str],
    tmp_path: Path,
    operated: list[NsqReceiver],
) -> None:
    addresses = ",".join(each.address for each in operated)
    both = [Books(nsqds, topic), Books(nsqds, f"{topic}-b")]
    options = {"receivers": addresses, "receiverTokenFile": str(operated[0].token_file), **tls}
    queries = [driver.start(books.topic, **books.options, **options) for books in both]
    for books, query in zip(both, queries, strict=True):
        query.wait_for(books.publish(COUNT))
        books.wait_settled()
    assert len(list(tmp_path.glob("*/nsq-receiver-*"))) == 2
    operated[0].kill()
    operated[0].restart()
    for books, query in zip(both, queries, strict=True):
        query.wait_for(books.publish(COUNT))
        books.wait_settled()
    counts = [hang_with(books, query) for books, query in zip(both, queries, strict=True)]
    # Their operator wants them to go.
    for each in operated:
        each.stop()
    for books, count in zip(both, counts, strict=True):
        books.wait_all_back(count)
    for query in queries:
        query.stop()
    assert not list(tmp_path.glob("*/nsq-receiver-*"))


def test_a_killed_driver_leaves_nothing(driver: Driver, cluster: Cluster, books: Books) -> None:
    query = start(driver, books)
    query.wait_for(books.publish(10))
    count = hang_with(books, query)
    driver.kill()
    wait_nothing_left(cluster.folder)
    books.wait_all_back(count)


def test_a_killed_cluster_leaves_nothing(driver: Driver, cluster: Cluster, books: Books) -> None:
    query = start(driver, books)
    query.wait_for(books.publish(10))
    count = hang_with(books, query)
    cluster.kill()
    wait_nothing_left(cluster.folder)
    books.wait_all_back(count)
    driver.kill()
