"""Daemons under test: started on ports of the system's choice, found by their log lines, ended by their pid."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from blackbox.diskqueue import write_nsqd_dat
from blackbox.fakes import FakeLookupd
from blackbox.http import Response, request
from blackbox.wire import PATIENCE_SECONDS, Address, Conn, wait_until

# Where util-linux is at hand, a daemon does not outlive a test run that is killed.
DIES_WITH_THE_RUN = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
LISTENING = re.compile(r"(TCP|HTTP|HTTPS): listening on (\S+)")


class Implementation(NamedTuple):
    """Where the executables of one implementation are."""

    name: str
    folder: Path


class Daemon:
    """One running process and its log."""

    program = ""
    loopback: tuple[str, ...] = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")

    def __init__(self, impl: Implementation, folder: Path, flags: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.impl = impl
        self.folder = folder
        self.log_path = folder.parent / f"{folder.name}.{self.program}.{time.monotonic_ns()}.log"
        # Flags repeated later win in both implementations.
        command = [*DIES_WITH_THE_RUN, str(impl.folder / self.program), *self.loopback, *flags]
        with self.log_path.open("wb") as log:
            # A group of its own shows at the end whether a child was left behind.
            self.process = subprocess.Popen(
                command, cwd=folder.parent, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )

    @property
    def log(self) -> str:
        """Everything written to stderr so far."""
        return self.log_path.read_text(errors="replace")

    @property
    def listeners(self) -> dict[str, str]:
        """Addresses by protocol, as the log tells them."""
        return dict(LISTENING.findall(self.log))

    def await_listening(self, *protocols: str) -> None:
        """Until the log names an address for each protocol."""
        wait_until(lambda: set(protocols) <= set(self.listeners) or self.process.poll() is not None)
        assert self.process.poll() is None, f"{self.program} ended with {self.process.returncode}:\n{self.log}"

    def address(self, protocol: str) -> Address:
        """Where to connect to."""
        text = self.listeners[protocol]
        host, colon, port = text.rpartition(":")
        return (host, int(port)) if colon and port.isdigit() else text

    def port(self, protocol: str) -> int:
        """The real port."""
        address = self.address(protocol)
        assert isinstance(address, tuple)
        return address[1]

    @property
    def http_address(self) -> str:
        """host:port of the HTTP side, as flags of other daemons want it."""
        return self.listeners["HTTP"]

    @property
    def tcp_address(self) -> str:
        """host:port of the TCP side."""
        return self.listeners["TCP"]

    def http(self, method: str, target: str, body: bytes | None = None, **headers: str) -> Response:
        """One request on a connection of its own."""
        return request(self.address("HTTP"), method, target, body, headers)

    def get(self, target: str) -> Any:
        """The JSON of a GET that succeeds."""
        answer = self.http("GET", target)
        assert answer.status == 200, answer
        return json.loads(answer.body)

    def post(self, target: str, body: bytes | None = None) -> None:
        """A POST that succeeds."""
        answer = self.http("POST", target, body)
        assert answer.status == 200, answer

    def wait(self, patience: float = PATIENCE_SECONDS) -> int:
        """The exit code; a process that does not end is killed and fails the test."""
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.program} did not end:\n{self.log}") from None
        assert not self._group_lives(), f"{self.program} left a child behind"
        return code

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        """End it as an operator does; its exit code."""
        if self.process.poll() is None:
            if self.impl.name == "go" and "HTTP" in self.listeners:
                wait_until(self._hears_signals)
            self.process.send_signal(by)
        return self.wait()

    def _hears_signals(self) -> bool:
        """Go's daemons listen a moment before they look after signals, which end them without a word until then."""
        answer = self.http("GET", "/debug/pprof/goroutine?debug=1")
        return answer.status != 200 or b"os/signal.loop" in answer.body

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        wait_until(lambda: not self._group_lives())

    def _group_lives(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True


class Nsqd(Daemon):
    """A broker on its own data path."""

    program = "nsqd"
    loopback = (*Daemon.loopback, "--https-address=127.0.0.1:0")
    # Connections as old as the process, one silent and one that published: the first heartbeat takes 30 s.
    early_birds: tuple[Conn, Conn]
    # A directory that the process has pinged since its start.
    directory: FakeLookupd

    def __init__(self, impl: Implementation, folder: Path, flags: Sequence[str] = (), *, ripe: int = 0) -> None:
        # Go's nsqd looks after the deadlines of a new channel up to 5 s late (D11), but at once after those it
        # finds at its start. Tests of time-outs and delays take such channels, so that they need not wait.
        self._ripe = [f"ripe{number}" for number in range(ripe)]
        if ripe:
            write_nsqd_dat(folder, {topic: ["ch"] for topic in self._ripe})
        super().__init__(impl, folder, [f"--data-path={folder}", *flags])

    def take_ripe(self) -> str:
        """A topic that no other test has, with a channel "ch" that was there at the start."""
        return self._ripe.pop()

    def connect(self, *, magic: bytes = b"  V2") -> Conn:
        """A new connection."""
        return Conn(self.address("TCP"), magic=magic)

    def stats(self, **query: str) -> dict[str, Any]:
        """The JSON of /stats."""
        answer: dict[str, Any] = self.get("/stats?format=json" + "".join(f"&{key}={query[key]}" for key in query))
        return answer

    def topic(self, topic: str) -> dict[str, Any]:
        """What /stats says of a topic."""
        topics = self.stats(topic=topic)["topics"]
        assert topics, f"no topic {topic}"
        found: dict[str, Any] = topics[0]
        return found

    def channel(self, topic: str, channel: str) -> dict[str, Any]:
        """What /stats says of a channel."""
        for found in self.topic(topic)["channels"]:
            if found["channel_name"] == channel:
                answer: dict[str, Any] = found
                return answer
        raise AssertionError(f"no channel {channel} in {topic}")

    def topic_names(self) -> set[str]:
        """All topics."""
        return {topic["topic_name"] for topic in self.stats()["topics"]}

    def channel_names(self, topic: str) -> set[str]:
        """All channels of a topic."""
        return {channel["channel_name"] for channel in self.topic(topic)["channels"]}


class Nsqlookupd(Daemon):
    """A directory."""

    program = "nsqlookupd"

    def connect(self, *, magic: bytes = b"  V1") -> Conn:
        """A new connection; replies carry no frame type, so read them raw."""
        return Conn(self.address("TCP"), magic=magic)
