"""What 20 million queued messages cost: memory while they are published, wait, are read; the time of a start on them.

    NSQ_GO_BIN=/folder/with/go/binaries python benchmarks/broker/disk_backlog.py [--messages 20000000] [--only ours]

200 bytes a message, ``--mem-queue-size=10000``, two channels of which one never reads. About 5 GB of disk are needed.
Each line is a moment: the memory nsqd has then, the most it had since the line before, and its files. The exit code is
1 where ours ever had more than 300 MB.
"""

import argparse
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from daemons import Nsqd, bench_writer, start_reader

TOPIC, READ, NEVER_READ = "t", "read", "never-read"
_MIB = 1024 * 1024
_ALLOWED_BYTES = 300_000_000


def report(daemon: Nsqd, moment: str) -> float:
    """One line; the peak, in MiB, begins anew."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    now, peak = (int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) / 1024 for name in ("VmRSS", "VmHWM"))
    disk = sum(path.stat().st_size for path in daemon.folder.rglob("*") if path.is_file()) / _MIB
    print(f"{daemon.name:5} {moment:48} {now:7.0f} MiB now {peak:7.0f} MiB at most {disk:7.0f} MiB on disk", flush=True)
    Path(f"/proc/{daemon.pid}/clear_refs").write_text("5")
    return peak


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


def measure(daemon: Nsqd, count: int, seconds: float) -> Iterator[str]:
    """Names each moment when it has come."""
    daemon.create(TOPIC, READ, NEVER_READ)
    yield "started"
    began = time.monotonic()
    publish(daemon, count)
    yield f"published {count:,} ({time.monotonic() - began:.2f} s)"
    consume(daemon, seconds)
    yield f"read for {seconds:g} s"
    for moment, end in (("stop", daemon.stop), ("kill -9", daemon.kill)):
        end()
        began = time.monotonic()
        daemon.start()
        daemon.ping()
        yield f"started after a {moment}, /ping after {time.monotonic() - began:.2f} s"
    consume(daemon, seconds)
    yield f"read for {seconds:g} s after the start"


def main() -> None:
    parser = argparse.ArgumentParser(description="The memory that a backlog on disk takes.")
    parser.add_argument("--messages", type=int, default=20_000_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="of reading")
    parser.add_argument("--only", choices=("go", "ours"), default="ours")
    asked = parser.parse_args()
    daemon = Nsqd(asked.only, "--mem-queue-size=10000")
    try:
        peak = max(report(daemon, moment) for moment in measure(daemon, asked.messages, asked.seconds))
    finally:
        daemon.remove()
    if asked.only == "ours" and peak * _MIB > _ALLOWED_BYTES:
        sys.exit(f"ours had {peak:.0f} MiB, more than {_ALLOWED_BYTES / _MIB:.0f}")


if __name__ == "__main__":
    main()
