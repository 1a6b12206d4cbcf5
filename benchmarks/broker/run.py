"""nsqd of this project beside Go's, under the load of Go's own bench_writer and bench_reader.

    ./run bench broker [--rounds 5] [--seconds 1.5] [--attempts 4] [load ...]

Each round measures both, in turns of changing order; the table shows the medians: messages a second, and the CPU
seconds that the daemon took for a million messages, which the load generator's own appetite does not blur. Ours runs
with its durability on: what is acknowledged is written. Bodies have 200 bytes.

A measurement during which others used the machine is repeated, up to ``--attempts`` times; how many had to be taken all
the same, and how many cores were used at most, stands in the last columns.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import idle
import latency
from daemons import Nsqd, bench_writer, fill, start_light_reader, start_reader
from quiet import Watch

IN_MEMORY = "--mem-queue-size=100000000"
ON_DISK = "--mem-queue-size=10000"
UNFLUSHED_MAX = 2 * 2500
FOREIGN_CORES_MAX = 0.15
STARTS = 5


class Result(NamedTuple):
    """``rate`` is messages a second unless the load says otherwise; ``cpu`` seconds for a million messages."""

    rate: float
    cpu: float | None = None
    foreign_cores: float = 0.0


def _measured(daemon: Nsqd, work: Callable[[], float], seconds: float) -> Result:
    before = daemon.cpu_seconds()
    rate = work()
    return Result(rate, (daemon.cpu_seconds() - before) / (rate * seconds) * 1e6)


def publish(batch: int, flag: str = IN_MEMORY) -> Callable[[str, float], Result]:
    def load(name: str, seconds: float) -> Result:
        daemon = Nsqd(name, flag)
        try:
            bench_writer(daemon, "t", batch, 0.2)
            return _measured(daemon, lambda: bench_writer(daemon, "t", batch, seconds), seconds)
        finally:
            daemon.remove()

    return load


def consume(batch: int, count: int, *flags: str, seconds_max: float = 0.0) -> Callable[[str, float], Result]:
    """Take from a queue that is filled first: all of it, or what can be taken in the time."""

    def load(name: str, seconds: float) -> Result:
        daemon = Nsqd(name, *flags)
        try:
            daemon.create("t", "c")
            fill(daemon, "t", count, batch)
            before, started = daemon.cpu_seconds(), time.monotonic()
            waiting = _waiting(daemon)
            left = _drain(daemon, start_reader(daemon, "t", "c", seconds_max or seconds))
            took, cpu = time.monotonic() - started, daemon.cpu_seconds() - before
            return Result((waiting - left) / took, cpu / (waiting - left) * 1e6)
        finally:
            daemon.remove()

    return load


def _drain(daemon: Nsqd, reader: "subprocess.Popen[bytes]") -> int:
    """Wait for the topic to be empty, or the reader to end; how many messages are left.

    The last FINs may never come: bench_reader keeps them in its buffer.
    """
    try:
        while (left := _waiting(daemon)) > UNFLUSHED_MAX and reader.poll() is None:
            time.sleep(0.02)
    finally:
        reader.kill()
        reader.wait()
    return left


def _waiting(daemon: Nsqd) -> int:
    stats = daemon.stats("t")
    return stats["depth"] + sum(channel["depth"] + channel["in_flight_count"] for channel in stats["channels"])


def fan_out(name: str, _: float) -> Result:
    """Publish to a topic with ten channels and consume all: messages that came out a second. Ten of Go's bench_reader
    would take both cores for themselves, hence a lighter reader."""
    daemon = Nsqd(name, IN_MEMORY)
    channels = [f"c{number}" for number in range(10)]
    try:
        daemon.create("t", *channels)
        before, started = daemon.cpu_seconds(), time.monotonic()
        messages = fill(daemon, "t", 200_000) * len(channels)
        _drain(daemon, start_light_reader(daemon, "t", channels))
        took = time.monotonic() - started
        return Result(messages / took, (daemon.cpu_seconds() - before) / messages * 1e6)
    finally:
        daemon.remove()


def memory(name: str, _: float) -> Result:
    """Bytes of memory for a queued message of 200 bytes."""
    daemon = _settled(name)
    try:
        daemon.create("t", "c")
        before = daemon.rss_bytes()
        count = fill(daemon, "t", 1_000_000)
        time.sleep(1)
        return Result((daemon.rss_bytes() - before) / count)
    finally:
        daemon.remove()


def _settled(name: str) -> Nsqd:
    """One that has started: what it did not need for that, ours imports 0.2 s later."""
    daemon = Nsqd(name, IN_MEMORY)
    time.sleep(1)
    return daemon


def latency_p99(name: str, seconds: float) -> Result:
    """Milliseconds from publish to delivery, 99th percentile, at 5,000 messages a second."""
    daemon = _settled(name)
    try:
        return Result(latency.p99_ms(daemon.tcp, seconds))
    finally:
        daemon.remove()


def idle_cpu(name: str, _: float) -> Result:
    """Percent of a core with 5,000 idle connections and 1,000 topics with 5 channels each."""
    daemon = Nsqd(name, "--max-rdy-count=2500")
    try:
        return Result(idle.percent_of_a_core(daemon))
    finally:
        daemon.remove()


def busy_beside_idle(name: str, seconds: float) -> Result:
    """MPUB of 200 with the same idle crowd connected. Go's nsqd takes memory for all that each queue may hold."""
    daemon = Nsqd(name, ON_DISK)
    try:
        with idle.crowd(daemon):
            return _measured(daemon, lambda: bench_writer(daemon, "t", 200, seconds), seconds)
    finally:
        daemon.remove()


