"""A query whose receivers are on executors, and what has to be read there until all is as a test wants it."""

from collections.abc import Callable
from typing import Any

import psutil

from rig.books import Books
from rig.cluster import Cluster, Driver, Query, receivers
from rig.daemons import wait_until

# More than any test leaves unfinished.
IN_FLIGHT_MAX = 20_000


def start(driver: Driver, books: Books, **options: Any) -> Query:
    return driver.start(
        books.topic, **{**books.options, "receivers": "executors", "maxInFlight": IN_FLIGHT_MAX, **options}
    )


def two_receivers(cluster: Cluster) -> list[psutil.Process]:
    """One on each host; nothing as long as there are others."""
    found = [receivers(worker.temporary) for worker in cluster.workers.values()]
    return [each for host in found for each in host] if all(len(host) == 1 for host in found) else []


def feed_until(
    books: Books,
    query: Query,
    look: Callable[[], Any],
    what: str,
    count: int = 20,
    in_flight_max: int = IN_FLIGHT_MAX,
) -> Any:
    """A host without a receiver gets one when tasks run there, for which there has to be something to read.

    Whoever comes and goes meanwhile, together they never have more in flight than allowed.
    """

    def fed() -> Any:
        new = books.publish(count)

        def have_come() -> bool:
            # Nsqds are asked one after the other: what moves in between is seen at two of them, but not twice.
            assert min(books.held(), books.held()) <= in_flight_max
            return query.has(new)

        wait_until(have_come, f"{len(new)} different messages")
        return look()

    return wait_until(fed, what)
