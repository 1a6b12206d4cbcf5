"""The daemon as a process: starts, serves over sockets, stops in order."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from pyspark_nsq.proto.commands import MAGIC_V2, identify, mpub, pub, rdy, sub
from pyspark_nsq.proto.frames import RESPONSE, encode_frame

PATIENCE_S = 30.0
OK = encode_frame(RESPONSE, b"OK")
NSQD = Path(sys.executable).parent / "nsqd"


class Daemon:
    def __init__(self, folder: Path, *flags: str, program: Sequence[str | Path] = (NSQD,)) -> None:
        self.log = folder / "log"
        data = folder / "data"
        data.mkdir(exist_ok=True)
        addresses = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={data}"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen([*program, *addresses, *flags], stderr=log)
        self.tcp = self.address("TCP")
        self.http = self.address("HTTP")

    def address(self, kind: str) -> str:
        found = None
        end = time.monotonic() + PATIENCE_S
        while not found:
            found = re.search(rf" INFO: {kind}: listening on (\S+)\n", self.log.read_text())
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
        return found[1]

    def connect(self) -> socket.socket:
        host, _, port = self.tcp.rpartition(":")
        connection = socket.create_connection((host, int(port)), PATIENCE_S) if host else socket.socket(socket.AF_UNIX)
        if not host:
            connection.settimeout(PATIENCE_S)
            connection.connect(self.tcp)
        return connection

    def ask(self, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
        request = urllib.request.Request(f"http://{self.http}{path}", body, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def stats(self, **args: str) -> dict:
        query = "&".join(f"{name}={value}" for name, value in args.items())
        return json.loads(self.ask(f"/stats?format=json&{query}")[1])

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    daemons: list[Daemon] = []

    def start(*flags: str, program: Sequence[str | Path] = (NSQD,)) -> Daemon:
        daemons.append(Daemon(tmp_path, *flags, program=program))
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.process.kill()
        daemon.process.wait()


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, f"the connection ended after {data!r}"
        data += piece
    return data


def read_to_end(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(4096):
        data += piece
    return data


def test_publish_consume_and_see_it_in_the_stats(start: Callable[..., Daemon]):
    daemon = start()
    producer, consumer = daemon.connect(), daemon.connect()
    producer.sendall(MAGIC_V2 + pub("t", b"one") + mpub("t", [b"two", b"three"]) + pub("u", b"x"))
    assert read_exactly(producer, 3 * len(OK)) == 3 * OK
    consumer.sendall(MAGIC_V2 + identify({"client_id": "me", "user_agent": "test"}) + sub("t", "c") + rdy(5))
    frames = read_exactly(consumer, 2 * len(OK) + 3 * 34 + 11)
    assert frames.startswith(2 * OK)
    assert [body in frames for body in (b"one", b"two", b"three")] == [True] * 3
    stats = daemon.stats()
    (t, u) = stats["topics"]
    assert (t["topic_name"], t["message_count"], t["message_bytes"], u["depth"]) == ("t", 3, 11, 1)
    (channel,) = t["channels"]
    assert (channel["in_flight_count"], channel["client_count"], channel["depth"]) == (3, 1, 0)
    (client,) = channel["clients"]
    assert (client["client_id"], client["ready_count"], client["state"]) == ("me", 5, 3)
    assert [producer["pub_counts"] for producer in stats["producers"]] == [
        [{"topic": "t", "count": 3}, {"topic": "u", "count": 1}]
    ]


def test_stats_leave_out_what_is_not_asked_for(start: Callable[..., Daemon]):
    daemon = start()
    daemon.ask("/pub?topic=t", "POST", b"x")
    assert daemon.stats(topic="none")["topics"] is None
    assert daemon.stats(topic="t", channel="none")["topics"] == []
    assert daemon.stats(include_clients="false")["producers"] is None
    assert "memory" not in daemon.stats(include_mem="0")
    text = daemon.ask("/stats")[1].decode()
    assert re.search(r"^nsqd v1\.3\.0 .*\nstart_time \S+\nuptime \S+s\n\nHealth: OK\n\nMemory:\n   heap_objects", text)
    assert "\nTopics:\n   [t              ] depth: 1     be-depth: 0     msgs: 1        e2e%: \n" in text
    assert text.endswith("\nProducers: None\n")


def test_http_publishing(start: Callable[..., Daemon]):
    daemon = start("--max-msg-size=100", "--max-body-size=1000")
    assert daemon.ask("/pub?topic=t", "POST", b"x" * 100) == (200, b"OK")
    assert daemon.ask("/pub?topic=t", "POST", b"x" * 101) == (413, b'{"message":"MSG_TOO_BIG"}')
    assert daemon.ask("/pub?topic=t", "POST", b"") == (400, b'{"message":"MSG_EMPTY"}')
    assert daemon.ask("/pub", "POST", b"x") == (400, b'{"message":"MISSING_ARG_TOPIC"}')
    assert daemon.ask("/pub?topic=t%23", "POST", b"x") == (400, b'{"message":"INVALID_TOPIC"}')
    assert daemon.ask("/pub?topic=t&defer=-1", "POST", b"x") == (400, b'{"message":"INVALID_DEFER"}')
    assert daemon.ask("/mpub?topic=t", "POST", b"a\n\nb\r\n") == (200, b"OK")
    assert daemon.ask("/mpub?topic=t", "POST", b"\n") == (200, b"OK")
    assert daemon.ask("/mpub?topic=t&binary=yes", "POST", b"\0\0\0\1\0\0\0\1x") == (200, b"OK")
    assert daemon.ask("/mpub?topic=t&binary=1", "POST", b"\0\0\0\1\0\0") == (413, b'{"message":"BAD_MESSAGE"}')
    assert daemon.ask("/mpub?topic=t&binary=true", "POST", b"") == (413, b'{"message":"BAD_BODY"}')
    assert daemon.ask("/mpub?topic=t", "POST", b"x" * 1001) == (413, b'{"message":"BODY_TOO_BIG"}')
    assert daemon.stats(topic="t")["topics"][0]["message_count"] == 4


def test_topics_and_channels_over_http(start: Callable[..., Daemon]):
    daemon = start()
    assert daemon.ask("/channel/create?topic=t&channel=c", "POST") == (404, b'{"message":"TOPIC_NOT_FOUND"}')
    assert daemon.ask("/topic/create?topic=t", "POST") == (200, b"")
    assert daemon.ask("/channel/create?topic=t&channel=c", "POST") == (200, b"")
    assert daemon.ask("/channel/pause?topic=t&channel=d", "POST") == (404, b'{"message":"CHANNEL_NOT_FOUND"}')
    assert daemon.ask("/channel/pause?topic=t&channel=c", "POST") == (200, b"")
    assert daemon.ask("/topic/pause?topic=t", "POST") == (200, b"")
    (topic,) = daemon.stats()["topics"]
    assert (topic["paused"], topic["channels"][0]["paused"]) == (True, True)
    daemon.ask("/topic/unpause?topic=t", "POST")
    daemon.ask("/pub?topic=t", "POST", b"x")
    assert daemon.stats()["topics"][0]["channels"][0]["depth"] == 1
    assert daemon.ask("/channel/empty?topic=t&channel=c", "POST") == (200, b"")
    assert daemon.stats()["topics"][0]["channels"][0]["depth"] == 0
    consumer = daemon.connect()
    consumer.sendall(MAGIC_V2 + sub("t", "c"))
    assert read_exactly(consumer, len(OK)) == OK
    assert daemon.ask("/channel/delete?topic=t&channel=c", "POST") == (200, b"")
    assert read_to_end(consumer) == b""
    assert daemon.ask("/topic/delete?topic=t", "POST") == (200, b"")
    assert daemon.stats()["topics"] == []


def test_options_are_shown_and_two_can_change(start: Callable[..., Daemon]):
    daemon = start("--msg-timeout=30s")
    assert daemon.ask("/config/msg_timeout") == (200, b"30000000000")
    assert daemon.ask("/config/log_prefix") == (200, b"[nsqd] ")
    assert daemon.ask("/config/nothing") == (400, b'{"message":"INVALID_OPTION"}')
    assert daemon.ask("/config/log_level", "PUT", b"debug") == (200, b"1")
    assert daemon.ask("/config/log_level", "PUT", b"warning") == (400, b'{"message":"INVALID_VALUE"}')
    assert daemon.ask("/config/msg_timeout", "PUT", b"1") == (400, b'{"message":"INVALID_OPTION"}')
    assert daemon.ask("/config/nsqlookupd_tcp_addresses", "PUT", b'["127.0.0.1:1"]') == (200, b'["127.0.0.1:1"]')
    assert daemon.ask("/config/nsqlookupd_tcp_addresses", "PUT", b"null") == (200, b"null")


def test_metrics(start: Callable[..., Daemon]):
    daemon = start("--e2e-processing-latency-percentile=0.5")
    daemon.ask("/topic/create?topic=t", "POST")
    daemon.ask("/channel/create?topic=t&channel=c", "POST")
    daemon.ask("/pub?topic=t", "POST", b"x")
    page = daemon.ask("/metrics")[1].decode()
    for line in (
        'nsqd_topic_messages_total{topic="t"} 1',
        'nsqd_channel_depth{topic="t",channel="c"} 1',
        "nsqd_healthy 1",
    ):
        assert f"\n{line}\n" in f"\n{page}"
    families = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
    per_channel = "depth in_flight deferred requeues_total timeouts_total clients messages_total"
    assert families > {f"nsqd_channel_{name}" for name in per_channel.split()}
    assert families > {"nsqd_topics", "nsqd_channels", "nsqd_clients", "nsqd_topic_log_bytes"}
    assert families > {"nsqd_e2e_latency_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total"}


def test_stops_in_order_whoever_is_connected(start: Callable[..., Daemon]):
    daemon = start()
    silent, idle, consumer = (daemon.connect() for _ in range(3))
    idle.sendall(MAGIC_V2)
    consumer.sendall(MAGIC_V2 + sub("t", "c") + rdy(1))
    assert read_exactly(consumer, len(OK)) == OK
    daemon.ask("/pub?topic=t", "POST", b"x")
    read_exactly(consumer, 35)
    assert daemon.stop() == 0
    for connection in (silent, idle, consumer):
        assert read_to_end(connection) == b""
    again = start()
    consumer = again.connect()
    consumer.sendall(MAGIC_V2 + sub("t", "c") + rdy(1))
    assert read_exactly(consumer, len(OK) + 35)[len(OK) + 16 : len(OK) + 18] == b"\0\2"


def test_unix_sockets(start: Callable[..., Daemon], tmp_path: Path):
    path = tmp_path / "nsqd.sock"
    daemon = start(f"--tcp-address={path}")
    assert daemon.tcp == str(path)
    connection = daemon.connect()
    connection.sendall(MAGIC_V2 + pub("t", b"x"))
    assert read_exactly(connection, len(OK)) == OK
    assert json.loads(daemon.ask("/info")[1])["tcp_port"] == -1
    assert daemon.stop() == 0
    assert not path.exists()


def test_no_child_processes(start: Callable[..., Daemon]):
    daemon = start("--sync-every=1")
    daemon.ask("/pub?topic=t", "POST", b"x")
    assert psutil.Process(daemon.process.pid).children() == []


def test_a_second_nsqd_on_the_same_data_path_is_refused(start: Callable[..., Daemon], tmp_path: Path):
    start()
    done = subprocess.run(
        [NSQD, f"--data-path={tmp_path / 'data'}"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 1
    assert "FATAL" in done.stderr


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--no-such-flag"], 2),
        (["--node-id=1024"], 1),
        (["--data-path=/no/such/folder"], 1),
        (["--tls-required"], 1),
        (["--version"], 0),
    ],
)
def test_exit_codes(flags: list[str], code: int):
    assert subprocess.run([NSQD, *flags], capture_output=True, timeout=PATIENCE_S).returncode == code


def test_sigquit_shows_stacks(start: Callable[..., Daemon]):
    daemon = start()
    os.kill(daemon.process.pid, signal.SIGQUIT)
    assert daemon.process.wait(PATIENCE_S) == 2
    assert "SIGQUIT" in daemon.log.read_text()


def test_a_client_that_reads_nothing_costs_bounded_memory_and_is_closed(start: Callable[..., Daemon]):
    daemon = start("--mem-queue-size=100000")
    lazy = daemon.connect()
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lazy.sendall(MAGIC_V2 + identify({"heartbeat_interval": 1000}) + sub("t", "c") + rdy(2500))
    body = b"x" * 20_000
    producer = daemon.connect()
    producer.sendall(MAGIC_V2)
    for _ in range(25):
        producer.sendall(mpub("t", [body] * 100))
        assert read_exactly(producer, len(OK)) == OK
    assert daemon.stats()["topics"][0]["channels"][0]["in_flight_count"] < 1000
    end = time.monotonic() + PATIENCE_S
    while daemon.stats()["topics"][0]["channels"][0]["client_count"]:
        assert time.monotonic() < end


def send_in_portions(connection: socket.socket, portion: bytes, count: int) -> None:
    """``sendall`` counts its time-out from the first byte; each portion here has its own."""
    for _ in range(count):
        connection.sendall(portion)


def test_a_client_that_publishes_and_reads_no_reply_is_not_read_for_ever(start: Callable[..., Daemon]):
    daemon = start()
    lazy = daemon.connect()
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lazy.settimeout(3)
    lazy.sendall(MAGIC_V2)
    with pytest.raises(TimeoutError):
        send_in_portions(lazy, pub("t", b"x") * 10_000, 300)
    assert daemon.ask("/ping") == (200, b"OK")


# nsqd while a DNS server does not answer: every thread that looks names up waits.
NSQD_WITHOUT_DNS = """
import sys, threading
from gevent import get_hub
from pyspark_nsq.broker.nsqd import main
never = threading.Event()
for _ in range(get_hub().threadpool.maxsize):
    get_hub().threadpool.spawn(never.wait)
