"""A query under test with its topic, what was published to it and what came of that."""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from rig.patience import TOO_SLOW
from rig.processes import command_of

from faults.cluster import Cluster
from faults.driver import Driver, DriverError
from faults.queries import FILES, NSQ, TABLE, TWICE_NOTE, Order
from faults.sinks import Outcome
from faults.watch import FolderWatch

# Far more than it takes where the machine has nothing else to do.
WAIT_S = 240.0
# What ends by itself does so within seconds, where the machine has nothing else to do.
GONE_S = 60.0
_LOOK_S = 0.05
# Bodies are what most of the bytes are, wherever they pass.
_PADDING = b"." * 100


class Subject:
    def __init__(self, folder: Path, cluster: Cluster, sink: str, **options: str) -> None:
        folder.mkdir(parents=True)
        self.topic = folder.name
        self.cluster = cluster
        self.published: list[bytes] = []
        self.failure = ""
        # Why its query had to be started again.
        self.failures: list[str] = []
        # What somebody has taken and thrown away, which cannot be expected.
        self.taken: set[bytes] = set()
        place = {FILES: str(folder / "files"), TABLE: str(folder / "table.db"), NSQ: f"out-{folder.name}"}[sink]
        source = {**cluster.source_options, "topic": self.topic, **options}
        self.order = Order(folder.name, str(folder), sink, place, source, cluster.sink_options)
        self.outcome = Outcome(self.order, cluster)
        self._checkpoint = folder / "checkpoint"
        cluster.make_topic(self.topic)

    @property
    def complaint(self) -> str:
        """What is wrong so far, where the query should have lived on."""
        if self.failure or not self.failures:
            return self.failure
        return f"the query failed {len(self.failures)} times, at last with: {self.failures[-1]}"

    @property
    def state(self) -> str:
        """How far it has come, for whoever asks why it came no further."""
        begun, committed = self.last("offsets") + 1, self.last("commits") + 1
        unfinished = self.cluster.unfinished(self.topic)
        batches = f"{begun} batches were begun and {committed} committed"
        return f"{self.lost()} have not come, {unfinished} are unfinished, {batches}"

    def publish(self, count: int) -> None:
        self.cluster.publish(self.topic, self.number(count))

    def number(self, count: int) -> list[bytes]:
        """The next bodies, which are expected from now on."""
        first = len(self.published)
        bodies = [b"%b %d %b" % (self.topic.encode(), number, _PADDING) for number in range(first, first + count)]
        self.published += bodies
        return bodies

    def last(self, log: str) -> int:
        """The last batch in Spark's log of offsets or commits, -1 where there is none."""
        return max((int(path.name) for path in (self._checkpoint / log).glob("[0-9]*")), default=-1)

    def has_commit(self, batch: int) -> bool:
        return (self._checkpoint / "commits" / str(batch)).exists()

    def watch_file_log(self) -> contextlib.closing[FolderWatch]:
        return contextlib.closing(FolderWatch(Path(self.order.place) / "_spark_metadata"))

    def wait(self, look: Callable[[], Any], what: str, driver: Driver) -> None:
        """Until it has come so far; an error if the query fails before."""
        deadline = time.monotonic() + WAIT_S
        while not look():
            failure = driver.failures().get(self.order.name, "")
            if TOO_SLOW in failure:
                driver.start(self.order)
            else:
                assert not failure, f"{self.order.name} failed on its way to {what}: {failure}"
            assert time.monotonic() < deadline, f"{self.order.name} never came to {what}, see {driver.log}"
            time.sleep(_LOOK_S)

    # The account.

    def lost(self) -> int:
        return len(set(self.published) - self.outcome.bodies.keys() - self.taken)

    def duplicated(self) -> int:
        return sum(max(0, self.outcome.bodies[body] - 1) for body in self.published)

    def foreign(self) -> int:
        """How many bodies nobody has published here: others' messages, or broken ones."""
        return len(self.outcome.bodies.keys() - set(self.published))

    def is_complete(self) -> bool:
        """Whether all has come, and the nsqds owe nothing."""
        if self.cluster.unfinished(self.topic):
            return False
        self.outcome.look()
        return not self.lost()


def finish_all(driver: Driver, subjects: Sequence[Subject], timeout_s: float = WAIT_S) -> None:
    """Until each has all, starting queries again that have failed. What has not come by then is lost."""
    deadline = time.monotonic() + timeout_s
    waiting = list(subjects)
    while waiting and time.monotonic() < deadline:
        failures = driver.failures()
        for subject in waiting:
            if failure := failures.get(subject.order.name, "it was never started"):
                if TOO_SLOW not in failure:
                    subject.failures.append(_gist(failure))
                driver.start(subject.order)
        waiting = [subject for subject in waiting if not subject.is_complete()]
        time.sleep(_LOOK_S)
    for subject in subjects:
        if subject not in waiting and subject.foreign():
            subject.failure = f"{subject.foreign()} bodies came that were never published"
        if twice := subject.order.gates.noted(TWICE_NOTE):
            subject.failure = twice
    for subject in waiting:
        subject.failure = "; ".join(filter(None, (f"after {timeout_s:g} s {subject.state}", subject.complaint)))


def _gist(failure: str) -> str:
    """The line of Spark's many that says what happened: the last one before what it tells of the query."""
    lines = [line for line in failure.partition("=== Streaming Query ===")[0].splitlines() if line.strip()]
    return lines[-1][:300] if lines else failure


def check_gone(driver: Driver, cluster: Cluster, subjects: Sequence[Subject]) -> str:
    """Stop the queries, and say what they leave behind: processes, connections."""
    found = [(driver.planner(subject.order), *driver.receivers(subject.order)) for subject in subjects]
    processes = [process for each in found for process in each if process]
    for subject in subjects:
        with contextlib.suppress(DriverError):
            driver.stop(subject.order.name)
    _, alive = psutil.wait_procs(processes, timeout=GONE_S)
    if left := [command for process in alive if (command := command_of(process))]:
        return f"left behind: {left}"
    deadline = time.monotonic() + GONE_S
    while count := sum(nsqd.connections() for nsqd in cluster.nsqds):
        if time.monotonic() > deadline:
            return f"{count} connections were left open"
        time.sleep(_LOOK_S)
    return ""
