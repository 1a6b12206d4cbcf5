"""The processes: flags, config files, exit codes, signals, log, unix sockets, statsd."""

import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from blackbox.certs import Certificates
from blackbox.daemons import Implementation, Nsqd, Nsqlookupd
from blackbox.fakes import FakeStatsd
from blackbox.wire import Conn, wait_until

Connect = Callable[..., Conn]
StartNsqd = Callable[..., Nsqd]
StartLookupd = Callable[..., Nsqlookupd]

SECOND = 1_000_000_000
# Every setting that needs nobody else: what is given on the command line, in a file, and what /config says of it.
SETTINGS: dict[str, tuple[str, str, object]] = {
    "node-id": ("5", "5", 5),
    "log-level": ("debug", '"DEBUG"', 1),
    "broadcast-address": ("me", '"me"', "me"),
    "broadcast-tcp-port": ("11", "11", 11),
    "broadcast-http-port": ("12", '"12"', 12),
    "http-client-connect-timeout": ("3s", '"3s"', 3 * SECOND),
    "http-client-request-timeout": ("1m1s", '"1m1s"', 61 * SECOND),
    "mem-queue-size": ("77", '"77"', 77),
    "max-bytes-per-file": ("1000", "1000", 1000),
    "sync-every": ("7", "7", 7),
    "sync-timeout": ("1500ms", "1500", 1500_000_000),
    "queue-scan-selection-count": ("8", "8", 8),
    "queue-scan-worker-pool-max": ("9", "9", 9),
    "msg-timeout": ("1.5s", '"1.5s"', 1500_000_000),
    "max-msg-timeout": ("2h", "7200000", 7200 * SECOND),
    "max-msg-size": ("1234", "1234", 1234),
    "max-body-size": ("4321", "4321", 4321),
    "max-req-timeout": ("90m", '"90m"', 5400 * SECOND),
    "max-heartbeat-interval": ("70s", '"70s"', 70 * SECOND),
    "max-rdy-count": ("99", "99", 99),
    "max-output-buffer-size": ("100000", "100000", 100000),
    "max-output-buffer-timeout": ("40s", '"40s"', 40 * SECOND),
    "min-output-buffer-timeout": ("30ms", '"30ms"', 30_000_000),
    "output-buffer-timeout": ("100ms", '"100ms"', 100_000_000),
    "max-channel-consumers": ("6", "6", 6),
    "statsd-prefix": ("a.%s", '"a.%s"', "a.me_12."),
    "statsd-interval": ("20s", '"20s"', 20 * SECOND),
    "statsd-mem-stats": ("false", "false", False),
    "statsd-udp-packet-size": ("1000", "1000", 1000),
    "statsd-exclude-ephemeral": ("true", "true", True),
    "e2e-processing-latency-window-time": ("5m", '"5m"', 300 * SECOND),
    "deflate": ("false", "false", False),
    "max-deflate-level": ("3", "3", 3),
    "snappy": ("false", '"false"', False),
    "tls-required": ("false", "false", 0),
    "tls-min-version": ("tls1.2", '"tls1.2"', 0x0303),
}
KEYS = {"node-id": "id"}


def check_settings(daemon: Nsqd, names: set[str]) -> None:
    """What /config says of settings."""
    for name in names:
        answer = daemon.http("GET", "/config/" + KEYS.get(name, name.replace("-", "_")))
        expected = SETTINGS[name][2]
        assert (answer.text if isinstance(expected, str) else answer.json) == expected, name


# case 102
@pytest.mark.parametrize("dashes", ["-", "--"])
def test_every_flag(start_nsqd: StartNsqd, dashes: str) -> None:
    flags = [f"{dashes}{name}={value}" for name, (value, _, _) in SETTINGS.items()]
    check_settings(start_nsqd(*flags), set(SETTINGS))