sys.exit(main())
"""


def test_fsync_does_not_wait_for_threads_that_look_names_up(start: Callable[..., Daemon]):
    daemon = start("--sync-every=1", program=(sys.executable, "-c", NSQD_WITHOUT_DNS))
    for _ in range(3):
        assert daemon.ask("/pub?topic=t", "POST", b"x") == (200, b"OK")
    assert daemon.stop() == 0


# nsqd on a host whose clock is set 8 hours ahead as soon as the file exists.
NSQD_WHOSE_CLOCK_IS_SET = """
import os, sys, time
from pyspark_nsq.broker import clock
from pyspark_nsq.broker.nsqd import main
clock.time_ns = lambda: time.time_ns() + 8 * 3600 * 10**9 * os.path.exists(PATH)
sys.exit(main())
"""


def test_messages_are_dated_by_a_clock_that_was_set_while_nsqd_runs(start: Callable[..., Daemon], tmp_path: Path):
    is_set = tmp_path / "set"
    daemon = start(program=(sys.executable, "-c", NSQD_WHOSE_CLOCK_IS_SET.replace("PATH", repr(str(is_set)))))
    client = daemon.connect()
    client.sendall(MAGIC_V2 + identify({"heartbeat_interval": 60_000}) + sub("t", "c") + rdy(2500))
    assert read_exactly(client, 2 * len(OK)) == 2 * OK
    is_set.touch()
    end = time.monotonic() + PATIENCE_S
    ahead_ns = 0
    while ahead_ns < 7 * 3600 * 10**9:
        assert time.monotonic() < end
        assert daemon.ask("/pub?topic=t", "POST", b"x") == (200, b"OK")
        ahead_ns = int.from_bytes(read_exactly(client, 35)[8:16], "big") - time.time_ns()
        time.sleep(0.01)  # what is in flight is limited
    assert daemon.stop() == 0


# nsqd up to its first answer; what it imports later, so that the first clients need not wait, must not come into this.
NSQD_THAT_TELLS_ITS_MODULES = """
import sys
from gevent import socket
from pyspark_nsq.broker import flags, nsqd
nsqd._WARM_UP_AFTER_S = 3600.0
daemon = nsqd.Nsqd(flags.load(nsqd.NsqdOptions, "nsqd", sys.argv[1:], nsqd.DEPRECATED_FLAGS))
daemon.start()
client = socket.create_connection(("127.0.0.1", daemon.http_port))
client.sendall(b"GET /ping HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
assert client.recv(4096).startswith(b"HTTP/1.1 200 OK")
print(*sys.modules, sep="\\n")
daemon.stop()
"""
TAKE_LONG_TO_IMPORT = {
    "numpy",
    "cramjam",
    "ssl",
    "http.client",
    "asyncio",
    "pyarrow",
    "pyspark",
    "grpc",
    "google",
    "rich",
}


def test_a_start_imports_nothing_that_takes_long(start: Callable[..., Daemon], tmp_path: Path):
    with_messages = start()
    assert with_messages.ask("/pub?topic=t", "POST", b"x")[0] == 200
    assert with_messages.ask("/channel/create?topic=t&channel=c", "POST")[0] == 200
    with_messages.stop()
    for folder in (tmp_path / "empty", tmp_path / "data"):
        folder.mkdir(exist_ok=True)
        flags = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={folder}"]
        program = [sys.executable, "-c", NSQD_THAT_TELLS_ITS_MODULES, *flags]
        told = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        modules = set(told.stdout.split())
        assert "pyspark_nsq.broker.nsqd" in modules
        assert not modules & TAKE_LONG_TO_IMPORT
