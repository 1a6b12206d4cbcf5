"""Receivers as their coordinator has them: what each gets, where it listens, how it starts, and what ends it."""

import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from pyspark_nsq.connector import channels, crews, fleet, hosted, receiver_process
from pyspark_nsq.connector.beginning import Beginning
from pyspark_nsq.connector.channels import TOKEN_KEY
from pyspark_nsq.connector.crews import LocalCrew, RemoteCrew
from pyspark_nsq.connector.folders import make_private
from pyspark_nsq.connector.hosted import HostedReceiver
from pyspark_nsq.connector.offsets import first_position
from pyspark_nsq.connector.options import parse_source_options
from pyspark_nsq.connector.receiver import Setup
from pyspark_nsq.connector.receiver_process import ReceiverProcess
from pyspark_nsq.connector.settings import ConnectionSettings
from pyspark_nsq.connector.source_state import Limits
from pyspark_nsq.connector.stop_signal import StopSignal
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc

TOKEN = "a token that nobody sees"
LIMITS = Limits("channel", 100, 2**20, 2**20, None, None, 0.1, 1.0)
QUERY = Beginning("session", TOKEN, 0, LIMITS, ConnectionSettings(), 0.5, 60.0)
OPTIONS = {"topic": "t", "channel": "c", "nsqdTcpAddresses": "127.0.0.1:1"}
# Starts a receiver, which has this process's standard input as its own.
PARENT = 'import subprocess, sys; subprocess.run([sys.executable, "-P", "-m", "pyspark_nsq.connector.receiver"])'


def nothing() -> None:
    pass


