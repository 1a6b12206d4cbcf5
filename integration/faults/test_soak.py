"""What a soak finds out: that something grows, and what went wrong while it broke everything."""

import json
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from rig.daemons import own_brokers, wait_until

from faults import soak
from faults.driver import DriverError
from faults.proxy import Proxy
from faults.report import Row
from faults.sampling import LONG_RUN_S, WARM_UP_S, Growth, Sample, Sampler, slope_per_h, table
from pyspark_nsq.connector.settings import Address

STEP_S = 5.0
MINUTE_S = 60.0
MemoryAt = Callable[[float], float]


def sampled(lives_s: Sequence[float], memory_at: MemoryAt, files: int = 20, at_once: bool = False) -> Sampler:
    """One process after the other, or all of them at once, whose memory depends on their age."""
    sampler, at_s = Sampler(), 0.0
    for pid, life_s in enumerate(lives_s):
        for step in range(int(life_s / STEP_S) + 1):
            age_s = step * STEP_S
            sampler.samples.append(Sample(at_s + age_s, "receiver", pid, age_s, memory_at(age_s), files))
        at_s += 0.0 if at_once else life_s
    return sampler


def growth_of(sampler: Sampler) -> Growth:
    (growth,) = sampler.growths()
    return growth


def steady(_age_s: float) -> float:
    return 100.0


def leaky(age_s: float) -> float:
    """Three MiB a minute."""
    return 100.0 + age_s / MINUTE_S * 3


def test_a_leak_is_found_in_one_process() -> None:
    growth = growth_of(sampled([20 * MINUTE_S], leaky))
    assert growth.memory_slope == pytest.approx(180)
    assert growth.complaint(LONG_RUN_S) == "the memory of receiver grows by 180 MiB an hour"


def test_a_leak_is_found_in_processes_of_which_none_lives_long() -> None:
    growth = growth_of(sampled([WARM_UP_S + MINUTE_S] * 15, leaky))
    assert growth.observed_s == 15 * MINUTE_S
    assert growth.complaint(LONG_RUN_S) == "the memory of receiver grows by 180 MiB an hour"


def test_a_leak_is_found_in_processes_side_by_side() -> None:
    growth = growth_of(sampled([20 * MINUTE_S] * 3, leaky, at_once=True))
    assert growth.observed_s == 20 * MINUTE_S - WARM_UP_S
    assert growth.complaint(LONG_RUN_S) == "the memory of receiver grows by 180 MiB an hour"


def test_a_rise_that_all_processes_share_counts_once() -> None:
    def rise(age_s: float) -> float:
        return 100.0 + 8 * (age_s > 10 * MINUTE_S)

    alone = growth_of(sampled([20 * MINUTE_S], rise))
    together = growth_of(sampled([20 * MINUTE_S] * 9, rise, at_once=True))
    assert together.observed_s == alone.observed_s
    assert together.complaint(LONG_RUN_S) == alone.complaint(LONG_RUN_S) == ""


def test_time_without_a_process_is_not_observed() -> None:
    sampler = sampled([WARM_UP_S + MINUTE_S] * 2, steady)
    later = [sample._replace(at_s=sample.at_s + 3600) if sample.pid else sample for sample in sampler.samples]
    sampler.samples = later
    assert growth_of(sampler).observed_s == 2 * MINUTE_S


def test_a_leak_of_file_descriptors_is_found() -> None:
    sampler = sampled([20 * MINUTE_S], steady)
    sampler.samples = [sample._replace(files=20 + int(sample.at_s / MINUTE_S)) for sample in sampler.samples]
    assert growth_of(sampler).complaint(LONG_RUN_S).startswith("the file descriptors of receiver grow by")


def test_what_does_not_grow_is_no_leak() -> None:
    assert growth_of(sampled([WARM_UP_S + MINUTE_S] * 15, steady)).complaint(LONG_RUN_S) == ""


def test_what_a_process_takes_while_it_warms_up_is_no_leak() -> None:
    def start(age_s: float) -> float:
        return 100.0 + min(age_s, WARM_UP_S)

    assert growth_of(sampled([10 * MINUTE_S] * 3, start)).complaint(LONG_RUN_S) == ""


def test_who_was_not_observed_has_not_passed_a_long_run() -> None:
    growth = growth_of(sampled([WARM_UP_S - STEP_S] * 20, leaky))
    assert growth.complaint(LONG_RUN_S) == "receiver was observed for 0.0 minutes only: its growth is not known"
    assert growth.complaint(LONG_RUN_S / 2) == ""


def test_the_minutes_are_shown() -> None:
    assert "| receiver | 15 | 15.0 | 100 | 100 | +0.0 |" in table(
        sampled([WARM_UP_S + MINUTE_S] * 15, steady).growths()
    )


def test_slopes_are_within_each_process() -> None:
    hour = 3600.0
    assert slope_per_h([[(0, 5), (hour, 7)], [(0, 100), (hour, 102)]]) == pytest.approx(2)
    assert slope_per_h([[(0, 5)], [(hour, 100)]]) == 0


def test_a_process_is_sampled() -> None:
    sampler = Sampler()
    sampler.look({"me": [psutil.Process()]})
    (sample,) = sampler.samples
    assert sample.memory_mib > 1
    assert sample.files > 1


