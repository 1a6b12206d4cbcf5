"""Two nsqds to compare, and Go's bench_writer and bench_reader to load them with."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rig.nsqd import folder_of

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
START_SECONDS_MAX = 60.0
_OPS = re.compile(r"([\d.]+)ops/s")


class Nsqd:
    """A running nsqd on ports of its own, with a data path of its own."""

    def __init__(self, name: str, *flags: str) -> None:
        self.name = name
        self.folder = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
        self.binary = str(folder_of(name) / "nsqd")
        self._flags = flags
        self.start()

    def start(self) -> None:
        self._log = (self.folder / "log").open("w+")
        addresses = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={self.folder}"]
        self._process = subprocess.Popen([self.binary, *addresses, *self._flags], stderr=self._log)
        self.tcp = self._address("TCP")
        self.http = self._address("HTTP")

    def _address(self, kind: str) -> str:
        end = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < end:
            found = re.search(rf"\b{kind}: listening on (\S+)", (self.folder / "log").read_text())
            if found:
                return found[1]
            if self._process.poll() is not None:
                break
            time.sleep(0.01)
        sys.exit(f"{self.binary} does not start:\n{(self.folder / 'log').read_text()}")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        self._log.close()

    def kill(self) -> None:
        """End it without a warning."""
        self._process.kill()
        self._process.wait(60)
        self._log.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def post(self, path: str) -> None:
        request = urllib.request.Request(f"http://{self.http}{path}", method="POST", data=b"")
        urllib.request.urlopen(request, timeout=30).read()

    def ping(self) -> None:
        """Until /ping has been answered."""
        with urllib.request.urlopen(f"http://{self.http}/ping", timeout=60) as answer:
            assert answer.read() == b"OK"

    def restart_with(self, topics: int, channels: int) -> None:
        """On so many topics, each with so many channels, as both brokers keep them."""
        self.stop()
        names = [{"name": f"c{number}", "paused": False} for number in range(channels)]
        known = [{"name": f"topic{number}", "paused": False, "channels": names} for number in range(topics)]
        (self.folder / "nsqd.dat").write_text(json.dumps({"topics": known, "version": "1.3.0"}))
        self.start()

    def stats(self, topic: str) -> dict:
        url = f"http://{self.http}/stats?format=json&topic={topic}&include_clients=false"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["topics"][0]

    def create(self, topic: str, *channels: str) -> None:
        self.post(f"/topic/create?topic={topic}")
        for channel in channels:
            self.post(f"/channel/create?topic={topic}&channel={channel}")


def bench_writer(daemon: Nsqd, topic: str, batch: int, seconds: float, size: int = 200) -> float:
    """Messages a second of Go's bench_writer."""
    return _ops(
        "bench_writer",
        f"--nsqd-tcp-address={daemon.tcp}",
        f"--topic={topic}",
        f"--batch-size={batch}",
        f"--runfor={seconds}s",
        f"--size={size}",
    )


def _ops(program: str, *flags: str) -> float:
    done = subprocess.run([folder_of("go") / program, *flags], capture_output=True, text=True, check=False)
    found = _OPS.search(done.stderr + done.stdout)
    if not found:
        sys.exit(f"{program} {' '.join(flags)} has failed:\n{done.stderr[-2000:]}")
    return float(found[1])


def fill(daemon: Nsqd, topic: str, count: int, batch: int = 200) -> int:
    """Publish until at least ``count`` messages are there; how many there are."""
    while (have := daemon.stats(topic)["message_count"]) < count:
        bench_writer(daemon, topic, batch, 0.5)
    return have


def start_reader(daemon: Nsqd, topic: str, channel: str, seconds: float) -> "subprocess.Popen[bytes]":
    """A bench_reader that runs on while something else is measured."""
    flags = [f"--nsqd-tcp-address={daemon.tcp}", f"--topic={topic}", f"--channel={channel}", f"--runfor={seconds}s"]
    return subprocess.Popen([folder_of("go") / "bench_reader", *flags], stderr=subprocess.DEVNULL)


def start_light_reader(daemon: Nsqd, topic: str, channels: list[str]) -> "subprocess.Popen[bytes]":
    """One process that consumes all channels at little cost (see reader.py) until it is killed."""
    program = Path(__file__).parent / "reader.py"
    return subprocess.Popen([sys.executable, program, daemon.tcp, topic, *channels], stderr=subprocess.DEVNULL)
