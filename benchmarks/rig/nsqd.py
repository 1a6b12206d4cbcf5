"""An nsqd for a benchmark, of Go's make or ours."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

MAKES = ("go", "ours")
_FILL_MESSAGES = 5_000
_LISTENING = re.compile(r"(TCP|HTTP): listening on (\S+)")


def folder_of(make: str) -> Path:
    """Where the nsqd of this make is, and Go's bench_writer and bench_reader."""
    if make == "ours":
        return Path(os.environ.get("NSQ_OURS_BIN") or Path(sys.executable).parent)
    folder = os.environ.get("NSQ_GO_BIN")
    if not folder:
        raise SystemExit(
            "set NSQ_GO_BIN to a folder with Go's nsqd, bench_writer and bench_reader; a benchmark with --broker needs "
            "none for --broker ours"
        )
    return Path(folder)


class Nsqd:
    """Runs on ports and in a folder of its own until it is closed.

    It keeps so many messages in memory: past them Go's writes each one to disk, which would be measured.
    """

    def __init__(self, make: str, messages_max: int) -> None:
        executable = folder_of(make) / "nsqd"
        self.folder = Path(tempfile.mkdtemp(prefix=f"bench-{make}-"))
        flags = ["-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0", f"-data-path={self.folder}"]
        flags += [f"-mem-queue-size={messages_max}", "-broadcast-address=127.0.0.1"]
        self._process = subprocess.Popen([executable, *flags], stderr=subprocess.PIPE, text=True)
        ports: dict[str, str] = {}
        assert self._process.stderr is not None
        while {"TCP", "HTTP"} - ports.keys():
            line = self._process.stderr.readline()
            if not line:
                raise SystemExit(f"{executable} did not start")
            if match := _LISTENING.search(line):
                ports[match[1]] = match[2]
        self.tcp, self.http = ports["TCP"], ports["HTTP"]
        # Nobody reads on, and it must not fill up.
        self._drain = subprocess.Popen(["cat"], stdin=self._process.stderr, stdout=subprocess.DEVNULL)

    def post(self, path: str, body: bytes = b"") -> None:
        urllib.request.urlopen(f"http://{self.http}{path}", body, timeout=60).close()

    def reset(self, topic: str) -> None:
        """Begin with an empty topic."""
        try:
            self.post(f"/topic/delete?topic={topic}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
        self.post(f"/topic/create?topic={topic}")

    def fill(self, topic: str, count: int, size: int) -> None:
        """Publish so many messages of one size."""
        packed = (struct.pack(">I", size) + b"x" * size) * _FILL_MESSAGES
        for _ in range(count // _FILL_MESSAGES):
            self.post(f"/mpub?topic={topic}&binary=true", struct.pack(">I", _FILL_MESSAGES) + packed)

    def topic_stats(self, topic: str) -> Any:
        url = f"http://{self.http}/stats?format=json&include_clients=false&topic={topic}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["topics"][0]

    def message_count(self, topic: str) -> int:
        """How many messages the topic ever got."""
        return int(self.topic_stats(topic)["message_count"])

    def unfinished(self, topic: str) -> int:
        """What the only channel of the topic, and the topic itself, still owe somebody."""
        found = self.topic_stats(topic)
        channel = found["channels"][0]
        return int(found["depth"] + channel["depth"] + channel["in_flight_count"])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._drain.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