class Doomed:
    """A soak that comes to grief."""

    def __init__(self, *_arguments: object) -> None:
        self.done = Counter(kill_nsqd=1)
        self.failures: list[str] = []
        self.sampler = sampled([MINUTE_S], steady)
        self.is_closed = False

    def run(self, *_arguments: float) -> None:
        raise psutil.NoSuchProcess(1)

    def row(self, seed: int, seconds: float) -> Row:
        return Row("1 random fault", "everything", "ours", 1, 5, 0, 0, True, seconds, seed, "", self.failures[0])

    def close(self) -> None:
        self.is_closed = True


def test_a_soak_that_comes_to_grief_leaves_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doomed = Doomed()
    monkeypatch.setattr(soak, "end_in_order_when_asked", lambda: None)
    monkeypatch.setattr(soak, "Cluster", lambda *_, **__: nullcontext())
    monkeypatch.setattr(soak, "Soak", lambda *_: doomed)
    monkeypatch.setattr("sys.argv", ["soak", "--minutes", "1", "--seed", "5", "--report", str(tmp_path)])
    assert soak.main() == 1
    assert doomed.is_closed
    (row,) = json.loads((tmp_path / "report.json").read_text())["rows"]
    assert row["failure"].startswith("ended before all could be there: NoSuchProcess")
    assert "| receiver |" in (tmp_path / "report.md").read_text()
    assert len((tmp_path / "samples.csv").read_text().splitlines()) > 1


def test_what_goes_wrong_while_something_is_broken_fails_the_run_and_does_not_end_it() -> None:
    failing = soak.Soak.__new__(soak.Soak)
    failing.failures = []

    def leave_something() -> None:
        raise AssertionError("the driver's death left behind: something")

    def find_spark_dead() -> None:
        raise DriverError("Spark has ended")

    failing.attempt("kill_driver", leave_something)
    failing.attempt("stop_query", find_spark_dead)
    assert failing.failures == ["kill driver: AssertionError: the driver's death left behind: something"]


class Nobody:
    """A driver, an nsqd's process and a proxy where there is nothing to break."""

    pid = -1
    process: "Nobody"

    def poll(self) -> int:
        return 0

    def workers(self) -> list[psutil.Process]:
        return []

    def receivers(self, _order: object) -> list[psutil.Process]:
        return []

    def planner(self, _order: object) -> None:
        """There is none."""

    def is_alive(self) -> bool:
        return False

    def kill(self) -> None:
        """It is dead."""

    def check_left_behind(self) -> None:
        """Nothing is."""

    def failures(self) -> dict[str, str]:
        return {"query": "it has ended"}

    def stop(self, _name: str) -> None:
        """It is not there."""


FAULTS = [
    name for name in vars(soak.Soak) if name.startswith(("kill_", "stop_", "pause_", "reset_", "forget_", "make_"))
]


def soaking(proxy: Proxy) -> soak.Soak:
    nobody: Any = Nobody()
    nobody.process = nobody
    made = soak.Soak.__new__(soak.Soak)
    made.chance, made.done, made.failures = random.Random(1), Counter(), []
    made.driver, made._due, made._is_driver_killed = nobody, [], False
    made.subjects = [SimpleNamespace(order=SimpleNamespace(name="query"))]  # type: ignore[list-item]
    made.cluster = SimpleNamespace(nsqds=[nobody], sink=nobody, lookupd=nobody, proxies=[proxy], sink_proxy=proxy)  # type: ignore[assignment]
    made._impl = own_brokers()
    return made


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with closing(socket.create_server(("127.0.0.1", 0))) as target:
        made = Proxy(lambda: Address("127.0.0.1", target.getsockname()[1]))
        yield made
        made.close()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_hits_nobody_does_not_count(name: str, proxy: Proxy) -> None:
    made = soaking(proxy)
    made.break_something([getattr(made, name)])
    made.heal(everything=True)
    assert made.done.total() == 0
    assert made.failures == []


@pytest.mark.parametrize("name", ["reset_connections", "forget_connections", "make_network_bad"])
def test_one_that_hits_somebody_does(name: str, proxy: Proxy) -> None:
    made = soaking(proxy)
    with closing(socket.create_connection(("127.0.0.1", proxy.port))) as sock:
        wait_until(lambda: proxy.connections, "the connection")
        made.break_something([getattr(made, name)])
        for _ in range(100):
            # A piece at a time is lost now and then.
            with suppress(OSError):
                sock.sendall(b"x")
            time.sleep(0.005)
        made.heal(everything=True)
    assert made.done == {name: 1}


class DeadDriver:
    log = Path("/dev/null")

    def is_alive(self) -> bool:
        return False

    def end(self) -> None:
        """It has ended."""

    def kill(self) -> None:
        """It is dead."""

    def check_left_behind(self) -> None:
        """Nothing is."""

    def failures(self) -> dict[str, str]:
        return {}


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_spark_that_ends_by_itself_fails_the_run(monkeypatch: pytest.MonkeyPatch, is_killed: bool) -> None:
    monkeypatch.setattr(soak, "Driver", lambda *_: DeadDriver())
    monkeypatch.setattr(soak, "SINKS", [])
    reviving = soak.Soak(SimpleNamespace(impl=None), Path(), 1)
    if is_killed:
        reviving.kill_driver()
    reviving.revive()
    assert [failure.partition(":")[0] for failure in reviving.failures] == ["Spark ended by itself"] * (not is_killed)
