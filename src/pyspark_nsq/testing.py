"""A broker for tests and experiments: nsqlookupd and some nsqds as child processes, gone when the block ends::

    from pyspark_nsq.testing import local_nsq

    with local_nsq(nsqds=2) as nsq:
        nsq.publish("orders", [b"one", b"two"])
        stream = spark.readStream.format("nsq").options(**nsq.options, topic="orders", channel="test").load()

For pytest there is a fixture ``nsq`` of the same, and ``make_nsq`` for other settings.
"""

import contextlib
import http.client
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from struct import pack
from typing import Final

from pyspark_nsq.cli.cluster import NOTHING, ChannelCounts, TopicCounts, read_nsqds
from pyspark_nsq.connector.http_json import fetch_json
from pyspark_nsq.connector.settings import Address, HttpAddress, Security

__all__ = ["Daemon", "LocalNsq", "LocalNsqError", "LocalNsqd", "local_nsq"]

_HOST: Final = "127.0.0.1"
_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 20.0
_REQUEST_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.02
# What is kept of a daemon's log.
_LOG_LINES_MAX: Final = 1000
# A portion that is published at once: well below nsqd's limits.
_PORTION_MESSAGES_MAX: Final = 5000
_PORTION_SIZE_MAX: Final = 1_000_000
# What keeps the next out of the log.
_QUIET: Final = re.compile(r"(?<!\S)--?log-level[= ](warn|error|fatal)(?!\S)", re.IGNORECASE)
_LISTENING: Final = re.compile(r"(TCP|HTTP): listening on .+:(\d+)$")

# The daemon gets SIGTERM when whoever started it dies, however that happens.
_TIED_TO_PARENT: Final = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, {int(signal.SIGTERM)})
if os.getppid() != int(sys.argv[1]):
    sys.exit("whoever started this is gone already")
