"""nsqd of this project beside Go's, under the load of Go's own bench_writer and bench_reader.

    NSQ_GO_BIN=/folder/with/go/binaries python benchmarks/broker/run.py [--rounds 5] [--seconds 1.5] [load ...]

Each round measures both, in turns of changing order; the table shows the medians: messages a second, and the CPU
seconds that the daemon took for a million messages, which the load generator's own appetite does not blur. Ours runs
with its durability on: what is acknowledged is written.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import idle
import latency
from daemons import Nsqd, bench_writer, fill, start_reader

IN_MEMORY = "--mem-queue-size=100000000"


class Result(NamedTuple):
    """``rate`` is messages a second unless the load says otherwise; ``cpu`` seconds for a million messages."""

    rate: float
    cpu: float | None = None


def _measured(daemon: Nsqd, work: Callable[[], float], seconds: float) -> Result:
    before = daemon.cpu_seconds()
    rate = work()
    return Result(rate, (daemon.cpu_seconds() - before) / (rate * seconds) * 1e6)


def publish(batch: int) -> Callable[[str, float], Result]:
    def load(name: str, seconds: float) -> Result:
        daemon = Nsqd(name, IN_MEMORY)
        try:
            bench_writer(daemon, "t", batch, 0.2)
            return _measured(daemon, lambda: bench_writer(daemon, "t", batch, seconds), seconds)
        finally:
            daemon.remove()

    return load


def consume(batch: int, count: int, *flags: str) -> Callable[[str, float], Result]:
    """Take from a queue that is filled first: all of it, or what can be taken in the time."""

    def load(name: str, seconds: float) -> Result:
        daemon = Nsqd(name, *flags)
        try:
            daemon.create("t", "c")
            fill(daemon, "t", count, batch)
            return _drained(daemon, ["c"], seconds)
        finally:
            daemon.remove()

    return load


def _drained(daemon: Nsqd, channels: list[str], seconds: float) -> Result:
    """Consume on all channels at once until all are empty, at most ``seconds``."""
    before, started = daemon.cpu_seconds(), time.monotonic()
    waiting = _waiting(daemon)
    readers = [start_reader(daemon, "t", channel, seconds) for channel in channels]
    try:
        while (left := _waiting(daemon)) > 0 and any(reader.poll() is None for reader in readers):
            time.sleep(0.02)
    finally:
        took = time.monotonic() - started
        cpu = daemon.cpu_seconds() - before
        for reader in readers:
            reader.kill()
            reader.wait()
    done = waiting - left
    return Result(done / took, cpu / done * 1e6)


def _waiting(daemon: Nsqd) -> int:
    stats = daemon.stats("t")
    return stats["depth"] + sum(channel["depth"] + channel["in_flight_count"] for channel in stats["channels"])


def fan_out(name: str, _: float) -> Result:
    """Publish to a topic with ten channels and consume all: messages that came out a second."""
    daemon = Nsqd(name, IN_MEMORY)
    channels = [f"c{number}" for number in range(10)]
    try:
        daemon.create("t", *channels)
        before, started = daemon.cpu_seconds(), time.monotonic()
        messages = fill(daemon, "t", 200_000) * len(channels)
        _drained(daemon, channels, 60)
        took = time.monotonic() - started
        return Result(messages / took, (daemon.cpu_seconds() - before) / messages * 1e6)
    finally:
        daemon.remove()


def memory(name: str, _: float) -> Result:
    """Bytes of memory for a queued message of 200 bytes."""
    daemon = Nsqd(name, IN_MEMORY)
    try:
        daemon.create("t", "c")
        before = daemon.rss_bytes()
        count = fill(daemon, "t", 1_000_000)
        time.sleep(1)
        return Result((daemon.rss_bytes() - before) / count)
    finally:
        daemon.remove()


def latency_p99(name: str, seconds: float) -> Result:
    """Milliseconds from publish to delivery, 99th percentile, at 5,000 messages a second."""
    daemon = Nsqd(name, IN_MEMORY)
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
    """MPUB of 200 with the same idle crowd connected."""
    daemon = Nsqd(name, IN_MEMORY)
    try:
        with idle.crowd(daemon):
            return _measured(daemon, lambda: bench_writer(daemon, "t", 200, seconds), seconds)
    finally:
        daemon.remove()


LOADS: dict[str, tuple[str, Callable[[str, float], Result]]] = {
    "mpub200": ("MPUB of 200", publish(200)),
    "mpub10": ("MPUB of 10", publish(10)),
    "single": ("one message a command", publish(1)),
    "sub": ("SUB + FIN, RDY 2500", consume(200, 2_000_000, IN_MEMORY)),
    "sub-single": ("the same, published one by one", consume(1, 200_000, IN_MEMORY)),
    "fanout": ("fan-out to 10 channels", fan_out),
    "disk": ("backlog on disk, mem-queue-size 10000", consume(200, 2_000_000, "--mem-queue-size=10000")),
    "memory": ("RSS bytes a queued message", memory),
    "latency": ("p99 ms publish to deliver, 5,000/s", latency_p99),
    "idle": ("% of a core, idle crowd", idle_cpu),
    "busy": ("MPUB of 200 beside the crowd", busy_beside_idle),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=1.5)
    arguments.add_argument("loads", nargs="*", metavar="load", help=f"of {', '.join(LOADS)}; all without")
    given = arguments.parse_args()
    unknown = set(given.loads) - set(LOADS)
    if unknown:
        arguments.error(f"no such load: {', '.join(sorted(unknown))}")
    print("| load | ours | Go | ratio | ours CPU s/M | Go CPU s/M | ratio |\n|---|---|---|---|---|---|---|")
    for key in given.loads or LOADS:
        title, load = LOADS[key]
        results: dict[str, list[Result]] = {"ours": [], "go": []}
        for number in range(given.rounds):
            for name in ("ours", "go") if number % 2 else ("go", "ours"):
                results[name].append(load(name, given.seconds))
        print(_row(title, results["ours"], results["go"]), flush=True)


def _row(title: str, ours: list[Result], go: list[Result]) -> str:
    cells = [title, *_compared([one.rate for one in ours], [one.rate for one in go])]
    cells += _compared([one.cpu for one in ours if one.cpu], [one.cpu for one in go if one.cpu])
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
