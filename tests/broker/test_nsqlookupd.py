"""nsqlookupd as a process."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MAGIC = b"  V1"
STARTED = re.compile(r"\[nsqlookupd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: (TCP|HTTP): listening on (\S+)\n")
RUN = [sys.executable, "-c", "import sys; from pyspark_nsq.broker.nsqlookupd import main; sys.exit(main())"]


class Daemon:
    """A running nsqlookupd."""

    def __init__(self, *args: str) -> None:
        command = [*RUN, "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", *args]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.addresses: dict[str, tuple[str, int]] = {}
        self.first_lines: list[str] = []
        while len(self.addresses) < 2:
            line = self.process.stderr.readline()
            assert line, self.first_lines
            self.first_lines.append(line)
            if found := STARTED.fullmatch(line):
                host, _, port = found[2].rpartition(":")
                self.addresses[found[1]] = (host, int(port))

    def connect(self) -> socket.socket:
        return socket.create_connection(self.addresses["TCP"], timeout=60)

    def get(self, target: str) -> Any:
        host, port = self.addresses["HTTP"]
        with urllib.request.urlopen(f"http://{host}:{port}{target}", timeout=60) as answer:
            return json.load(answer)

    def wait(self) -> int:
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    daemon = Daemon()
    yield daemon
    daemon.process.kill()
    daemon.process.wait()


def said(client: socket.socket) -> bytes:
    """One answer, or b"" at the end."""
    size = client.recv(4, socket.MSG_WAITALL)
    return client.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL) if size else b""


def identified(daemon: Daemon) -> tuple[socket.socket, Any]:
    client = daemon.connect()
    body = json.dumps({"broadcast_address": "b", "tcp_port": 1, "http_port": 2, "version": "1.3.0"}).encode()
    client.sendall(MAGIC + b"IDENTIFY\n" + len(body).to_bytes(4, "big") + body)
    return client, json.loads(said(client))


def test_a_producer_comes_and_goes(daemon: Daemon) -> None:
    client, identity = identified(daemon)
    assert list(identity) == ["broadcast_address", "hostname", "http_port", "tcp_port", "version"]
    assert (identity["tcp_port"], identity["http_port"]) == tuple(daemon.addresses[name][1] for name in ("TCP", "HTTP"))
    client.sendall(b"REGISTER t c\nREGISTER e#ephemeral\n")
    assert (said(client), said(client)) == (b"OK", b"OK")
    (producer,) = daemon.get("/lookup?topic=t")["producers"]
    assert producer["remote_address"] == "{}:{}".format(*client.getsockname())
    client.shutdown(socket.SHUT_WR)
    assert said(client) == b""
    assert daemon.get("/lookup?topic=t") == {"channels": ["c"], "producers": []}
    assert daemon.get("/topics") == {"topics": ["t"]}


@pytest.mark.parametrize("size", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"])
def test_hostile_lengths_do_no_harm(daemon: Daemon, size: bytes) -> None:
    hostile = daemon.connect()
    hostile.sendall(MAGIC + b"IDENTIFY\n" + size)
    assert said(hostile).startswith(b"E_BAD_BODY IDENTIFY ")
    assert said(hostile) == b""
    assert daemon.get("/topics") == {"topics": []}


def test_a_byte_now_and_then_is_no_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient = (
        RUN[-1]
        .replace("import main", "import main, __name__ as name")
        .replace("sys.exit", "setattr(sys.modules[name], '_UNIDENTIFIED_TIMEOUT_S', 0.5); sys.exit")
    )
    monkeypatch.setitem(globals(), "RUN", [*RUN[:-1], impatient])
    daemon = Daemon()
    try:
        with daemon.connect() as dripping, daemon.connect() as living:
            dripping.sendall(MAGIC)
            living.sendall(MAGIC)
            dripping.settimeout(0.1)
            pings = 0
            while True:
                living.sendall(b"PING\n")
                assert said(living) == b"OK"
                pings += 1
                try:
                    dripping.sendall(b"P")
                    if dripping.recv(1) == b"":
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
            assert pings > 1
    finally:
        daemon.process.kill()
        daemon.process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops_in_order_with_clients_of_every_kind(daemon: Daemon, number: signal.Signals) -> None:
    silent = daemon.connect()
    half = daemon.connect()
    half.sendall(MAGIC + b"IDENTIFY\n\x00")
    registered, _ = identified(daemon)
    idle_http = socket.create_connection(daemon.addresses["HTTP"], timeout=60)
    daemon.process.send_signal(number)
    assert daemon.wait() == 0
    assert [client.recv(1) for client in (silent, half, registered, idle_http)] == [b""] * 4


def test_hup_ends_at_once_and_quit_with_a_dump_and_code_2() -> None:
    for number, code in ((signal.SIGHUP, -signal.SIGHUP), (signal.SIGQUIT, 2)):
        daemon = Daemon()
        daemon.get("/topics")
        daemon.process.send_signal(signal.SIGUSR1)
        daemon.get("/topics")
        daemon.process.send_signal(number)
        _, rest = daemon.process.communicate(timeout=60)
        assert daemon.process.returncode == code
        assert ("Greenlet" in rest) == (number == signal.SIGQUIT)


def test_first_line_and_prefix() -> None:
    daemon = Daemon("--log-prefix=[nsqlookupd] ", "--broadcast-address=me")
    assert re.search(r"INFO: nsqlookupd v1\.3\.0 \(built w/python3\.\d+\.\d+(-compiled)?\)\n", daemon.first_lines[0])
    assert identified(daemon)[1]["broadcast_address"] == "me"
    daemon.process.terminate()
    assert daemon.wait() == 0


@pytest.mark.parametrize(
    ("args", "code", "out", "err"),
    [
        (["--version"], 0, r"nsqlookupd v1\.3\.0 \(built w/python3\..+\)\n", r""),
        (["--nonsense"], 2, r"", r"flag provided but not defined: -nonsense\nUsage of nsqlookupd:\n(.|\n)*"),
        (["--config=/nonexistent"], 1, r"", r"\[nsqlookupd\] \S+ \S+ FATAL: failed to load config file .*\n"),
        (
            ["--tcp-address=127.0.0.1:70000"],
            1,
            r"",
            r"(.|\n)*FATAL: failed to instantiate nsqlookupd - listen \(127.0.0.1:70000\) failed - .*\n",
        ),
    ],
)
def test_ends_that_come_before_the_start(args: list[str], code: int, out: str, err: str) -> None:
    ended = subprocess.run([*RUN, *args], capture_output=True, text=True, timeout=60)
    assert ended.returncode == code
    assert re.fullmatch(out, ended.stdout)
    assert re.fullmatch(err, ended.stderr)


def test_a_config_file_counts(tmp_path: Path) -> None:
    file = tmp_path / "nsqlookupd.toml"
    file.write_text('broadcast_address = "from-file"\nlog_level = "info"\n')
    daemon = Daemon(f"--config={file}")
    assert identified(daemon)[1]["broadcast_address"] == "from-file"
    daemon.process.terminate()
    assert daemon.wait() == 0


def test_gos_nsqd_registers_here(daemon: Daemon, go_nsq: Path, tmp_path: Path) -> None:
    lookupd = "{}:{}".format(*daemon.addresses["TCP"])
    nsqd = subprocess.Popen(
        [
            go_nsq / "nsqd",
            f"--data-path={tmp_path}",
            "--tcp-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0",
            f"--lookupd-tcp-address={lookupd}",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert nsqd.stderr is not None
        http = next(found[1] for line in nsqd.stderr if (found := re.search(r"HTTP: listening on (\S+)", line)))
        for target in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
            urllib.request.urlopen(f"http://{http}{target}", data=b"", timeout=60).close()
        while daemon.get("/channels?topic=t") != {"channels": ["c"]}:
            pass
        (producer,) = daemon.get("/lookup?topic=t")["producers"]
        assert producer["version"] == "1.3.0"
    finally:
        nsqd.kill()
        nsqd.communicate()