os.execvp(sys.argv[2], sys.argv[2:])
"""


def _own_command(program: str) -> list[str]:
    """Our daemon in this Python, whatever PATH holds."""
    return [sys.executable, "-P", "-c", f"import sys; from pyspark_nsq.launch import {program}; sys.exit({program}())"]


class LocalNsqError(Exception):
    """A daemon did not do what was asked of it; the text ends with the last of its log."""


class Daemon:
    """A child process that listens on loopback. It can be stopped or killed, and started again at the same ports."""

    def __init__(self, name: str, command: Sequence[str], starter: ThreadPoolExecutor) -> None:
        self.name = name
        self._command = list(command)
        self._starter = starter
        self._ports = {"TCP": 0, "HTTP": 0}
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._log: deque[str] = deque(maxlen=_LOG_LINES_MAX)

    def __repr__(self) -> str:
        return f"<{self.name} at {self.tcp_address}, {'running' if self.is_running else 'stopped'}>"

    @property
    def tcp_address(self) -> str:
        return f"{_HOST}:{self._ports['TCP']}"

    @property
    def http_address(self) -> str:
        return f"{_HOST}:{self._ports['HTTP']}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process that runs, or ran last."""
        if self._process is None:
            raise LocalNsqError(f"{self.name} was never started")
        return self._process.pid

    @property
    def log(self) -> list[str]:
        """The last lines that it wrote to standard error."""
        return list(self._log)

    def start(self) -> None:
        """Returns once it listens, at the same ports as the last time."""
        if self.is_running:
            raise LocalNsqError(f"{self.name} is running already")
        addresses = [f"--{name.lower()}-address={_HOST}:{port}" for name, port in self._ports.items()]
        tie = [sys.executable, "-I", "-S", "-c", _TIED_TO_PARENT, str(os.getpid())]
        # In a group of its own, so that Ctrl-C is for us alone: we end it when we have finished with it.
        self._process = self._starter.submit(
            lambda: subprocess.Popen(
                [*tie, *self._command, *addresses],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="backslashreplace",
                process_group=0,
            )
        ).result()
        listens: Future[bool] = Future()
        self._reader = threading.Thread(target=self._read_log, args=(self._process, listens), daemon=True)
        self._reader.start()
        try:
            started = listens.result(_START_TIMEOUT_S)
        except TimeoutError:
            started = False
        if not started:
            self.kill()
            raise LocalNsqError(f"{self.name} did not start:\n{_excerpt(self.log)}")

    def _read_log(self, process: subprocess.Popen[str], listens: Future[bool]) -> None:
        """Keep the log, and tell whether it listens: it does not when it ends before it has said so."""
        assert process.stderr is not None
        awaited = set(self._ports)
        with process.stderr:
            for line in process.stderr:
                self._log.append(line.rstrip("\n"))
                if awaited and (found := _LISTENING.search(line.rstrip())):
                    self._ports[found[1]] = int(found[2])
                    awaited.discard(found[1])
                    if not awaited:
                        listens.set_result(True)
        if awaited:
            listens.set_result(False)

    def stop(self) -> None:
        """End it in order, as SIGTERM does."""
        if self.is_running:
            self._process_now.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process_now.wait(_STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """End it at once, as ``kill -9`` does."""
        if self.is_running:
            self._process_now.kill()
        self._process_now.wait()
        if self._reader is not None:
            self._reader.join(_STOP_TIMEOUT_S)

    @property
    def _process_now(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise LocalNsqError(f"{self.name} was never started")
        return self._process

    def _post(self, path: str, body: bytes = b"") -> None:
        connection = http.client.HTTPConnection(_HOST, self._ports["HTTP"], timeout=_REQUEST_TIMEOUT_S)
        try:
            connection.request("POST", path, body)
            answer = connection.getresponse()
            text = answer.read()
        except OSError as error:
            raise LocalNsqError(f"{self.name} did not answer POST {path}: {error}") from error
        finally:
            connection.close()
        if answer.status != http.HTTPStatus.OK:
            raise LocalNsqError(f"{self.name} answered POST {path} with status {answer.status}: {text[:200]!r}")


class LocalNsqd(Daemon):
    """One of the nsqds."""

    def publish(self, topic: str, bodies: Iterable[bytes | str]) -> int:
        """Returns how many messages it took: all of them."""
        count = 0
        for portion in _portions(bodies):
            self._publish_portion(topic, portion)
            count += len(portion)
        return count

    def _publish_portion(self, topic: str, bodies: Sequence[bytes]) -> None:
        messages = b"".join(pack(">I", len(body)) + body for body in bodies)
        self._post(f"/mpub?topic={_quoted(topic)}&binary=true", pack(">I", len(bodies)) + messages)

    def create_channel(self, topic: str, channel: str) -> None:
        """From now on the channel gets all messages of the topic; the first one also what the topic has kept."""
        self._post(f"/topic/create?topic={_quoted(topic)}")
        self._post(f"/channel/create?topic={_quoted(topic)}&channel={_quoted(channel)}")

    def stats(self, topic: str) -> TopicCounts:
        """What it has of the topic."""
        return _read_stats([self]).get(topic, NOTHING)


class LocalNsq:
    """nsqlookupd and nsqds that run."""

    def __init__(self, lookupd: Daemon, nsqds: Sequence[LocalNsqd], data_path: Path) -> None:
        self.lookupd = lookupd
        self.nsqds = tuple(nsqds)
        self.data_path = data_path
        self._turn = itertools.count()

    @property
    def lookupd_http_address(self) -> str:
        return self.lookupd.http_address

    @property
    def nsqd_tcp_addresses(self) -> list[str]:
        return [nsqd.tcp_address for nsqd in self.nsqds]

    @property
    def nsqd_http_addresses(self) -> list[str]:
        return [nsqd.http_address for nsqd in self.nsqds]

    @property
    def options(self) -> dict[str, str]:
        """For Spark's ``.options(**nsq.options)``, in a source and in a sink: where NSQ is."""
        return {"lookupdHttpAddresses": self.lookupd_http_address, "lookupdPollInterval": "1s"}

    def publish(self, topic: str, bodies: Iterable[bytes | str]) -> int:
        """Publish to the nsqds in turn, and return how many messages that were."""
        count = 0
        for portion in _portions(bodies, -(-_PORTION_MESSAGES_MAX // len(self.nsqds))):
            # Small portions are divided, so that every nsqd has something to do.
            share = -(-len(portion) // len(self.nsqds))
            for first in range(0, len(portion), share):
                nsqd = self.nsqds[next(self._turn) % len(self.nsqds)]
                nsqd.publish(topic, portion[first : first + share])
            count += len(portion)
        return count

    def create_channel(self, topic: str, channel: str) -> None:
        """On every nsqd: from now on the channel gets all messages of the topic."""
        for nsqd in self.nsqds:
            nsqd.create_channel(topic, channel)

    def stats(self, topic: str) -> TopicCounts:
        """What the nsqds that run have of the topic, added up."""
        return _read_stats([nsqd for nsqd in self.nsqds if nsqd.is_running]).get(topic, NOTHING)

    def channel_stats(self, topic: str, channel: str) -> ChannelCounts:
        """What they have of one of its channels."""
        return self.stats(topic).channels.get(channel, ChannelCounts())

    def wait_until_finished(self, topic: str, channel: str, timeout_s: float = 60.0) -> None:
        """Wait until the channel has had every message of the topic and all are finished."""

        def is_finished() -> bool:
            counts = self.stats(topic)
            has = counts.channels.get(channel)
            return has is not None and counts.depth == 0 and has.unfinished == 0

        if not _wait(is_finished, timeout_s):
            raise LocalNsqError(f"after {timeout_s:g} s {topic}/{channel} is not finished: {self.stats(topic)}")

    def _wait_until_registered(self) -> None:
        expected = {nsqd.tcp_address for nsqd in self.nsqds}

        def is_complete() -> bool:
            nodes = fetch_json(_http(self.lookupd), "/nodes", _REQUEST_TIMEOUT_S, Security())
            return expected <= {f"{node['broadcast_address']}:{node['tcp_port']}" for node in nodes["producers"]}

        if not _wait(is_complete, _START_TIMEOUT_S):
            logs = "\n".join(_excerpt(daemon.log) for daemon in (self.lookupd, *self.nsqds))
            raise LocalNsqError(f"an nsqd did not register:\n{logs}")


@contextlib.contextmanager
def local_nsq(
    nsqds: int = 1,
    *,
    data_path: str | Path | None = None,
    nsqd_flags: Sequence[str] = (),
    nsqlookupd_flags: Sequence[str] = (),
    nsqd_command: Sequence[str] | None = None,
    nsqlookupd_command: Sequence[str] | None = None,
) -> Iterator[LocalNsq]:
    """Start nsqlookupd and so many nsqds on free ports; all of them end with the block, or with this process.

    What the nsqds store is in ``data_path`` and stays there; without it, in a folder that is removed in the end. The
    commands name other daemons than ours: ``nsqd_command=["/usr/local/bin/nsqd"]``.
    """
    if nsqds < 1:
        raise ValueError(f"nsqds={nsqds}: there has to be one at least")
    for name, flags in (("nsqd_flags", nsqd_flags), ("nsqlookupd_flags", nsqlookupd_flags)):
        if quiet := _QUIET.search(" ".join(flags)):
            raise ValueError(f"{name}: {quiet[0]}: the ports are read from the log, and need --log-level=info or debug")
    with contextlib.ExitStack() as ending:
        # The system ties a process to the thread that started it: this thread lives as long as the block.
        starter = ending.enter_context(ThreadPoolExecutor(1, "local-nsq"))
        folder = _data_folder(data_path, ending)
        lookupd_flags = [f"--broadcast-address={_HOST}", *nsqlookupd_flags]
        lookupd = Daemon("nsqlookupd", [*(nsqlookupd_command or _own_command("nsqlookupd")), *lookupd_flags], starter)
        _start(lookupd, ending)
        running = []
        for number in range(nsqds):
            place = folder / f"nsqd-{number}"
            place.mkdir(exist_ok=True)
            flags = [
                f"--data-path={place}",
                f"--node-id={number}",
                f"--broadcast-address={_HOST}",
                f"--lookupd-tcp-address={lookupd.tcp_address}",
                *nsqd_flags,
            ]
            nsqd = LocalNsqd(f"nsqd-{number}", [*(nsqd_command or _own_command("nsqd")), *flags], starter)
            _start(nsqd, ending)
            running.append(nsqd)
        nsq = LocalNsq(lookupd, running, folder)
        nsq._wait_until_registered()
        yield nsq


def _start(daemon: Daemon, ending: contextlib.ExitStack) -> None:
    daemon.start()
    ending.callback(daemon.stop)


def _data_folder(data_path: str | Path | None, ending: contextlib.ExitStack) -> Path:
    if data_path is not None:
        folder = Path(data_path).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    folder = Path(tempfile.mkdtemp(prefix="local-nsq-"))
    ending.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _http(daemon: Daemon) -> HttpAddress:
    host, _, port = daemon.http_address.partition(":")
    return HttpAddress(Address(host, int(port)))


def _read_stats(nsqds: Iterable[LocalNsqd]) -> Mapping[str, TopicCounts]:
    cluster = read_nsqds(map(_http, nsqds), _REQUEST_TIMEOUT_S, Security())
    if cluster.failures:
        raise LocalNsqError(str(cluster.failures[0]))
    return cluster.topics


def _portions(bodies: Iterable[bytes | str], messages_max: int = _PORTION_MESSAGES_MAX) -> Iterator[list[bytes]]:
    # Both are iterable, and would become a message for each of their characters.
    if isinstance(bodies, str | bytes | bytearray | memoryview):
        raise TypeError(f"one message is a list of one, as in publish(topic, [{bodies!r:.40}])")
    portion: list[bytes] = []
    size = 0
    for data in map(_encoded, bodies):
        if portion and (len(portion) >= messages_max or size + len(data) > _PORTION_SIZE_MAX):
            yield portion
            portion, size = [], 0
        portion.append(data)
        size += len(data)
    if portion:
        yield portion


def _encoded(body: bytes | str) -> bytes:
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"a message is str or bytes, not {type(body).__name__}: {body!r:.40}")


def _excerpt(lines: list[str]) -> str:
    """How it began, where a usage text may follow, and how it ended."""
    return "\n".join(lines if len(lines) <= 20 else [*lines[:4], "...", *lines[-15:]])


def _quoted(name: str) -> str:
    # The one character of valid names that means something else in an address.
    return name.replace("#", "%23")


def _wait(look: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not look():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
