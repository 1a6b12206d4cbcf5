"""Who is killed, and how they are found."""

import random
from collections.abc import Sequence

import psutil
from rig.daemons import Daemon
from rig.processes import kill

from faults.cluster import Cluster
from faults.driver import Driver
from faults.gates import HALF_WAY
from faults.scenario import Skipped
from faults.subject import Subject

WORKER = "Python worker"
RECEIVER = "receiver"
PLANNER = "stream reader"
EXECUTOR = "executor JVM"
DRIVER = "driver JVM"
NSQD = "one nsqd"
NSQDS = "all nsqds"
LOOKUPD = "lookupd"
VICTIMS = (WORKER, RECEIVER, PLANNER, EXECUTOR, DRIVER, NSQD, NSQDS, LOOKUPD)


def strike(victim: str, driver: Driver, cluster: Cluster, subjects: Sequence[Subject], chance: random.Random) -> None:
    """kill -9, and nothing else: an assertion fails where there was nobody to kill, who should have been there."""
    processes: list[psutil.Process] = []
    match victim:
        case "Python worker":
            processes = driver.workers()
        case "receiver":
            processes = [receiver for subject in subjects for receiver in driver.receivers(subject.order)]
            assert len(processes) == len(subjects)
        case "stream reader":
            found = [driver.planner(subject.order) for subject in subjects]
            processes = [planner for planner in found if planner]
            assert len(processes) == len(subjects)
        case "executor JVM":
            processes = [_executor(driver, subjects, chance)]
        case "driver JVM":
            driver.kill()
            return
        case _:
            for daemon in _daemons(victim, cluster, chance):
                daemon.kill()
            return
    if victim == WORKER and not processes:
        raise Skipped("before its first task a query has no Python worker to kill")
    assert processes, f"no {victim} is there"
    for process in processes:
        kill(process)


def _daemons(victim: str, cluster: Cluster, chance: random.Random) -> list[Daemon]:
    if victim == NSQD:
        return [chance.choice(cluster.nsqds)]
    return [*cluster.nsqds, cluster.sink] if victim == NSQDS else [cluster.lookupd]


def _executor(driver: Driver, subjects: Sequence[Subject], chance: random.Random) -> psutil.Process:
    """The one whose task is held, if there is one."""
    held = {pid for subject in subjects for pid in subject.order.gates.arrived(HALF_WAY)}
    executors = driver.executors()
    for executor in executors:
        if held & {child.pid for child in executor.children(recursive=True)}:
            return executor
    return chance.choice(executors)


def repair(cluster: Cluster) -> None:
    """Start the daemons again that are dead."""
    for daemon in cluster.daemons:
        if daemon.process.poll() is not None:
            daemon.restart()
