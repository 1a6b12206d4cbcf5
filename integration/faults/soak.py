"""A long run with random faults: ``./run soak --minutes N [--seed S] [--mean-interval SECONDS] [--broker go|ours]``.

Three queries, one for each sink, get messages all the time, while processes die and connections fail at random. In the
end every message that was acknowledged has to be there, and no process may have grown.
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
from collections.abc import Callable
from pathlib import Path

import psutil
from rig.daemons import Implementation

from faults.cluster import Cluster
from faults.driver import LOCAL, Driver, DriverError
from faults.proxy import Proxy, Rules
from faults.queries import SINKS
from faults.report import Row, append, write
from faults.sampling import Sampler, table
from faults.scenario import end_in_order_when_asked, own_brokers
from faults.subject import Subject, check_gone, finish_all

_SAMPLE_S = 5.0
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
                except OSError:
                    subject.taken.update(bodies)


class Soak:
    def __init__(self, cluster: Cluster, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.sampler = Sampler()
        self.cluster = cluster
        self._spark_folder = folder / "spark"
        self.driver = Driver(LOCAL, self._spark_folder)
        self.subjects = [Subject(folder / f"soak-{sink}", self.cluster, sink, heartbeatInterval="2s") for sink in SINKS]
        self._impl = cluster.impl
        self._due: list[tuple[float, Callable[[], None]]] = []
        for subject in self.subjects:
            self.driver.start(subject.order)

    # Faults. Each says when it is over.

    def kill_worker(self) -> None:
        for worker in self.driver.workers()[:1]:
            worker.kill()

    def kill_receiver(self) -> None:
        for receiver in self.driver.receivers(self.chance.choice(self.subjects).order):
            receiver.kill()

    def kill_planner(self) -> None:
        if planner := self.driver.planner(self.chance.choice(self.subjects).order):
            planner.kill()

    def kill_driver(self) -> None:
        self.driver.kill()
        self.driver.check_left_behind()

    def stop_query(self) -> None:
        self.driver.stop(self.chance.choice(self.subjects).order.name)

    def kill_nsqd(self) -> None:
        nsqd = self.chance.choice([*self.cluster.nsqds, self.cluster.sink])
        if nsqd.process.poll() is None:
            # Go's forgets what is in flight when it is killed: with a receiver that dies as well it would be lost.
            nsqd.kill() if self._impl.name == "ours" else nsqd.stop()
            self._later(nsqd.restart)

    def kill_lookupd(self) -> None:
        if self.cluster.lookupd.process.poll() is None:
            self.cluster.lookupd.kill()
            self._later(self.cluster.lookupd.restart)

    def pause_nsqd(self) -> None:
        process = self.chance.choice(self.cluster.nsqds).process
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            self._later(lambda: process.send_signal(signal.SIGCONT))

    def reset_connections(self) -> None:
        self._proxy().reset()

    def forget_connections(self) -> None:
        self._proxy().forget()

    def make_network_bad(self) -> None:
        proxy = self._proxy()
        proxy.rules = self.chance.choice(
            [
                Rules(delay_s=0.1, jitter_s=0.3),
                Rules(loss=0.3),
                Rules(stall_up=True, stall_down=True),
                Rules(stall_down=True),
                Rules(refuse=True),
            ]
        )
        self._later(proxy.heal)

    def _proxy(self) -> Proxy:
        return self.chance.choice([*self.cluster.proxies, self.cluster.sink_proxy])

    def _later(self, heal: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + self.chance.uniform(*_HEAL_S), heal))

    # The run.

    def break_something(self) -> None:
        often = [self.kill_worker, self.kill_receiver, self.kill_nsqd, self.reset_connections, self.make_network_bad]
        seldom = [self.kill_planner, self.kill_lookupd, self.stop_query, self.pause_nsqd, self.forget_connections]
        fault = self.chance.choice([*often * 2, *seldom, *([self.kill_driver] if self.chance.random() < 0.3 else [])])
        print(f"{time.strftime('%H:%M:%S')} {fault.__name__}", flush=True)
        self.done[fault.__name__] += 1
        fault()

    def heal(self, everything: bool = False) -> None:
        now = time.monotonic()
        due = [heal for at, heal in self._due if everything or now >= at]
        self._due = [] if everything else [(at, heal) for at, heal in self._due if now < at]
        for heal in due:
            heal()

    def revive(self) -> None:
        """What a supervisor does: start Spark again, and queries that have ended."""
        if not self.driver.is_alive():
            self.driver.end()
            self.driver = Driver(LOCAL, self._spark_folder)
        failures = self.driver.failures()
        for subject in self.subjects:
            if failures.get(subject.order.name, "it was never started"):
                self.driver.start(subject.order)

    def sample(self) -> None:
        orders = [subject.order for subject in self.subjects]
        roles = {
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
        end = time.monotonic() + seconds
        fault_at = time.monotonic() + self.chance.expovariate(1 / mean_interval_s)
        sample_at = 0.0
        while (now := time.monotonic()) < end:
            self.heal()
            if now >= fault_at:
                self.break_something()
                fault_at = time.monotonic() + self.chance.expovariate(1 / mean_interval_s)
            try:
                self.revive()
            except DriverError as error:
                print(f"starting again: {error}", flush=True)
            if now >= sample_at:
                self.sample()
                sample_at = now + _SAMPLE_S
            time.sleep(0.2)
        publisher.stop()
        self.heal(everything=True)

    def account(self, seed: int, seconds: float) -> Row:
        for subject in self.subjects:
            subject.publish(1)
        self.revive()
        finish_all(self.driver, self.subjects, 180)
        left = check_gone(self.driver, self.cluster, self.subjects)
        complaints = [growth.complaint for growth in self.sampler.growths() if growth.complaint]
        complaints += [subject.failure for subject in self.subjects if subject.failure]
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
            failure="; ".join([*complaints, *([left] if left else [])]),
        )

    def close(self) -> None:
        self.driver.end()


def main() -> int:
    end_in_order_when_asked()
    parser = argparse.ArgumentParser("./run soak", description="Random faults under load, for as long as you like.")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--mean-interval", type=float, default=15, help="seconds between two faults, on average")
    parser.add_argument("--broker", choices=["go", "ours"], default="ours")
    parser.add_argument("--report", type=Path, default=Path("build/soak"))
    options = parser.parse_args()
    impl = own_brokers()
    if options.broker == "go":
        impl = Implementation("go", Path(os.environ["NSQ_GO_BIN"]).absolute())
    options.report.mkdir(parents=True, exist_ok=True)
    (options.report / "rows.jsonl").unlink(missing_ok=True)
    print(f"seed {options.seed}, {options.minutes:g} minutes, report in {options.report}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nsq-soak-") as place, Cluster(impl, Path(place)) as cluster:
        soak = Soak(cluster, Path(place), options.seed)
        try:
            soak.run(options.minutes * 60, options.mean_interval)
            row = soak.account(options.seed, time.monotonic() - began)
        finally:
            soak.close()
    append(row, options.report)
    facts = {"seed": options.seed, "minutes": options.minutes, "mean interval": f"{options.mean_interval:g} s"}
    facts["faults"] = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(soak.done.items()))
    write(options.report, "Soak: random faults under load", facts)
    soak.sampler.save(options.report / "samples.csv")
    with (options.report / "report.md").open("a") as report:
        report.write("\n" + table(soak.sampler.growths()))
    print((options.report / "report.md").read_text())
    return 0 if row.passed else 1


if __name__ == "__main__":
    sys.exit(main())
