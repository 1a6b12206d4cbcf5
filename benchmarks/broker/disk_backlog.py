"""What 20 million queued messages cost: memory while they are published, wait, are read; the time of a start on them.

    NSQ_GO_BIN=/folder/with/go/binaries python benchmarks/broker/disk_backlog.py [--messages 20000000] [--only ours]

200 bytes a message, ``--mem-queue-size=10000``, two channels of which one never reads. About 5 GB of disk are needed.
Each line is a moment: the memory nsqd has then, the most it had since the line before, and its files.
"""

import argparse
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from daemons import Nsqd, bench_writer, start_reader

TOPIC, READ, NEVER_READ = "t", "read", "never-read"
_MIB = 1024 * 1024


def report(daemon: Nsqd, moment: str) -> None:
    """One line; the peak begins anew."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    now, peak = (int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) / 1024 for name in ("VmRSS", "VmHWM"))
    disk = sum(path.stat().st_size for path in daemon.folder.rglob("*") if path.is_file()) / _MIB
    print(f"{daemon.name:5} {moment:48} {now:7.0f} MiB now {peak:7.0f} MiB at most {disk:7.0f} MiB on disk", flush=True)
    Path(f"/proc/{daemon.pid}/clear_refs").write_text("5")


@contextmanager
def timed(daemon: Nsqd, moment: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    report(daemon, f"{moment} ({time.monotonic() - began:.2f} s)")


def publish(daemon: Nsqd, count: int) -> None:
    """Until at least so many messages are queued."""
    while (have := daemon.stats(TOPIC)["message_count"]) < count:
        bench_writer(daemon, TOPIC, 200, 5.0 if count - have > 10_000_000 else 0.5)


def consume(daemon: Nsqd, seconds: float) -> int:
    """Read with Go's bench_reader; how many messages are left."""
    before = _depth(daemon)
    reader = start_reader(daemon, TOPIC, READ, seconds)
    reader.wait()
    left = _depth(daemon)
    print(f"{daemon.name:5} read {(before - left) / seconds:,.0f} messages a second from disk", flush=True)
    return left


def _depth(daemon: Nsqd) -> int:
    channels = {channel["channel_name"]: channel for channel in daemon.stats(TOPIC)["channels"]}
    return int(channels[READ]["depth"])


def measure(name: str, count: int, seconds: float) -> None:
    daemon = Nsqd(name, "--mem-queue-size=10000")
    try:
        daemon.create(TOPIC, READ, NEVER_READ)
        report(daemon, "started")
        with timed(daemon, f"published {count:,}"):
            publish(daemon, count)
        with timed(daemon, f"read for {seconds:g} s"):
            consume(daemon, seconds)
        for moment, end in (("started after a stop", daemon.stop), ("started after kill -9", daemon.kill)):
            end()
            began = time.monotonic()
            daemon.start()
            daemon.ping()
            report(daemon, f"{moment}, /ping after {time.monotonic() - began:.2f} s")
        with timed(daemon, f"read for {seconds:g} s after the start"):
            consume(daemon, seconds)
    finally:
        daemon.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description="The memory that a backlog on disk takes.")
    parser.add_argument("--messages", type=int, default=20_000_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="of reading")
    parser.add_argument("--only", choices=("go", "ours"), default="ours")
    asked = parser.parse_args()
    measure(asked.only, asked.messages, asked.seconds)


if __name__ == "__main__":
    main()
