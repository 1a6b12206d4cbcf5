"""Executors that leave in order: decommissioned ones, and those that dynamic allocation takes away and brings again."""

import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
from rig.books import Books
from rig.cluster import Cluster, Driver, Query, SparkProcess, executors, receivers, wait_nothing_left
from rig.daemons import wait_until
from rig.feeding import feed_until, start, two_receivers

COUNT = 1000
DECOMMISSION = {"spark.decommission.enabled": "true"}
DYNAMIC_ALLOCATION = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    # A batch of one task does not ask for a second.
    "spark.dynamicAllocation.initialExecutors": "2",
    # Time enough for both to get their receivers before the one that has no task is taken away.
    "spark.dynamicAllocation.executorIdleTimeout": "20s",
}


@contextmanager
def application(cluster: Cluster, folder: Path, settings: Mapping[str, str]) -> Iterator[Driver]:
    """It leaves nothing on the cluster, for the next one has to have all of it."""
    driver = Driver(cluster.url, folder, settings)
    try:
        yield driver
        driver.stop()
        wait_nothing_left(cluster.folder)
        wait_until(lambda: not cluster.applications, "the end of all that the application had on the cluster", 30)
    finally:
        driver.kill()


class Held(NamedTuple):
    """A query with two receivers, and a batch of one message that does not end, nor those after it."""

    query: Query
    receivers: list[psutil.Process]
    # Which has the task, and what that has read.
    worker: SparkProcess
    message: Counter[bytes]


def hold_a_task(driver: Driver, cluster: Cluster, books: Books) -> Held:
    query = start(driver, books, numPartitions=1)
    query.wait_for(books.publish(COUNT))
    both = feed_until(books, query, lambda: two_receivers(cluster), "two receivers")
    query.gate.touch()
    message = books.publish(1, books.nsqds[:1])

    def look() -> SparkProcess | None:
        return next((w for w in cluster.workers.values() if (w.temporary / query.gate.name).exists()), None)

    return Held(query, both, wait_until(look, "a task that is held"), message)


def is_decommissioned(worker: SparkProcess) -> bool:
    """Whether an executor of this worker has begun to leave."""
    return any("Decommission executor" in log.read_text() for log in worker.log.parent.rglob("stderr"))


def test_a_decommissioned_executor_ends_its_task_and_its_receiver_gives_back_what_it_holds(
    cluster: Cluster, books: Books, tmp_path: Path
) -> None:
    with application(cluster, tmp_path / "driver", DECOMMISSION) as driver:
        query, _, worker, held = hold_a_task(driver, cluster, books)
        waiting = books.publish(COUNT)
        books.wait_in_flight((waiting + held).total())
        (executor,) = executors(worker.temporary)
        (receiver,) = receivers(worker.temporary)
        executor.send_signal(signal.SIGPWR)
        wait_until(lambda: is_decommissioned(worker), "an executor that is about to leave")
        # Its task is not done, and may have to read from the receiver.
        assert executor.is_running()
        assert receiver.is_running()
        # This task ends; the next batch, of all that waits, does not.
        (worker.temporary / query.gate.name).unlink()
        wait_until(lambda: not executor.is_running(), "the end of the executor", 30)
        wait_until(lambda: not receiver.is_running(), "the end of its receiver", 30)
        books.wait_in_flight(waiting.total())
        query.gate.unlink()
        query.wait_for(books.published)
        feed_until(books, query, lambda: two_receivers(cluster), "a receiver for the worker's next executor")
        query.wait_for(books.publish(COUNT))
        books.wait_settled()
        # The batch may have read what the receiver then gave back.
        assert query.bodies() - books.published <= waiting
        query.stop()


def test_dynamic_allocation_takes_executors_with_their_receivers_and_brings_others(
    cluster: Cluster, books: Books, tmp_path: Path
) -> None:
    with application(cluster, tmp_path / "driver", DYNAMIC_ALLOCATION) as driver:
        query, both, worker, held = hold_a_task(driver, cluster, books)
        count = COUNT * len(books.nsqds) + held.total()
        books.publish(COUNT)
        books.wait_in_flight(count)
        # The other executor has nothing to do, whatever its receiver holds.
        (idle,) = [each for each in both if each not in receivers(worker.temporary)]
        wait_until(lambda: not idle.is_running(), "the end of the idle executor's receiver", 44)
        books.wait_in_flight(count)
        query.gate.unlink()
        query.wait_for(books.published)
        books.wait_settled()
        wait_until(lambda: not cluster.applications, "the end of all executors", 44)
        wait_nothing_left(cluster.folder)
        assert [nsqd.connections() for nsqd in books.nsqds] == [0] * len(books.nsqds)
        query.wait_for(books.publish(COUNT))
        books.wait_settled()
        # The batch had read that one message; its receiver may not have been left to finish it.
        assert query.bodies() - books.published <= held
        query.stop()
