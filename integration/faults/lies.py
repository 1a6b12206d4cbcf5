"""Nsqds that lie, each beside an honest one: what comes from the honest one is neither lost, nor late, nor doubled.

The query lives on, in the processes that it had, in bounded memory.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import replace

import psutil
from rig.processes import peak_memory_bytes

from faults.cluster import Cluster
from faults.crash import shared_driver
from faults.driver import LOCAL, Driver
from faults.lying_nsqd import MEMORY_MAX, SINK_LIES, SOURCE_LIES, Liar, Lie
from faults.network import REQUEST_TIMEOUT
from faults.queries import NSQ, TABLE
from faults.report import Row
from faults.scenario import Context, Scenario
from faults.subject import Subject, check_gone, finish_all

COUNT = 200
# The lie goes on for so long while messages come from the honest nsqd.
LIE_S = 6.0
_LOOK_S = 0.5
IN_FLIGHT_BYTES = "16m"


def run_source_lies(context: Context, lies: Sequence[Lie]) -> list[Row]:
    driver = shared_driver(context, LOCAL)
    workers = Workers(driver)
    liars = [Liar(lie) for lie in lies]
    began = time.monotonic()
    with Cluster(context.impl, context.folder, context.seed, nsqds=1) as cluster:
        subjects = []
        for number, liar in enumerate(liars):
            options = {"nsqdTcpAddresses": str(liar.address), "maxInFlightBytes": IN_FLIGHT_BYTES}
            # The sink wants text, and some liars send what is none.
            options |= {"heartbeatInterval": "1s", "invalidUtf8": "null"}
            subject = Subject(context.folder / f"query-{number}", cluster, TABLE, **options)
            subjects.append(subject)
            driver.start(subject.order)
            subject.publish(COUNT)
        for subject, liar in zip(subjects, liars, strict=True):
            subject.wait(lambda liar=liar: liar.has_told_all, "its liar's last word", driver)  # type: ignore[misc]
            subject.wait(lambda subject=subject: _processes(driver, subject), "its processes", driver)  # type: ignore[misc]
        watched = {subject.order.name: Watched(driver, subject) for subject in subjects}
        deadline = time.monotonic() + LIE_S
        for subject in subjects:
            subject.publish(COUNT)
        while time.monotonic() < deadline:
            workers.look()
            time.sleep(_LOOK_S)
        for subject in subjects:
            subject.publish(COUNT)
        finish_all(driver, subjects)
        rows = [
            to_row(lie, "source", subject, watched[subject.order.name], workers, liar)
            for lie, subject, liar in zip(lies, subjects, liars, strict=True)
        ]
        left = check_gone(driver, cluster, subjects)
    for liar in liars:
        liar.close()
    seconds = (time.monotonic() - began) / len(rows)
    return [replace(row, failure=row.failure or left, seconds=seconds) for row in rows]


def _processes(driver: Driver, subject: Subject) -> list[psutil.Process]:
    """A planner and a receiver; none where one of them is not there, as when Spark had no patience with its start."""
    planner, receivers = driver.planner(subject.order), driver.receivers(subject.order)
    return [planner, *receivers] if planner and receivers else []


class Workers:
    """The Python workers of all queries, which come and go."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._before = _peaks(driver.workers())
        self._peaks: dict[int, int] = {}

    def look(self) -> None:
        """Each has to be seen once before it ends. How large it was meanwhile it tells afterwards, too."""
        for pid, peak in _peaks(self._driver.workers()).items():
            self._peaks[pid] = max(peak, self._peaks.get(pid, 0))

    def complaint(self) -> str:
        self.look()
        if not self._peaks:
            return "no Python worker was looked at"
        # What one had grown to before is not the fault of these lies.
        largest = max((peak for pid, peak in self._peaks.items() if peak > self._before.get(pid, 0)), default=0)
        return f"a Python worker of all these queries has grown to {largest >> 20} MiB" if largest > MEMORY_MAX else ""


class Watched:
    """The processes of a query, which shall stay as they are, and stay small."""

    def __init__(self, driver: Driver, subject: Subject) -> None:
        self._processes = _processes(driver, subject)
        assert len(self._processes) == 2, "a planner and a receiver"

    def complaint(self, memory_max: int) -> str:
        peaks = _peaks(self._processes)
        if not all(process.is_running() for process in self._processes) or not all(peaks.values()):
            return "a process of the query has died"
        largest = max(peaks.values())
        return f"a process has grown to {largest >> 20} MiB" if largest > memory_max else ""


