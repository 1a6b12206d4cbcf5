"""What the image's entry point makes of its environment, and how it looks for a daemon's health."""

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import UnixStreamServer

import pytest

from pyspark_nsq.container import flags_from, flags_of, is_healthy, merged

NAMES = {
    "mem-queue-size": False,
    "lookupd-tcp-address": True,
    "e2e-processing-latency-percentile": False,
    "broadcast-http-port": False,
}


@pytest.mark.parametrize(
    ("variables", "flags"),
    [
        ({}, []),
        ({"NSQD_MEM_QUEUE_SIZE": "5"}, ["--mem-queue-size=5"]),
        ({"NSQD_MEM_QUEUE_SIZE": ""}, []),
        ({"NSQD_LOOKUPD_TCP_ADDRESS": "a:1,b:2"}, ["--lookupd-tcp-address=a:1", "--lookupd-tcp-address=b:2"]),
        ({"NSQD_E2E_PROCESSING_LATENCY_PERCENTILE": "0.5,1"}, ["--e2e-processing-latency-percentile=0.5,1"]),
        ({"NSQLOOKUPD_TCP_ADDRESS": "a:1", "PATH": "/bin", "MEM_QUEUE_SIZE": "1"}, []),
        ({"NSQD_SERVICE_HOST": "10.0.0.1", "NSQD_SERVICE_PORT_TCP": "1", "NSQD_PORT": "tcp://10.0.0.1:4150"}, []),
        ({"NSQD_PORT_4150_TCP": "tcp://10.0.0.1:4150", "NSQD_PORT_4150_TCP_PORT": "4150"}, []),
        ({"NSQD_1_SERVICE_HOST": "10.0.0.1", "NSQD_1_SERVICE_PORT": "4150", "NSQD_1_SERVICE_PORT_TCP": "4150"}, []),
        ({"NSQD_HTTP_PORT": "tcp://10.0.0.1:4151", "NSQD_HTTP_PORT_4151_TCP_ADDR": "10.0.0.1"}, []),
        ({"NSQD_BROADCAST_HTTP_PORT": "4151"}, ["--broadcast-http-port=4151"]),
    ],
)
def test_variables_become_flags(variables: dict[str, str], flags: list[str]) -> None:
    assert flags_from(variables, "nsqd", NAMES) == flags


@pytest.mark.parametrize("name", ["MEMORY", "PORTS", "HTTP_PORT_4151", "1_SERVICE"])
def test_a_variable_for_no_flag_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"NSQD_{name} stands for --{name.lower().replace('_', '-')}, a flag"):
        flags_from({f"NSQD_{name}": "1"}, "nsqd", NAMES)


@pytest.mark.parametrize(
    ("environment", "command_line", "flags"),
    [
        (["--mem-queue-size=5"], [], ["--mem-queue-size=5"]),
        (["--mem-queue-size=5"], ["-mem-queue-size", "6"], ["-mem-queue-size", "6"]),
        (["--mem-queue-size=5"], ["--max-msg-size=6"], ["--mem-queue-size=5", "--max-msg-size=6"]),
        (
            ["--auth-http-address=a:1", "--auth-http-address=b:2"],
            ["-auth-http-address=c:3"],
            ["-auth-http-address=c:3"],
        ),
    ],
)
def test_the_command_line_wins(environment: list[str], command_line: list[str], flags: list[str]) -> None:
    assert merged(environment, command_line) == flags


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd"])
def test_every_flag_of_a_daemon_has_a_variable(program: str) -> None:
    names = flags_of(program)
    assert {"tcp-address", "http-address", "config"} <= names.keys()
    variables = {f"{program.upper()}_{name.upper().replace('-', '_')}": "1" for name in names}
    assert len(flags_from(variables, program, names)) == len(names)


def test_flags_that_may_be_repeated_are_known() -> None:
    names = flags_of("nsqd")
    assert names["lookupd-tcp-address"]
    assert not names["e2e-processing-latency-percentile"]


def test_the_notebooks_image_takes_the_java_that_its_debian_has(root: Path) -> None:
    """A release has only some versions, Debian 13 no 17, and the base image moves from one release to the next."""
    packages = re.findall(r"\S*(?:jre|jdk)\S*", (root / "Dockerfile").read_text())
    assert packages == ["default-jre-headless"]


class Answer(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/ping" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of somebody who answers /ping with the status that the test names."""
    monkeypatch.setattr(Answer, "status", request.param)
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("port", "healthy"), [(200, True), (403, True), (500, False)], indirect=["port"])
def test_health_is_what_ping_says(port: int, healthy: bool) -> None:
    others = [["sh"], [""], ["/usr/bin/python3", "-m", "pyspark_nsq.container", "health"]]
    script = "/opt/nsq/bin/nsqlookupd"
    assert is_healthy([*others, ["/opt/nsq/bin/python", script, f"--http-address=0.0.0.0:{port}"]]) is healthy
    assert is_healthy([["nsqd", "-http-address", f"127.0.0.1:{port}"]]) is healthy


def test_health_is_asked_for_at_a_unix_socket_too(tmp_path: Path) -> None:
    path = f"{tmp_path}/http.sock"
    with UnixStreamServer(path, Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert is_healthy([["python", "/opt/nsq/bin/nsqd", f"--http-address={path}"]])
        thread.join()
    assert not is_healthy([["nsqd", "--http-address", f"{tmp_path}/nobody.sock"]])


@pytest.mark.parametrize("processes", [[], [["sleep", "10"]], [["python", "nsqd", "--http-address=127.0.0.1:1"]]])
def test_nobody_is_not_healthy(processes: list[list[str]]) -> None:
    assert not is_healthy(processes)
