"""local-cluster[3,1,1024]: three executors on one host, which share a receiver."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.books import Books
from rig.cluster import Driver, executors, receivers, wait_nothing_left
from rig.daemons import Nsqd, wait_until

COUNT = 1000


@pytest.fixture
def driver() -> Iterator[Driver]:
    # Short enough for the path of a socket, which pytest's own is not.
    with tempfile.TemporaryDirectory(prefix="nsq-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        # Where such a cluster keeps its executors' files cannot be chosen, but for their home.
        started = Driver("local-cluster[3,1,1024]", home / "driver", {}, home=home)
        yield started
        started.kill()
        for receiver in receivers(started.folder):
            receiver.kill()


def test_three_executors_share_a_receiver_and_outlive_one_of_them(
    driver: Driver, nsqds: list[Nsqd], topic: str
) -> None:
    books = Books(nsqds, topic)
    query = driver.start("query", **books.options, receivers="executors", numPartitions=6)
    query.wait_for(books.publish(COUNT))
    (receiver,) = receivers(driver.folder)

    def all_three() -> bool:
        query.wait_for(books.publish(20))
        return len(list(driver.temporary.glob("pyspark-nsq-*/executor-*"))) >= 3

    wait_until(all_three, "tasks on three executors")
    # Which listens at it, and has a connection at least for each task that reads.
    assert len([each for each in receiver.net_connections("unix") if each.laddr.endswith(".sock")]) > 1
    executors(driver.folder)[0].kill()
    query.wait_for(books.publish(COUNT))
    assert receivers(driver.folder) == [receiver]
    books.wait_settled()
    assert query.bodies() == books.published
    query.gate.touch()
    books.publish(COUNT)
    books.wait_in_flight(COUNT * len(nsqds))
    driver.kill()
    wait_nothing_left(driver.folder)
    books.wait_all_back(COUNT * len(nsqds))
