"""Nsqds that lie, each beside an honest one: what comes from the honest one is neither lost, nor late, nor doubled.

The query lives on, in the processes that it had, in bounded memory.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from faults.cluster import Cluster
from faults.crash import shared_driver
from faults.driver import LOCAL, Driver
from faults.lying_nsqd import SINK_LIES, SOURCE_LIES, Lie, ScriptedNsqd
from faults.queries import NSQ, TABLE
from faults.report import Row
from faults.scenario import Context, Scenario
from faults.subject import Subject, check_gone, finish_all

COUNT = 200
# The lie goes on for so long while messages come from the honest nsqd.
LIE_S = 6.0
MEMORY_MAX = 400 * 2**20
IN_FLIGHT_BYTES = "16m"


def run_source_lies(context: Context, lies: Sequence[Lie]) -> list[Row]:
    driver = shared_driver(context, LOCAL)
    liars = [ScriptedNsqd((lie.script,)) for lie in lies]
    began = time.monotonic()
    with Cluster(context.impl, context.folder, nsqds=1) as cluster:
        subjects = []
        for number, liar in enumerate(liars):
            options = {"nsqdTcpAddresses": str(liar.address), "maxInFlightBytes": IN_FLIGHT_BYTES}
            subject = Subject(context.folder / f"query-{number}", cluster, TABLE, heartbeatInterval="1s", **options)
            subjects.append(subject)
            driver.start(subject.order)
            subject.publish(COUNT)
        for subject, liar in zip(subjects, liars, strict=True):
            subject.wait(lambda liar=liar: liar.connection_count, "its liar", driver)  # type: ignore[misc]
        watched = {subject.order.name: Watched(driver, subject) for subject in subjects}
        deadline = time.monotonic() + LIE_S
        while time.monotonic() < deadline:
            for each in watched.values():
                each.look()
            time.sleep(0.1)
        for subject in subjects:
            subject.publish(COUNT)
        finish_all(driver, subjects)
        rows = [
            to_row(f"liar: {lie.name}", "source", subject, watched) for lie, subject in zip(lies, subjects, strict=True)
        ]
        left = check_gone(driver, cluster, subjects)
    for liar in liars:
        liar.close()
    seconds = (time.monotonic() - began) / len(rows)
    return [replace(row, failure=row.failure or left, seconds=seconds) for row in rows]


class Watched:
    """The processes of a query, which shall stay as they are, and stay small."""

    def __init__(self, driver: Driver, subject: Subject) -> None:
        planner, receivers = driver.planner(subject.order), driver.receivers(subject.order)
        self._processes = [*([planner] if planner else []), *receivers]
        self.memory_max = 0
        assert len(self._processes) == 2, "a planner and a receiver"

    def look(self) -> None:
        for process in self._processes:
            if process.is_running():
                self.memory_max = max(self.memory_max, process.memory_info().rss)

    def complaint(self) -> str:
        if not all(process.is_running() for process in self._processes):
            return "a process of the query has died"
        if self.memory_max > MEMORY_MAX:
            return f"a process has grown to {self.memory_max >> 20} MiB"
        return ""


def to_row(fault: str, victim: str, subject: Subject, watched: dict[str, Watched]) -> Row:
    failure = "" if "never published" in subject.failure else subject.failure
    if subject.restarts:
        failure = failure or f"the query failed {subject.restarts} times"
    if complaint := watched[subject.order.name].complaint():
        failure = failure or complaint
    counts = (1, len(subject.published), subject.lost(), subject.duplicated())
    return Row(fault, victim, subject.cluster.impl.name, *counts, False, 0, 0, f"lies:{victim}:{fault[6:]}", failure)


def run_sink_lies(context: Context, lies: Sequence[Lie]) -> list[Row]:
    driver = shared_driver(context, LOCAL)
    lies = [lie.anew() for lie in lies]
    liars = [ScriptedNsqd((lie.script,)) for lie in lies]
    began = time.monotonic()
    with Cluster(context.impl, context.folder, nsqds=1) as cluster:
        subjects = []
        for number, (lie, liar) in enumerate(zip(lies, liars, strict=True)):
            subject = Subject(context.folder / f"query-{number}", cluster, NSQ)
            subject.taken = lie.taken
            subject.order.sink_options["nsqdTcpAddresses"] += f",{liar.address}"
            subjects.append(subject)
            driver.start(subject.order)
            subject.publish(COUNT)
        for subject in subjects:
            subject.wait(lambda subject=subject: subject.has_commit(0), "a first batch", driver)  # type: ignore[misc]
            subject.publish(COUNT)
        watched = {subject.order.name: Watched(driver, subject) for subject in subjects}
        finish_all(driver, subjects)
        rows = [
            to_row(f"liar: {lie.name}", "sink", subject, watched) for lie, subject in zip(lies, subjects, strict=True)
        ]
        left = check_gone(driver, cluster, subjects)
    for liar in liars:
        liar.close()
    seconds = (time.monotonic() - began) / len(rows)
    return [replace(row, failure=row.failure or left, seconds=seconds, duplicates_allowed=True) for row in rows]


SCENARIOS = [
    Scenario("lies:source:1", lambda context: run_source_lies(context, SOURCE_LIES[:8]), "liars", "source"),
    Scenario("lies:source:2", lambda context: run_source_lies(context, SOURCE_LIES[8:]), "liars", "source"),
    Scenario("lies:sink", lambda context: run_sink_lies(context, SINK_LIES), "liars", "sink"),
]


def named(name: str) -> Scenario | None:
    """A single lie by the name that its row bears."""
    _, _, rest = name.partition("lies:")
    victim, _, wanted = rest.partition(":")
    source = [lie for lie in SOURCE_LIES if lie.name == wanted and victim == "source"]
    sink = [lie for lie in SINK_LIES if lie.name == wanted and victim == "sink"]
    if source:
        return Scenario(name, lambda context: run_source_lies(context, source), "liars", victim)
    if sink:
        return Scenario(name, lambda context: run_sink_lies(context, sink), "liars", victim)
    return None