def _peaks(processes: Sequence[psutil.Process]) -> dict[int, int]:
    return {process.pid: peak_memory_bytes(process.pid) for process in processes}


def to_row(lie: Lie, victim: str, subject: Subject, watched: Watched, workers: Workers, liar: Liar) -> Row:
    if "never published" in subject.failure:
        # What a liar sends comes out as well. That the query failed, if it did, is another matter.
        subject.failure = ""
    failure = subject.complaint or watched.complaint(lie.memory_max) or workers.complaint() or liar.complaint
    counts = (1, len(subject.published), subject.lost(), subject.duplicated())
    name = f"lies:{victim}:{lie.name}"
    return Row(f"liar: {lie.name}", victim, subject.cluster.impl.name, *counts, False, 0, 0, name, failure)


def run_sink_lies(context: Context, lies: Sequence[Lie]) -> list[Row]:
    driver = shared_driver(context, LOCAL)
    workers = Workers(driver)
    lies = [lie.anew() for lie in lies]
    liars = [Liar(lie) for lie in lies]
    began = time.monotonic()
    with Cluster(context.impl, context.folder, context.seed, nsqds=1) as cluster:
        subjects = []
        for number, (lie, liar) in enumerate(zip(lies, liars, strict=True)):
            subject = Subject(context.folder / f"query-{number}", cluster, NSQ)
            subject.taken = lie.taken
            subject.order.sink_options["nsqdTcpAddresses"] += f",{liar.address}"
            subject.order.sink_options.update({"requestTimeout": REQUEST_TIMEOUT, **lie.options})
            subjects.append(subject)
            driver.start(subject.order)
            subject.publish(COUNT)
        for subject in subjects:
            subject.wait(lambda subject=subject: subject.has_commit(0), "a first batch", driver)  # type: ignore[misc]
        watched = {subject.order.name: Watched(driver, subject) for subject in subjects}
        for subject, liar in zip(subjects, liars, strict=True):
            subject.publish(COUNT)
            tell_all(subject, liar, workers, driver)
        finish_all(driver, subjects)
        rows = [
            to_row(lie, "sink", subject, watched[subject.order.name], workers, liar)
            for lie, subject, liar in zip(lies, subjects, liars, strict=True)
        ]
        left = check_gone(driver, cluster, subjects)
    for liar in liars:
        liar.close()
    seconds = (time.monotonic() - began) / len(rows)
    return [replace(row, failure=row.failure or left, seconds=seconds, duplicates_allowed=True) for row in rows]


def tell_all(subject: Subject, liar: Liar, workers: Workers, driver: Driver) -> None:
    """A sink hears the next form of a lie only while it has something to publish."""

    def look() -> bool:
        workers.look()
        if not liar.has_told_all:
            subject.publish(1)
        return liar.has_told_all

    subject.wait(look, "its liar's last word", driver)


_RUNS = {"source": (SOURCE_LIES, run_source_lies), "sink": (SINK_LIES, run_sink_lies)}


def scenario(victim: str, lies: Sequence[Lie], name: str = "") -> Scenario:
    name = name or f"lies:{victim}:{'+'.join(lie.name for lie in lies)}"
    return Scenario(name, lambda context: _RUNS[victim][1](context, lies), "liars", victim)


SCENARIOS = [
    scenario("source", SOURCE_LIES[:8], "lies:source:1"),
    scenario("source", SOURCE_LIES[8:], "lies:source:2"),
    scenario("sink", SINK_LIES[:8], "lies:sink:1"),
    scenario("sink", SINK_LIES[8:], "lies:sink:2"),
]


def named(name: str) -> Scenario | None:
    """Some lies by the name that their row bears, or the scenario that told them together."""
    if match := re.fullmatch(r"lies:(source|sink):(.+)", name):
        known = {lie.name: lie for lie in _RUNS[match[1]][0]}
        wanted = match[2].split("+")
        if known.keys() >= set(wanted):
            return scenario(match[1], [known[each] for each in wanted])
    return None