def wait_until(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def _server_at_a_fixed_port() -> socket.socket:
    """Where no connection begins: once it is closed, the port is free for whoever waits for it."""
    while True:
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", random.randrange(20_000, 30_000)))


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which somebody listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        yield other.getsockname()[1]


@pytest.fixture
def start() -> Iterator[Callable[[range], ReceiverProcess]]:
    """Starts receivers that listen on the first of some ports, or on the one that they are told."""
    started: list[ReceiverProcess] = []

    def start_one(ports: range) -> ReceiverProcess:
        def make_setup(first: int, port: int) -> Setup:
            told = range(port, port + 1) if port else ports
            return Setup("127.0.0.1", told, TOKEN, first, LIMITS, ConnectionSettings(), 0.5)

        started.append(ReceiverProcess(make_setup, TOKEN, nothing, nothing))
        started[-1].start()
        return started[-1]

    yield start_one
    for each in started:
        each.begin_stop()
    for each in started:
        each.end_stop()


StartReceiver = Callable[[range], ReceiverProcess]


def test_one_has_a_session_of_its_own_and_no_secret_of_spark(
    start: StartReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_AUTH_SOCKET_SECRET", "between Spark and its Python")
    monkeypatch.setenv("OF_THE_USER", "kept")
    receiver = start(range(1))
    wait_until(lambda: receiver.status)
    assert receiver.pid
    # Neither a signal to the group of its parent nor the end of a terminal ends it before it has given back all.
    assert os.getsid(receiver.pid) == receiver.pid
    variables = Path(f"/proc/{receiver.pid}/environ").read_bytes().split(b"\0")
    assert b"OF_THE_USER=kept" in variables
    assert not [each for each in variables if b"SECRET" in each]


def test_ports_that_are_all_taken_end_the_query_with_the_option_s_name(
    start: StartReceiver, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_process, "PORTS_S", 0.0)
    receiver = start(range(taken, taken + 1))
    wait_until(lambda: receiver.failure)
    assert str(receiver.failure).startswith("options receiverPorts and receiverHost: cannot listen at 127.0.0.1:")
    assert receiver.incarnation <= 1


def test_ports_that_the_query_before_still_has_are_waited_for(
    start: StartReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Less than a process takes to start, which is no time that it waited.
    monkeypatch.setattr(receiver_process, "PORTS_S", 0.05)
    with closing(_server_at_a_fixed_port()) as other:
        port = other.getsockname()[1]
        receiver = start(range(port, port + 1))
        wait_until(lambda: receiver.incarnation)
    wait_until(lambda: receiver.status)
    assert receiver.failure is None
    assert receiver.address == f"127.0.0.1:{port}"


def test_the_death_of_its_parent_ends_it_whoever_has_its_standard_input() -> None:
    setup = Setup("127.0.0.1", range(1), TOKEN, first_position(0), LIMITS, ConnectionSettings(), 0.5)
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin
    output = parent.stdout
    assert output
    pickle.dump(setup, parent.stdin)
    parent.stdin.flush()
    assert int(output.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    # The receiver has the other end of this pipe, which ends with it; its standard input goes on.
    os.set_blocking(output.fileno(), False)
    wait_until(lambda: output.read() == b"")
    parent.stdin.close()


@pytest.mark.parametrize(("count", "in_flight", "size"), [(1, 7, 2**20), (3, 100, 2**21), (4, 2501, 2**20 + 3)])
def test_receivers_share_what_may_be_in_flight(
    monkeypatch: pytest.MonkeyPatch, count: int, in_flight: int, size: int
) -> None:
    made: list[Callable[[int, int], Setup]] = []
    monkeypatch.setattr(crews, "ReceiverProcess", lambda make_setup, *_: made.append(make_setup))
    texts = {"receivers": str(count), "maxInFlight": str(in_flight), "maxInFlightBytes": str(size)}
    LocalCrew(parse_source_options(OPTIONS | texts), QUERY, nothing, nothing)
    shares = [make_setup(0, 0).limits for make_setup in made]
    assert len(shares) == count
    assert [make_setup(0, 0).lane for make_setup in made] == list(range(count))
    assert sum(share.in_flight_max for share in shares) == in_flight
    assert max(share.in_flight_max for share in shares) - min(share.in_flight_max for share in shares) <= 1
    assert size - count < sum(share.bytes_max for share in shares) <= size
    assert {replace(share, in_flight_max=0, bytes_max=0) for share in shares} == {
        replace(LIMITS, in_flight_max=0, bytes_max=0)
    }


def test_receivers_listen_where_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Callable[[int, int], Setup]] = []
    monkeypatch.setattr(crews, "ReceiverProcess", lambda make_setup, *_: made.append(make_setup))
    for texts in ({}, {"receiverPorts": "7000-7099", "receiverHost": "127.0.0.0/8"}):
        LocalCrew(parse_source_options(OPTIONS | texts), QUERY, nothing, nothing)
    plain, chosen = made
    assert (plain(0, 0).host, plain(0, 0).ports) == ("127.0.0.1", range(1))
    assert (chosen(0, 0).host, chosen(0, 0).ports) == ("127.0.0.1", range(7000, 7100))
    # Again where the one before was: tasks know that address.
    assert chosen(0, 7005).ports == range(7005, 7006)


def test_the_driver_s_side_listens_there_too_and_tells_it_the_executors(taken: int) -> None:
    ports = range(taken, min(taken + 100, 65536))
    texts = {"receivers": "executors", "receiverHost": "127.0.0.0/8", "receiverPorts": f"{ports[0]}-{ports[-1]}"}
    crew = RemoteCrew(parse_source_options(OPTIONS | texts), QUERY, nothing, nothing, nothing)
    crew.start()
    try:
        assert crew.way
        assert crew.way.starting
        assert crew.way.starting.ports == ports
        host, _, port = crew.way.coordinator.rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) in ports[1:]
    finally:
        crew.stop()


def test_the_driver_s_side_waits_for_a_port_of_the_query_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: other.close())
        monkeypatch.setattr(channels, "time", clock)
        texts = {"receivers": "executors", "receiverHost": "127.0.0.1", "receiverPorts": str(port)}
        crew = RemoteCrew(parse_source_options(OPTIONS | texts), QUERY, nothing, nothing, nothing)
        crew.start()
    assert crew.way
    assert crew.way.coordinator == f"127.0.0.1:{port}"
    crew.stop()


@pytest.fixture
def on_executors() -> Iterator[RemoteCrew]:
    """The driver's side alone."""
    crew = RemoteCrew(parse_source_options(OPTIONS | {"receivers": "executors"}), QUERY, nothing, nothing, nothing)
    crew.start()
    yield crew
    crew.stop()


def ask(crew: RemoteCrew, method: str, token: str | None) -> Any:
    """What the coordinator answers to a question that could be asked; without a token there is no such metadata."""
    assert crew.way
    questions = {
        "Register": pb.Registration(host="a", address="127.0.0.1:1", instance="1"),
        "Gather": pb.Gathering(host="a"),
        "Look": pb.Range(lane=7, first=0, end=5),
    }
    with grpc.insecure_channel(crew.way.coordinator) as channel:
        stub: Any = receiver_pb2_grpc.CoordinatorStub(channel)  # type: ignore[no-untyped-call]
        metadata = [] if token is None else [(TOKEN_KEY, token)]
        return getattr(stub, method)(questions[method], timeout=20, metadata=metadata)


@pytest.mark.parametrize("method", ["Register", "Gather", "Look"])
def test_only_who_knows_the_query_s_token_can_ask_the_coordinator(on_executors: RemoteCrew, method: str) -> None:
    for wrong in (None, "", "another", TOKEN[:-1], f"{TOKEN} "):
        with pytest.raises(grpc.RpcError) as caught:
            ask(on_executors, method, wrong)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert (on_executors.receivers, on_executors.lost) == ([], 0)
    ask(on_executors, method, TOKEN)


def test_an_executor_s_host_without_a_free_port_tells_the_driver(
    monkeypatch: pytest.MonkeyPatch, taken: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hosted, "PORTS_S", 0.0)
    monkeypatch.setattr("pyspark_nsq.connector.fleet._ROUND_PAUSE_S", 0.0)
    texts = {"receivers": "executors", "receiverHost": "127.0.0.1"}
    crew = RemoteCrew(parse_source_options(OPTIONS | texts), QUERY, nothing, nothing, nothing)
    crew.start()
    assert crew.way
    assert crew.way.starting
    way = replace(crew.way, starting=replace(crew.way.starting, ports=range(taken, taken + 1)))
    for _ in range(6):
        crew.new_round(lambda: True)
        folder = tmp_path / "receiver"
        make_private(folder)
        with StopSignal() as stopping:
            HostedReceiver(way, folder, stopping).run(0.01)
        assert not folder.exists()
    words = f"{socket.gethostname()}: options receiverPorts and receiverHost: cannot listen at 127.0.0.1:{taken}"
    assert words in str(crew.failure)
    assert len([record for record in caplog.records if record.name == fleet.__name__ and words in record.message]) == 1
    crew.stop()