# case 102
def test_value_of_a_flag_may_follow_it(start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd("--mem-queue-size", "77", "-msg-timeout", "1.5s", "-statsd-exclude-ephemeral")
    check_settings(daemon, {"mem-queue-size", "msg-timeout", "statsd-exclude-ephemeral"})


# case 102
def test_deprecated_flags_are_accepted(start_nsqd: StartNsqd) -> None:
    assert start_nsqd("--verbose", "--worker-id").http("GET", "/ping").status == 200


# case 102
def test_flags_end_at_the_first_word_that_is_none(start_nsqd: StartNsqd) -> None:
    check_settings(start_nsqd("--mem-queue-size=77", "word", "--no-such-flag"), {"mem-queue-size"})


# case 102
def test_every_key_of_a_file(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    file = tmp_path / "nsqd.cfg"
    lines = [f"{KEYS.get(name, name.replace('-', '_'))} = {value}" for name, (_, value, _) in SETTINGS.items()]
    file.write_text("\n".join([*lines, 'unknown_key = "ignored"', "e2e_processing_latency_percentiles = [0.5, 0.9]"]))
    daemon = start_nsqd(f"--config={file}")
    check_settings(daemon, set(SETTINGS))
    assert daemon.get("/config/e2e_processing_latency_percentiles") == [0.5, 0.9]


# case 102
def test_command_line_wins_over_file(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    file = tmp_path / "nsqd.cfg"
    file.write_text('msg_timeout = "7s"\nmax_rdy_count = 99\nnsqlookupd_tcp_addresses = "127.0.0.1:1,127.0.0.1:2"\n')
    daemon = start_nsqd("--msg-timeout=1.5s", f"--config={file}")
    check_settings(daemon, {"msg-timeout", "max-rdy-count"})
    assert daemon.get("/config/nsqlookupd_tcp_addresses") == ["127.0.0.1:1", "127.0.0.1:2"]


# case 102
@pytest.mark.parametrize(
    ("flag", "code"),
    [
        ("--no-such-flag", 2),
        ("--mem-queue-size=many", 2),
        ("--msg-timeout=60", 2),
        ("--msg-timeout=1 hour", 2),
        ("--snappy=perhaps", 2),
        ("--tls-min-version=ssl3.0", 2),
        ("--tls-required=perhaps", 2),
        ("--log-level=warning", 2),
        ("--node-id=1024", 1),
        ("--node-id=-1", 1),
        ("--max-deflate-level=0", 1),
        ("--max-deflate-level=10", 1),
        ("--e2e-processing-latency-percentile=1.5", 1),
        ("--tls-required=true", 1),
        ("--tls-cert=/nowhere.pem", 1),
        ("--tls-client-auth-policy=require", 1),
        ("--config=/nowhere.cfg", 1),
        ("--tcp-address=256.1.2.3:0", 1),
    ],
)
def test_wrong_flag(start_nsqd: StartNsqd, flag: str, code: int) -> None:
    daemon = start_nsqd(flag, listening=())
    assert daemon.wait() == code
    assert daemon.log


# case 102
@pytest.mark.parametrize(
    "text", ["not toml", "mem_queue_size = [1]", 'msg_timeout = "soon"', 'log_level = "loud"', 'tls_required = "x"']
)
def test_wrong_file(start_nsqd: StartNsqd, tmp_path: Path, text: str) -> None:
    file = tmp_path / "nsqd.cfg"
    file.write_text(text)
    assert start_nsqd(f"--config={file}", listening=()).wait() == 1


# case 102
def test_port_that_is_taken(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    daemon = start_nsqd()
    second = start_nsqd(f"--tcp-address={daemon.tcp_address}", folder=tmp_path / "other", listening=())
    assert second.wait() == 1
    assert "address already in use" in second.log.lower()


# case 102
@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd"])
def test_version(impl: Implementation, program: str) -> None:
    done = subprocess.run([impl.folder / program, "--version"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0
    assert re.fullmatch(rf"{program} v1\.3\.0 \(built w/\S+\)\n", done.stdout)


# case 102
@pytest.mark.parametrize(("flag", "code"), [("--no-such-flag", 2), ("--tombstone-lifetime=x", 2), ("--config=/no", 1)])
def test_wrong_flag_of_lookupd(start_lookupd: StartLookupd, flag: str, code: int) -> None:
    assert start_lookupd(flag, listening=()).wait() == code


# case 102
def test_file_of_lookupd(start_lookupd: StartLookupd, tmp_path: Path) -> None:
    file = tmp_path / "lookupd.cfg"
    file.write_text('log_prefix = "[mine] "\ninactive_producer_timeout = "1s"\nbroadcast_address = "me"\n')
    lookupd = start_lookupd(f"--config={file}")
    assert lookupd.log.startswith("[mine] ")
    assert lookupd.stop(signal.SIGINT) == 0


# case 103
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_broker_with_clients_connected(
    connect: Connect, start_nsqd: StartNsqd, by: signal.Signals
) -> None:
    daemon = start_nsqd()
    idle, consumer, producer = connect(daemon), connect(daemon), connect(daemon)
    idle.identify()
    consumer.subscribe("topic", "channel", ready=1)
    producer.publish("topic", b"body")
    consumer.message()
    assert daemon.stop(by) == 0
    for conn in (idle, consumer, producer):
        conn.closed()


# case 103
@pytest.mark.known_defect("D1")
def test_silent_connection_does_not_keep_the_broker_from_ending(
    connect: Connect, start_nsqd: StartNsqd, patience: float
) -> None:
    daemon = start_nsqd()
    conn = connect(daemon, magic=b"")
    assert daemon.http("GET", "/ping").status == 200
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait(patience) == 0
    conn.closed()


# case 103
def test_quit_ends_with_code_2_and_usr1_is_ignored(start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd()
    daemon.process.send_signal(signal.SIGUSR1)
    assert daemon.http("GET", "/ping").status == 200
    assert daemon.stop(signal.SIGQUIT) == 2


# case 103
def test_signal_ends_lookupd_with_clients_connected(connect: Connect, start_lookupd: StartLookupd) -> None:
    lookupd = start_lookupd()
    conn = connect(lookupd)
    conn.command("PING")
    assert conn.read_raw(6) == b"\0\0\0\2OK"
    assert lookupd.stop() == 0


LOG_LINE = re.compile(r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} (DEBUG|INFO|WARNING|ERROR|FATAL): .+", re.ASCII)


# case 105
def test_log_lines_have_their_form(connect: Connect, start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd()
    connect(daemon).publish("topic", b"body")
    daemon.stop()
    lines = daemon.log.splitlines()
    assert lines
    assert not [line for line in lines if not LOG_LINE.fullmatch(line)]
    for text in ("TCP: listening on ", "HTTP: listening on "):
        assert any(f" INFO: {text}127.0.0.1:" in line for line in lines)


# case 105
def test_log_prefix(start_nsqd: StartNsqd) -> None:
    assert all(line.startswith("<x> 2") for line in start_nsqd("--log-prefix=<x> ").log.splitlines())


# case 105
def test_log_level_at_start(start_nsqd: StartNsqd, data_path: Path) -> None:
    daemon = start_nsqd("--log-level=error", listening=())
    wait_until((data_path / "nsqd.dat").exists)
    daemon.stop()
    assert daemon.log == ""


# case 105
def test_log_level_can_be_changed_while_running(connect: Connect, start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd()
    assert " DEBUG: " not in daemon.log
    daemon.http("PUT", "/config/log_level", b"debug")
    connect(daemon).publish("topic", b"body")
    wait_until(lambda: " DEBUG: " in daemon.log)
    daemon.http("PUT", "/config/log_level", b"error")
    daemon.get("/info")
    daemon.http("PUT", "/config/log_level", b"info")
    daemon.get("/stats?format=json")
    wait_until(lambda: " INFO: 200 GET /stats?format=json (127.0.0.1:" in daemon.log)
    assert "/info" not in daemon.log


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder with a path short enough for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="nsq") as folder:
        yield Path(folder)


# cases 93 and 106
def test_unix_sockets(connect: Connect, start_nsqd: StartNsqd, socket_folder: Path) -> None:
    tcp, http = socket_folder / "tcp.sock", socket_folder / "http.sock"
    daemon = start_nsqd(f"--tcp-address={tcp}", f"--http-address={http}")
    conn = connect(daemon)
    conn.identify()
    conn.publish("topic", b"body")
    daemon.post("/pub?topic=topic", b"over http")
    conn.subscribe("topic", "channel", ready=2)
    assert [message.body for message in conn.messages(2)] == [b"body", b"over http"]
    info = daemon.get("/info")
    assert (info["tcp_port"], info["http_port"]) == (-1, -1)
    assert daemon.channel("topic", "channel")["client_count"] == 1
    assert daemon.stop() == 0
    assert not tcp.exists()
    assert not http.exists()


# case 106
def test_stale_socket_file_is_an_error(start_nsqd: StartNsqd, socket_folder: Path) -> None:
    path = socket_folder / "tcp.sock"
    daemon = start_nsqd(f"--tcp-address={path}", listening=("TCP",))
    daemon.kill()
    assert start_nsqd(f"--tcp-address={path}", listening=()).wait() == 1


# case 102
def test_http_can_be_switched_off(connect: Connect, start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd("--http-address=", listening=("TCP",))
    connect(daemon).publish("topic", b"body")
    assert "HTTP" not in daemon.listeners


def values(statsd: FakeStatsd, name: str) -> list[str]:
    """Every value that came for a name."""
    return [line.partition(":")[2] for line in statsd.lines if line.startswith(name + ":")]


CHANNEL_GAUGES = ["depth", "backend_depth", "in_flight_count", "deferred_count", "clients"]
MEMORY_GAUGES = (
    "heap_objects heap_idle_bytes heap_in_use_bytes heap_released_bytes gc_pause_usec_100 gc_pause_usec_99"
    " gc_pause_usec_95 next_gc_bytes"
)


# cases 104 and 107
def test_statsd(connect: Connect, start_nsqd: StartNsqd) -> None:
    with FakeStatsd() as statsd:
        daemon = start_nsqd(
            f"--statsd-address={statsd.address}",
            "--statsd-prefix=test",
            "--statsd-interval=1100ms",
            "--statsd-udp-packet-size=300",
            "--e2e-processing-latency-percentile=0.95",
        )
        conn = connect(daemon)
        conn.mpub("topic", b"12345", b"123", b"12")
        conn.subscribe("topic", "channel", ready=2)
        first, second = conn.messages(2)
        conn.ready(1)
        conn.finish(first)
        conn.requeue(second, 60000)
        conn.publish("t#ephemeral", b"x")
        wait_until(lambda: len(values(statsd, "test.mem.gc_runs")) >= 2)
        topic, channel = "test.topic.topic.", "test.topic.topic.channel.channel."
        # A counter tells what is new since the last time; what came before is not told again.
        assert sum(int(value.removesuffix("|c")) for value in values(statsd, topic + "message_count")) == 3
        assert sum(int(value.removesuffix("|c")) for value in values(statsd, topic + "message_bytes")) == 10
        assert sum(int(value.removesuffix("|c")) for value in values(statsd, channel + "message_count")) == 3
        assert sum(int(value.removesuffix("|c")) for value in values(statsd, channel + "requeue_count")) == 1
        assert sum(int(value.removesuffix("|c")) for value in values(statsd, channel + "timeout_count")) == 0
        assert values(statsd, topic + "depth")[-1] == "0|g"
        assert values(statsd, topic + "backend_depth")[-1] == "0|g"
        last = [values(statsd, channel + gauge)[-1] for gauge in CHANNEL_GAUGES]
        assert last[2:] == ["1|g", "1|g", "1|g"]
        assert re.fullmatch(r"\d+\|g", values(statsd, topic + "e2e_processing_latency_95")[-1])
        assert re.fullmatch(r"\d+\|g", values(statsd, channel + "e2e_processing_latency_95")[-1])
        assert values(statsd, "test.topic.t#ephemeral.message_count")[0] == "1|c"
        for gauge in MEMORY_GAUGES.split():
            assert re.fullmatch(r"\d+\|g", values(statsd, f"test.mem.{gauge}")[-1])
        assert all(len(packet) <= 300 and packet.endswith(b"\n") for packet in statsd.packets)
        assert len(statsd.packets) > 4


# case 104
def test_statsd_is_told_every_interval(connect: Connect, start_nsqd: StartNsqd) -> None:
    with FakeStatsd() as statsd:
        daemon = start_nsqd(f"--statsd-address={statsd.address}", "--statsd-prefix=", "--statsd-interval=3s")
        conn = connect(daemon)
        conn.identify(heartbeat_interval=1000)
        seconds = []
        for reports in (1, 3):
            while len(values(statsd, "mem.heap_objects")) < reports:
                conn.heartbeat()
            seconds.append(len(conn.heartbeats))
    # By the broker's own clock: two intervals, and not the time that their packets are spread over besides.
    assert seconds[1] - seconds[0] <= 8


# case 104
@pytest.mark.known_defect("D14")
def test_statsd_every_second(start_nsqd: StartNsqd, patience: float) -> None:
    with FakeStatsd() as statsd:
        daemon = start_nsqd(
            f"--statsd-address={statsd.address}",
            "--statsd-interval=1s",
            "--statsd-mem-stats=false",
            "--statsd-exclude-ephemeral",
            "--broadcast-address=my.host",
        )
        daemon.post("/topic/create?topic=plain")
        daemon.post("/topic/create?topic=gone%23ephemeral")
        prefix = f"nsq.my_host_{daemon.port('HTTP')}."
        wait_until(lambda: len(values(statsd, f"{prefix}topic.plain.depth")) >= 2, patience)
        assert not [line for line in statsd.lines if "ephemeral" in line or ".mem." in line]
        assert daemon.http("GET", "/ping").status == 200


# case 102
def test_tls_settings_from_a_file(
    connect: Connect, start_nsqd: StartNsqd, certificates: Certificates, tmp_path: Path
) -> None:
    file = tmp_path / "nsqd.cfg"
    file.write_text(
        f'tls_cert = "{certificates.cert}"\ntls_key = "{certificates.key}"\n'
        'tls_required = "tcp-https"\ntls_min_version = "tls1.2"\n'
    )
    daemon = start_nsqd(f"--config={file}", listening=("TCP", "HTTP", "HTTPS"))
    assert daemon.get("/config/tls_required") == 1
    conn = connect(daemon)
    conn.identify(tls_v1=True)
    conn.start_tls(certificates.context())
    conn.publish("topic", b"body")
