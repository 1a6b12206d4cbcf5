"""Every process killed at every moment of a batch: nothing is lost, and what comes twice is allowed to.

A group of queries is brought each to its moment; then the victim is killed under all of them at once.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from faults.cluster import SYNC_EACH, Cluster
from faults.driver import CLUSTER, LOCAL, Driver
from faults.gates import BEFORE_FIN, COMMITTED, HALF_WAY, MOMENTS, PLANNED, RECEIVED, WRITTEN
from faults.queries import FILES, NSQ, SINKS
from faults.report import Row
from faults.scenario import Context, Scenario
from faults.subject import Subject, check_gone, finish_all
from faults.victims import DRIVER, EXECUTOR, NSQDS, PLANNER, RECEIVER, VICTIMS, WORKER, repair, strike

FIRST_COUNT = 200
LATER_COUNT = 50
# How often it is tried to stop Spark between the log of the file sink and its own.
_TRIES = 10


@dataclass(frozen=True)
class Case:
    moment: str
    sink: str


def duplicates_allowed(victim: str, moment: str, sink: str) -> bool:
    """What docs/semantics.md promises: rows come twice where they were processed and could not be finished any more."""
    if victim in (RECEIVER, PLANNER, DRIVER) and moment in (WRITTEN, COMMITTED, BEFORE_FIN):
        return True
    if moment == WRITTEN:
        # A sink's commit runs in a worker too: without it the batch failed, and is published again.
        return victim == WORKER and sink == NSQ
    if moment == HALF_WAY:
        # A task has its rows before the receiver dies, with the stream reader or alone. A task that is tried again
        # publishes again.
        return victim in (RECEIVER, PLANNER) or (sink == NSQ and victim in (WORKER, EXECUTOR, DRIVER, NSQDS))
    return False


def ends_allowed(victim: str, sink: str) -> int:
    """How often the query may end, as docs/semantics.md says; that of a dead driver is another one then."""
    # Spark begins and commits every batch of a Python sink in a worker beside the driver, and tries neither again.
    return int(victim == PLANNER or (victim == WORKER and sink == NSQ))


def cases(turn: int) -> list[Case]:
    """Every moment once; over three turns with every sink."""
    return [Case(moment, SINKS[(number + turn) % len(SINKS)]) for number, moment in enumerate(MOMENTS)]


def run_group(context: Context, victim: str, group: Sequence[Case]) -> list[Row]:
    driver = shared_driver(context, CLUSTER if victim == EXECUTOR else LOCAL)
    with Cluster(context.impl, context.folder, context.seed, flags=[SYNC_EACH]) as cluster:
        places = [context.folder / f"query-{number}" for number in range(len(group))]
        subjects = [Subject(place, cluster, case.sink) for place, case in zip(places, group, strict=True)]
        began = time.monotonic()
        for subject, case in zip(subjects, group, strict=True):
            bring_to_start(subject, case, driver)
        for subject in subjects:
            subject.publish(FIRST_COUNT)
        bring_to_moments(list(zip(subjects, group, strict=True)), driver)
        strike(victim, driver, cluster, subjects, context.chance)
        driver = after_strike(context, victim, driver, cluster, subjects)
        for subject in subjects:
            subject.publish(LATER_COUNT)
        finish_all(driver, subjects)
        left = check_gone(driver, cluster, subjects)
        seconds = (time.monotonic() - began) / len(group)
        return [to_row(victim, case, subject, seconds, left) for subject, case in zip(subjects, group, strict=True)]


def shared_driver(context: Context, master: str) -> Driver:
    """A Spark that runs, or a new one where the last one is dead."""
    driver = context.shared.get(master)
    if not isinstance(driver, Driver) or not driver.is_alive():
        driver = Driver(master, context.folder.parent / f"spark-{master.partition('[')[0]}")
        context.shared[master] = driver
        context.ending.callback(driver.end)
    return driver


def bring_to_start(subject: Subject, case: Case, driver: Driver) -> None:
    gates = subject.order.gates
    gates.close(RECEIVED, str(FIRST_COUNT))
    if case.moment in (PLANNED, HALF_WAY, COMMITTED) or (case.moment == WRITTEN and case.sink != FILES):
        gates.close(case.moment)
    if case.moment == BEFORE_FIN:
        for proxy in subject.cluster.proxies:
            proxy.keep_fins(subject.topic)
    driver.start(subject.order)


def bring_to_moments(pairs: Sequence[tuple[Subject, Case]], driver: Driver) -> None:
    """Every query gets its first batch, and stays where its gate is closed."""
    last: list[Subject] = []
    for subject, case in pairs:
        subject.wait(reached(subject, RECEIVED), "its messages", driver)
        if (case.moment, case.sink) == (WRITTEN, FILES):
            last.append(subject)
        elif case.moment != RECEIVED:
            subject.order.gates.open(RECEIVED)
    for subject, case in pairs:
        if subject not in last:
            subject.wait(reached(subject, case.moment), case.moment, driver)
    for subject in last:
        stop_before_commit(subject, driver)


def reached(subject: Subject, moment: str) -> Callable[[], bool]:
    gates, cluster = subject.order.gates, subject.cluster
    match moment:
        case "offsets logged":
            return lambda: bool(gates.arrived(PLANNED)) and subject.last("offsets") > subject.last("commits")
        case "commit logged":
            return lambda: bool(gates.arrived(COMMITTED)) and subject.last("offsets") == subject.last("commits")
        case "before FIN":
            return lambda: sum(each.kept_fins(subject.topic) for each in cluster.proxies) >= FIRST_COUNT
        case "FIN sent":
            return lambda: subject.last("commits") >= 0 and cluster.unfinished(subject.topic) == 0
    return lambda: bool(gates.arrived(moment))


def stop_before_commit(subject: Subject, driver: Driver) -> int:
    """Stop Spark after the file sink has logged a batch and before Spark has; returns which batch.

    No code of ours runs in between: the whole JVM is stopped, and if that came too late the next batch has its turn.
    """
    gates = subject.order.gates
    jvm = driver.jvm()
    assert jvm is not None
    for _ in range(_TRIES):
        batch = subject.last("offsets") + 1
        with subject.watch_file_log() as watch:
            gates.open(RECEIVED)
            assert watch.wait(str(batch), 60), f"the file sink never logged batch {batch}"
            jvm.suspend()
        if not subject.has_commit(batch):
            return batch
        gates.clear(RECEIVED)
        gates.close(RECEIVED, str(FIRST_COUNT))
        jvm.resume()
        subject.publish(FIRST_COUNT)
        subject.wait(reached(subject, RECEIVED), "its messages", driver)
    raise AssertionError(f"Spark was too quick for {_TRIES} times")


def after_strike(
    context: Context, victim: str, driver: Driver, cluster: Cluster, subjects: Sequence[Subject]
) -> Driver:
    """Everything that waits goes on, and what somebody else would start again is started again."""
    for subject in subjects:
        subject.order.gates.open()
        for proxy in cluster.proxies:
            proxy.release_fins(subject.topic, drop=victim in (RECEIVER, PLANNER, DRIVER))
    if victim == DRIVER:
        driver.check_left_behind()
        driver = shared_driver(context, LOCAL)
        for subject in subjects:
            driver.start(subject.order)
        return driver
    if (jvm := driver.jvm()) and jvm.status() == "stopped":
        jvm.resume()
    repair(cluster)
    cluster.wait_restarted([subject.topic for subject in subjects])
    return driver


def to_row(victim: str, case: Case, subject: Subject, seconds: float, left: str) -> Row:
    may_have_ended = len(subject.failures) <= ends_allowed(victim, case.sink)
    return Row(
        f"kill -9: {case.moment}",
        victim,
        subject.cluster.impl.name,
        1,
        len(subject.published),
        subject.lost(),
        subject.duplicated(),
        duplicates_allowed(victim, case.moment, case.sink),
        seconds,
        0,
        f"crash:{victim}:{case.moment}:{case.sink}",
        (subject.failure if may_have_ended else subject.complaint) or left,
    )


def scenario(victim: str, group: Sequence[Case], name: str = "", is_long: bool = False) -> Scenario:
    name = name or f"crash:{victim}:{'+'.join(f'{case.moment}:{case.sink}' for case in group)}"
    return Scenario(name, lambda context: run_group(context, victim, group), "kill -9", victim, is_long=is_long)


# Each victim with all moments; the long form with every sink at each.
SCENARIOS = [
    scenario(victim, cases(number + turn), f"crash:{victim}:{'abc'[turn]}", is_long=turn > 0)
    for turn, (number, victim) in product(range(3), enumerate(VICTIMS))
]


def named(name: str) -> Scenario | None:
    """Some cases by the name that their row bears, or the scenario that ran them together."""
    if match := re.fullmatch(r"crash:([^:]+):(.+)", name):
        known = {f"{moment}:{sink}": Case(moment, sink) for moment, sink in product(MOMENTS, SINKS)}
        wanted = match[2].split("+")
        if match[1] in VICTIMS and known.keys() >= set(wanted):
            return scenario(match[1], [known[each] for each in wanted])
    return None
