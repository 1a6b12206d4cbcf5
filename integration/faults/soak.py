"""A long run with random faults: ``./run soak --minutes N [--seed S] [--mean-interval SECONDS] [--broker go|ours]``.

Three queries, one for each sink, get messages all the time, while processes die and connections fail at random. In the
end every message that was acknowledged has to be there, and no process may have grown. For the last third of the run
nothing is killed any more: what is killed every minute never becomes old enough to show whether it grows.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path

import psutil
from rig.daemons import Implementation, Nsqd, own_brokers
from rig.processes import kill

from faults.cluster import SYNC_EACH, Cluster
from faults.driver import LOCAL, Driver, DriverError
from faults.proxy import FORGOTTEN, LATE, REFUSED, RESET, STALLED, Proxy, Rules
from faults.queries import SINKS
from faults.report import Row, append, write
from faults.sampling import Sampler, table
from faults.scenario import end_in_order_when_asked
from faults.subject import Subject, check_gone, finish_all

_LOOK_S = 0.2
_SAMPLE_S = 5.0
# How much of the run is without kills.
_CALM_PART = 1 / 3
_DRIVER_CHANCE = 0.3
# A heap that has its size, and all its memory, from the start: what grows then is no heap, and one that leaks is full.
_JAVA_OPTIONS = "-Xms1g -XX:+AlwaysPreTouch"
# Receivers remember for a minute more than this what nsqd may deliver again when a connection has broken. With nsqd's
# default that is as long as a run takes, and breaks come so often that they would have more to remember to its end.
_MAX_MSG_TIMEOUT = "-max-msg-timeout=1m"
_PUBLISH_S = 0.5
_PORTION = 25
_HEAL_S = (0.5, 6.0)


class Publisher:
    """Publishes to every nsqd, a thread each. What was not acknowledged may be there, or not."""

    def __init__(self, cluster: Cluster, subjects: list[Subject]) -> None:
        self._cluster = cluster
        self._subjects = subjects
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._publish, args=(number,), daemon=True) for number in range(len(cluster.nsqds))
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _publish(self, number: int) -> None:
        while not self._stopping.wait(_PUBLISH_S):
            for subject in self._subjects:
                with self._lock:
                    bodies = subject.number(_PORTION)
                try:
                    self._cluster.nsqds[number].publish(subject.topic, bodies)
                except (OSError, HTTPException):
                    subject.taken.update(bodies)


class Soak:
    def __init__(self, cluster: Cluster, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.sampler = Sampler()
        # What went wrong that no count tells.
        self.failures: list[str] = []
        self.cluster = cluster
        self._spark_folder = folder / "spark"
        self.driver = self._start_driver()
        self._is_driver_killed = False
        self.subjects = [Subject(folder / f"soak-{sink}", self.cluster, sink, heartbeatInterval="2s") for sink in SINKS]
        self._impl = cluster.impl
        self._due: list[tuple[float, Callable[[], None]]] = []

    def _start_driver(self) -> Driver:
        return Driver(LOCAL, self._spark_folder, _JAVA_OPTIONS)

    # Faults. Each says whether there was anybody to suffer, and when it is over.

    def kill_worker(self) -> bool:
        return _kill_all(self.driver.workers()[:1])

    def kill_receiver(self) -> bool:
        return _kill_all(self.driver.receivers(self.chance.choice(self.subjects).order))

    def kill_planner(self) -> bool:
        planner = self.driver.planner(self.chance.choice(self.subjects).order)
        return _kill_all([planner] if planner else [])

    def kill_driver(self) -> bool:
        was_alive = self.driver.is_alive()
        self._is_driver_killed = True
        self.driver.kill()
        self.driver.check_left_behind()
        return was_alive

    def stop_query(self) -> bool:
        name = self.chance.choice(self.subjects).order.name
        was_running = self.driver.failures().get(name) == ""
        self.driver.stop(name)
        return was_running

    def kill_nsqd(self) -> bool:
        nsqd = self.chance.choice([*self.cluster.nsqds, self.cluster.sink])
        if nsqd.process.poll() is not None:
            return False
        # Go's forgets what is in flight when it is killed: with a receiver that dies as well it would be lost.
        nsqd.kill() if self._impl.name == "ours" else _stop(nsqd)
        self._later(nsqd.restart)
        return True

    def kill_lookupd(self) -> bool:
        if self.cluster.lookupd.process.poll() is not None:
            return False
        self.cluster.lookupd.kill()
        self._later(self.cluster.lookupd.restart)
        return True

    def pause_nsqd(self) -> bool:
        process = self.chance.choice(self.cluster.nsqds).process
        if process.poll() is not None or psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
            return False
        process.send_signal(signal.SIGSTOP)
        self._later(lambda: process.send_signal(signal.SIGCONT))
        return True

    def reset_connections(self) -> bool:
        return self._strike(Proxy.reset, RESET)

    def forget_connections(self) -> bool:
        return self._strike(Proxy.forget, FORGOTTEN)

    def _strike(self, act: Callable[[Proxy], None], what: str) -> bool:
        proxy = self._proxy()
        before = proxy.met[what]
        act(proxy)
        return proxy.met[what] > before

    def make_network_bad(self) -> bool:
        """Whether it met anybody is known when it is over: then it counts."""
        proxy = self._proxy()
        before = _suffered(proxy)
        proxy.rules = self.chance.choice(
            [
                Rules(delay_s=0.1, jitter_s=0.3),
                Rules(loss=0.3),
                Rules(stall_up=True, stall_down=True),
                Rules(stall_down=True),
                Rules(refuse=True),
            ]
        )
        if proxy.rules.refuse:
            # Who is connected would not come across it.
            proxy.reset()

        def heal() -> None:
            proxy.heal()
            self.done["make_network_bad"] += _suffered(proxy) > before

        self._later(heal)
        return False

    def _proxy(self) -> Proxy:
        return self.chance.choice([*self.cluster.proxies, self.cluster.sink_proxy])

    def _later(self, heal: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + self.chance.uniform(*_HEAL_S), heal))

    # The run.

    def break_something(self, faults: Sequence[Callable[[], bool]]) -> None:
        fault = self.chance.choice(faults)
        print(f"{time.strftime('%H:%M:%S')} {fault.__name__}", flush=True)
        self.done[fault.__name__] += self.attempt(fault.__name__, fault)

    def faults(self, is_calm: bool) -> list[Callable[[], bool]]:
        """What may be broken now, the likelier the more often. In a calm run nothing is killed, not even in order."""
        often = [self.reset_connections, self.make_network_bad]
        seldom = [self.pause_nsqd, self.forget_connections]
        if not is_calm:
            often += [self.kill_worker, self.kill_receiver, self.kill_nsqd]
            seldom += [self.kill_planner, self.kill_lookupd, self.stop_query]
            seldom += [self.kill_driver] if self.chance.random() < _DRIVER_CHANCE else []
        return [*often * 2, *seldom]

    def heal(self, everything: bool = False) -> None:
        now = time.monotonic()
        due = [heal for at, heal in self._due if everything or now >= at]
        self._due = [] if everything else [(at, heal) for at, heal in self._due if now < at]
        for heal in due:
            self.attempt("healing", heal)

    def attempt(self, what: str, action: Callable[[], bool | None]) -> bool:
        """What it says; what goes wrong in it fails the run, and does not end it."""
        try:
            return bool(action())
        except DriverError as error:
            print(f"starting again: {error}", flush=True)
        except Exception as error:
            self.failures.append(f"{what.replace('_', ' ')}: {type(error).__name__}: {error}")
        return False

    def revive(self) -> None:
        """What a supervisor does: start Spark again, and queries that have ended."""
        if not self.driver.is_alive():
            if not self._is_driver_killed:
                self.failures.append(f"Spark ended by itself: {self.driver.log.read_text()[-1000:]}")
            self.driver.end()
            # Until there is another one it is the dead one's turn again.
            self._is_driver_killed = True
            self.driver = self._start_driver()
            self._is_driver_killed = False
        failures = self.driver.failures()
        for subject in self.subjects:
            if failures.get(subject.order.name, "it was never started"):
                self.driver.start(subject.order)

    def sample(self) -> None:
        orders = [subject.order for subject in self.subjects]
        roles = {
            "Python driver": [each] if (each := self.driver.python()) else [],
            "driver JVM": [each] if (each := self.driver.jvm()) else [],
            "receiver": [each for order in orders for each in self.driver.receivers(order)],
            "stream reader": [each for order in orders if (each := self.driver.planner(order))],
            "Python worker": self.driver.workers(),
        }
        if self._impl.name == "ours":
            running = [each for each in self.cluster.daemons if each.process.poll() is None]
            for daemon in running:
                roles.setdefault(daemon.program, []).append(psutil.Process(daemon.process.pid))
        self.sampler.look(roles)

    def run(self, seconds: float, mean_interval_s: float) -> None:
        publisher = Publisher(self.cluster, self.subjects)
        try:
            self._break_on(seconds, mean_interval_s)
        finally:
            self.heal(everything=True)
            publisher.stop()

    def _break_on(self, seconds: float, mean_interval_s: float) -> None:
        began = time.monotonic()
        fault_at = began + self.chance.expovariate(1 / mean_interval_s)
        sample_at = 0.0
        while (now := time.monotonic()) < began + seconds:
            self.heal()
            if now >= fault_at:
                self.break_something(self.faults(is_calm=now - began >= seconds * (1 - _CALM_PART)))
                fault_at = time.monotonic() + self.chance.expovariate(1 / mean_interval_s)
            self.attempt("starting again", self.revive)
            if now >= sample_at:
                self.attempt("sampling", self.sample)
                sample_at = now + _SAMPLE_S
            time.sleep(_LOOK_S)

    def settle(self) -> None:
        """Wait for all that is still on its way, and end the queries."""
        for subject in self.subjects:
            subject.publish(1)
        self.revive()
        finish_all(self.driver, self.subjects, 180)
        if left := check_gone(self.driver, self.cluster, self.subjects):
            self.failures.append(left)

    def row(self, seed: int, seconds: float) -> Row:
        complaints = [complaint for each in self.sampler.growths() if (complaint := each.complaint(seconds))]
        complaints += [subject.failure for subject in self.subjects if subject.failure]
        complaints += [] if self.done.total() else ["nothing was broken"]
        return Row(
            f"{self.done.total()} random faults",
            "everything",
            self._impl.name,
            1,
            sum(len(set(subject.published) - subject.taken) for subject in self.subjects),
            sum(subject.lost() for subject in self.subjects),
            sum(subject.duplicated() for subject in self.subjects),
            True,
            seconds,
            seed,
            failure="; ".join([*complaints, *self.failures]),
        )

    def close(self) -> None:
        self.driver.end()


def _kill_all(processes: Sequence[psutil.Process]) -> bool:
    for process in processes:
        kill(process)
    return bool(processes)


def _suffered(proxy: Proxy) -> int:
    return sum(proxy.met[what] for what in (LATE, STALLED, REFUSED))


def _stop(nsqd: Nsqd) -> None:
    """In order, for which it must not be paused."""
    nsqd.process.send_signal(signal.SIGCONT)
    nsqd.stop()


def main() -> int:
    end_in_order_when_asked()
    options = parse()
    impl = own_brokers()
    if options.broker == "go":
        impl = Implementation("go", Path(os.environ["NSQ_GO_BIN"]).absolute())
    options.report.mkdir(parents=True, exist_ok=True)
    (options.report / "rows.jsonl").unlink(missing_ok=True)
    print(f"seed {options.seed}, {options.minutes:g} minutes, report in {options.report}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="nsq-soak-") as place,
        Cluster(impl, Path(place), options.seed, flags=[SYNC_EACH, _MAX_MSG_TIMEOUT]) as cluster,
    ):
        soak = Soak(cluster, Path(place), options.seed)
        began = time.monotonic()
        try:
            soak.run(options.minutes * 60, options.mean_interval)
            soak.settle()
        except BaseException as error:
            soak.failures.append(f"ended before all could be there: {type(error).__name__}: {error}")
            if not isinstance(error, Exception):
                raise
        finally:
            row = report(soak, options, time.monotonic() - began)
            soak.close()
    return 0 if row.passed else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("./run soak", description="Random faults under load, for as long as you like.")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--mean-interval", type=float, default=15, help="seconds between two faults, on average")
    parser.add_argument("--broker", choices=["go", "ours"], default="ours")
    parser.add_argument("--report", type=Path, default=Path("build/soak"))
    return parser.parse_args()


def report(soak: Soak, options: argparse.Namespace, seconds: float) -> Row:
    row = soak.row(options.seed, seconds)
    append(row, options.report)
    facts = {"seed": options.seed, "minutes": options.minutes, "mean interval": f"{options.mean_interval:g} s"}
    done = sorted((name, count) for name, count in soak.done.items() if count)
    facts["faults"] = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in done)
    write(options.report, "Soak: random faults under load", facts)
    soak.sampler.save(options.report / "samples.csv")
    with (options.report / "report.md").open("a") as file:
        file.write("\n" + table(soak.sampler.growths()))
    print((options.report / "report.md").read_text(), flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
