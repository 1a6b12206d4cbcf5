"""A query whose receivers are on executors, and what has to be read there until all is as a test wants it."""

from collections.abc import Callable
from typing import Any

import psutil

from rig.books import Books
from rig.cluster import Cluster, Driver, Query, receivers
from rig.daemons import wait_until


def start(driver: Driver, books: Books, **options: Any) -> Query:
    return driver.start(books.topic, **books.options, receivers="executors", maxInFlight=20_000, **options)


def two_receivers(cluster: Cluster) -> list[psutil.Process]:
    """One on each host; nothing as long as there are others."""
    found = [receivers(worker.temporary) for worker in cluster.workers.values()]
    return [each for host in found for each in host] if all(len(host) == 1 for host in found) else []


def feed_until(books: Books, query: Query, look: Callable[[], Any], what: str) -> Any:
    """A host without a receiver gets one when tasks run there, for which there has to be something to read."""

    def fed() -> Any:
        query.wait_for(books.publish(20))
        return look()

    return wait_until(fed, what)
