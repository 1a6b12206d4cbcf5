"""An nsqd that may be killed at any moment, also while it starts, and is started again on the same data path."""

import asyncio
import contextlib
import http.client
import json
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rig.daemons import Implementation
from rig.processes import forget_peak_memory, memory_bytes, peak_memory_bytes

from pyspark_nsq.broker.journal import FILE_NAME as STATE_FILE

# Machines that run all tests at once may take very long.
START_S_MAX = 120.0
STOP_S_MAX = 30.0
_LISTENING = re.compile(r"\b(TCP|HTTP): listening on (\S+):(\d+)")
# Where util-linux is at hand, no broker outlives a run that is killed.
_DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


class Victim:
    """Its ports are new with each start."""

    def __init__(
        self,
        impl: Implementation,
        folder: Path,
        flags: Sequence[str] = (),
        data_path: Path | None = None,
        program: Sequence[str] = (),
    ) -> None:
        self.data_path = data_path or folder / "data"
        self.data_path.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / "nsqd.log"
        self.ports: dict[str, int] = {}
        addresses = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", "--broadcast-address=127.0.0.1"]
        command = program or [str(impl.folder / "nsqd")]
        self._command = [*_DIES_WITH_US, *command, *addresses, f"--data-path={self.data_path}", *flags]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        """What it has said since its last start."""
        return self.log_path.read_text(errors="replace")

    @property
    def tcp(self) -> tuple[str, int]:
        return "127.0.0.1", self.ports["TCP"]

    def launch(self) -> None:
        """Start it and do not wait."""
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    async def start(self) -> None:
        """Until it listens."""
        self.launch()
        deadline = asyncio.get_running_loop().time() + START_S_MAX
        while True:
            found = {kind: int(port) for kind, _, port in _LISTENING.findall(self.log)}
            if len(found) == 2:
                self.ports = found
                return
            ended = self.process.poll() is not None
            if ended or asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"nsqd did not start:\n{self.log[-3000:]}")
            await asyncio.sleep(0.01)

    def kill(self) -> None:
        """End it without a warning, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(STOP_S_MAX)

    async def stop(self) -> None:
        """End it as an operator does."""
        self.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(self.process.wait, STOP_S_MAX)
        assert code == 0, f"nsqd ended with {code}:\n{self.log[-3000:]}"

    def ping(self) -> int:
        """The status of /ping."""
        try:
            self.http("GET", "/ping")
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    def http(self, method: str, target: str, body: bytes | None = None) -> bytes:
        """One request, without the event loop; an HTTPError where it is refused."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports['HTTP']}{target}", body, method=method)
        with urllib.request.urlopen(request, timeout=START_S_MAX) as answer:
            content: bytes = answer.read()
        return content

    def post_all(self, targets: Sequence[str]) -> None:
        """POST to each over one connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["HTTP"], timeout=START_S_MAX)
        with contextlib.closing(connection):
            for target in targets:
                connection.request("POST", target)
                answer = connection.getresponse()
                assert answer.status == 200, (target, answer.status, answer.read())
                answer.read()

    async def get(self, target: str) -> bytes:
        return await asyncio.to_thread(self.http, "GET", target)

    async def post(self, target: str, body: bytes = b"") -> bytes:
        return await asyncio.to_thread(self.http, "POST", target, body)

    async def topics(self) -> list[dict[str, Any]]:
        answer = json.loads(await self.get("/stats?format=json&include_clients=false&include_mem=false"))
        found: list[dict[str, Any]] = answer["topics"] or []
        return found

    async def make_channels(self, names: Sequence[tuple[str, str]]) -> None:
        for topic in sorted({topic for topic, _ in names}):
            await self.post(f"/topic/create?topic={topic}")
        for topic, channel in names:
            await self.post(f"/channel/create?topic={topic}&channel={channel}")

    async def owed(self) -> int:
        """Messages that somebody has still to get or to finish."""
        keys = ("depth", "in_flight_count", "deferred_count")
        topics = await self.topics()
        waiting = sum(int(topic["depth"]) for topic in topics)
        return waiting + sum(int(channel[key]) for topic in topics for channel in topic["channels"] for key in keys)

    @property
    def message_bytes(self) -> int:
        """What its logs take. The states of channels beside them are rewritten at some size, whoever is owed what."""
        files = (path for path in self.data_path.rglob("*") if path.is_file())
        return sum(path.stat().st_size for path in files if path.name != STATE_FILE)

    @property
    def growth(self) -> "Growth":
        """How much larger it gets from now on."""
        return Growth(self.process.pid)


class Growth:
    def __init__(self, pid: int) -> None:
        self._pid = pid
        forget_peak_memory(pid)
        self._before = memory_bytes(pid)

    def check(self, limit_mib: float, sent_bytes: float, what: str) -> None:
        """``sent_bytes`` is what it would have grown by if it had kept all that it was given."""
        grown_mib, sent_mib = (peak_memory_bytes(self._pid) - self._before) / 2**20, sent_bytes / 2**20
        assert sent_mib > limit_mib, f"{sent_mib:.0f} MiB sent do not show that nsqd keeps to {limit_mib:.0f}"
        assert grown_mib < limit_mib, f"nsqd grew by {grown_mib:.0f} MiB, more than {limit_mib:.0f}: {what}"
