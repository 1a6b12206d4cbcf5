"""Real nsqds and nsqlookupds, of Go's make or ours, on ports that the system chose."""

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from struct import pack
from typing import Any, NamedTuple

from pyspark_nsq.connector.discovery import ChannelStats, TopicStats, fetch_stats
from pyspark_nsq.connector.settings import Address, HttpAddress, Security

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 20.0
PORT_TIMEOUT_S = 60.0
_PORT_PAUSE_S = 0.1
_LISTENING = re.compile(r"(TCP|HTTPS?): listening on (.+):(\d+)\s*$")


class Implementation(NamedTuple):
    """Whose executables a test uses, and the folder they are in."""

    name: str
    folder: Path


def own_brokers() -> Implementation:
    """Ours, beside the Python that runs, or in the folder that NSQ_OURS_BIN names."""
    return Implementation("ours", Path(os.environ.get("NSQ_OURS_BIN") or Path(sys.executable).parent))


class Daemon:
    """A process that says on standard error where it listens. It can be killed and started again at the same place."""

    program = ""
    # The address at which it listens, and which it tells others.
    host = "127.0.0.1"

    def __init__(self, impl: Implementation, flags: Sequence[str], expected: Sequence[str]) -> None:
        self._command = [str(impl.folder / self.program), *flags]
        self._expected = set(expected)
        self.ports: dict[str, int] = {}
        self.output: list[str] = []
        self._start()

    def _start(self) -> None:
        fixed = [f"-{name.lower()}-address={self.host}:{self.ports.get(name, 0)}" for name in sorted(self._expected)]
        self.process = subprocess.Popen([*self._command, *fixed], stderr=subprocess.PIPE, text=True, bufsize=1)
        self._heard: set[str] = set()
        self._heard_all = threading.Event()
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()
        has_heard = self._heard_all.wait(START_TIMEOUT_S) and self._heard >= self._expected
        if not has_heard or self.process.poll() is not None:
            self.kill()
            raise AssertionError(f"{self._command} did not start:\n" + "".join(self.output[-30:]))

    def _read_output(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.output.append(line)
            if match := _LISTENING.search(line):
                self.ports[match[1]] = int(match[3])
                self._heard.add(match[1])
                if self._heard >= self._expected:
                    self._heard_all.set()
        self.process.stderr.close()
        self._heard_all.set()

    @property
    def tcp(self) -> str:
        return f"{self.host}:{self.ports['TCP']}"

    @property
    def http(self) -> str:
        return f"{self.host}:{self.ports['HTTP']}"

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it without a warning."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)
        self._reader.join(STOP_TIMEOUT_S)

    def restart(self) -> None:
        """Start it again after a stop or kill, with the same ports and flags."""
        assert self.process.poll() is not None, "stop or kill it first"
        deadline = time.monotonic() + PORT_TIMEOUT_S
        while True:
            heard = len(self.output)
            try:
                self._start()
            except AssertionError:
                # A connection of somebody else's may begin at that port meanwhile, until it ends.
                is_taken = any("address already in use" in line.lower() for line in self.output[heard:])
                if not is_taken or time.monotonic() > deadline:
                    raise
                time.sleep(_PORT_PAUSE_S)
            else:
                return

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=10) as response:
            content: bytes = response.read()
        return content

    def post(self, path: str, body: bytes = b"") -> bytes:
        with urllib.request.urlopen(f"http://{self.http}{path}", body, timeout=30) as response:
            content: bytes = response.read()
        return content


class Lookupd(Daemon):
    program = "nsqlookupd"

    def __init__(self, impl: Implementation, flags: Sequence[str] = ()) -> None:
        super().__init__(impl, ["-broadcast-address=127.0.0.1", *flags], ["TCP", "HTTP"])

    def producers(self, topic: str) -> list[str]:
        """The TCP addresses of the nsqds that have the topic."""
        try:
            answer = json.loads(self.get(f"/lookup?topic={topic}"))
        except urllib.error.HTTPError:
            return []
        return [f"{each['broadcast_address']}:{each['tcp_port']}" for each in answer["producers"]]


class Nsqd(Daemon):
    program = "nsqd"

    def __init__(
        self, impl: Implementation, folder: Path, lookupds: Iterable[Lookupd] = (), flags: Sequence[str] = ()
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        known = [f"-lookupd-tcp-address={lookupd.tcp}" for lookupd in lookupds]
        super().__init__(
            impl, [f"-broadcast-address={self.host}", f"-data-path={folder}", *known, *flags], ["TCP", "HTTP"]
        )

    def register_at(self, lookupds: Sequence[str]) -> None:
        """From now on at these, and at no others."""
        target = f"http://{self.http}/config/nsqlookupd_tcp_addresses"
        request = urllib.request.Request(target, json.dumps(lookupds).encode(), method="PUT")
        urllib.request.urlopen(request, timeout=10).close()

    def publish(self, topic: str, bodies: Sequence[bytes], portion: int = 5_000) -> None:
        for first in range(0, len(bodies), portion):
            part = bodies[first : first + portion]
            packed = b"".join(pack(">I", len(body)) + body for body in part)
            self.post(f"/mpub?topic={topic}&binary=true", pack(">I", len(part)) + packed)

    def make_channel(self, topic: str, channel: str) -> None:
        self.post(f"/topic/create?topic={topic}")
        self.post(f"/channel/create?topic={topic}&channel={channel}")

    def stats(self, topic: str, channel: str) -> TopicStats | None:
        address = HttpAddress(Address(self.host, self.ports["HTTP"]))
        return fetch_stats(address, topic, channel, 10, Security())

    def channel_stats(self, topic: str, channel: str) -> ChannelStats | None:
        found = self.stats(topic, channel)
        return found.channel if found else None

    def raw_stats(self) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = json.loads(self.get("/stats?format=json"))
        return answer

    def raw_counts(self, topic: str, channel: str) -> Mapping[str, Any]:
        """All that nsqd says of a channel."""
        (found,) = [entry for entry in self.raw_stats()["topics"] if entry["topic_name"] == topic]
        return next(entry for entry in found["channels"] if entry["channel_name"] == channel)

    def unfinished_everywhere(self) -> int:
        """Messages that any channel, or a topic without one, still owes somebody."""
        topics = self.raw_stats()["topics"]
        channels = [channel for topic in topics for channel in topic["channels"] or []]
        keys = ("depth", "in_flight_count", "deferred_count")
        return sum(int(topic["depth"]) for topic in topics) + sum(int(each[key]) for each in channels for key in keys)

    def message_count(self, topic: str) -> int:
        """How many messages the topic ever got."""
        topics = self.raw_stats()["topics"]
        return next((int(entry["message_count"]) for entry in topics if entry["topic_name"] == topic), 0)

    def unfinished(self, topic: str, channel: str) -> int:
        """Messages the channel still owes somebody: waiting, in flight and deferred, and those still in the topic."""
        found = self.stats(topic, channel)
        if found is None:
            return 0
        counts = found.channel
        return found.depth + (counts.depth + counts.in_flight + counts.deferred if counts else 0)

    def connections(self) -> int:
        """How many clients, consumers and producers, are connected."""
        answer = self.raw_stats()
        consumers = sum(
            len(channel["clients"] or []) for topic in answer["topics"] for channel in topic["channels"] or []
        )
        return consumers + len(answer["producers"] or [])


def wait_until(look: Callable[[], Any], what: str, timeout_s: float = 90.0) -> Any:
    """The first true answer of ``look``; an assertion naming ``what`` if none comes in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s in vain: {what}"
        time.sleep(0.02)