def start(topics: int, channels: int) -> Callable[[str, float], Result]:
    """Milliseconds from the start of the process, on topics that are there, to its answer to /ping; of several."""

    def load(name: str, _: float) -> Result:
        daemon = Nsqd(name)
        try:
            daemon.restart_with(topics, channels)
            return Result(statistics.median(_start_ms(daemon) for _ in range(STARTS)))
        finally:
            daemon.remove()

    return load


def _start_ms(daemon: Nsqd) -> float:
    daemon.stop()
    began = time.perf_counter()
    daemon.start()
    daemon.ping()
    return (time.perf_counter() - began) * 1e3


LOADS: dict[str, tuple[str, Callable[[str, float], Result]]] = {
    "mpub200": ("MPUB of 200", publish(200)),
    "mpub10": ("MPUB of 10", publish(10)),
    "single": ("one message a command", publish(1)),
    "sub": ("SUB + FIN, RDY 2500, 3 M queued", consume(200, 3_000_000, IN_MEMORY)),
    "sub-single": ("the same, published one by one", consume(1, 250_000, IN_MEMORY)),
    "fanout": ("fan-out to 10 channels", fan_out),
    "disk": ("backlog on disk, mem-queue-size 10000", consume(200, 2_000_000, ON_DISK, seconds_max=60)),
    "memory": ("RSS bytes a queued message", memory),
    "latency": ("p99 ms publish to deliver, 5,000/s", latency_p99),
    "idle": ("% of a core, idle crowd", idle_cpu),
    "calm": ("MPUB of 200, mem-queue-size 10000", publish(200, ON_DISK)),
    "busy": ("the same beside the crowd", busy_beside_idle),
    "start": ("ms from start to /ping, empty", start(0, 0)),
    "start-topics": ("the same with 1,000 topics of 5 channels", start(1_000, 5)),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=1.5)
    arguments.add_argument("--attempts", type=int, default=4)
    arguments.add_argument("loads", nargs="*", metavar="load", help=f"of {', '.join(LOADS)}; all without")
    given = arguments.parse_args()
    unknown = set(given.loads) - set(LOADS)
    if unknown:
        arguments.error(f"no such load: {', '.join(sorted(unknown))}")
    print("| load | ours | Go | ratio | ours CPU s/M | Go CPU s/M | ratio | disturbed | by cores |")
    print("|---|---|---|---|---|---|---|---|---|")
    for key in given.loads or LOADS:
        title, load = LOADS[key]
        results: dict[str, list[Result]] = {"ours": [], "go": []}
        for number in range(given.rounds):
            for name in ("ours", "go") if number % 2 else ("go", "ours"):
                results[name].append(_undisturbed(load, name, given.seconds, given.attempts))
        print(_row(title, results["ours"], results["go"]), flush=True)


def _undisturbed(load: Callable[[str, float], Result], name: str, seconds: float, attempts: int) -> Result:
    """The first measurement during which others left the machine alone, else the one that they disturbed least."""
    least: Result | None = None
    for _ in range(attempts):
        watch = Watch()
        result = load(name, seconds)
        result = result._replace(foreign_cores=watch.foreign_cores())
        if least is None or result.foreign_cores < least.foreign_cores:
            least = result
        if least.foreign_cores <= FOREIGN_CORES_MAX:
            break
    assert least is not None
    return least


def _row(title: str, ours: list[Result], go: list[Result]) -> str:
    cells = [title, *_compared([one.rate for one in ours], [one.rate for one in go])]
    cells += _compared([one.cpu for one in ours if one.cpu], [one.cpu for one in go if one.cpu])
    disturbances = [one.foreign_cores for one in ours + go]
    disturbed = sum(cores > FOREIGN_CORES_MAX for cores in disturbances)
    cells += [f"{disturbed} of {len(disturbances)}", f"{max(disturbances):.2f}"]
    return f"| {' | '.join(cells)} |"


def _compared(ours: list[float], go: list[float]) -> list[str]:
    if not ours or not go:
        return ["", "", ""]
    mine, theirs = statistics.median(ours), statistics.median(go)
    return [_short(mine), _short(theirs), f"{mine / theirs:.2f}"]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


if __name__ == "__main__":
    main()
