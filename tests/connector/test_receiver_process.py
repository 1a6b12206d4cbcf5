"""The receiver as a process: who may ask it, and how it ends."""

import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import pytest
from model_nsqd import Loop, ModelNsqd, run
from model_nsqd import started as core_of

from pyspark_nsq.connector.offsets import first_position
from pyspark_nsq.connector.receiver import Setup
from pyspark_nsq.connector.receiver_core import ReceiverCore
from pyspark_nsq.connector.receiver_service import ReceiverService, StatusBoard, serve
from pyspark_nsq.connector.rows import Place, RangePartition, ReadError, fetch
from pyspark_nsq.connector.settings import ConnectionSettings
from pyspark_nsq.connector.source_state import Limits
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc

COMMAND = [sys.executable, "-P", "-m", "pyspark_nsq.connector.receiver"]
TOKEN = "a token that nobody sees"
LIMITS = Limits("channel", 100, 2**20, 2**20, None, None, 0.1, 1.0)
SETUP = Setup("127.0.0.1", range(1), TOKEN, first_position(1), LIMITS, ConnectionSettings(), 0.5)


@pytest.fixture
def receiver() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        yield process
        process.kill()


def started(process: "subprocess.Popen[bytes]", setup: Setup = SETUP) -> str:
    """The address at which it serves."""
    assert process.stdin
    assert process.stdout
    pickle.dump(setup, process.stdin)
    process.stdin.flush()
    return f"127.0.0.1:{int(process.stdout.readline())}"


def code(address: str, token: str | None, first: int, end: int, lane: int = 0) -> grpc.StatusCode:
    """With what a read fails."""
    metadata = [] if token is None else [("authorization", token)]
    with grpc.insecure_channel(address) as channel:
        stub = receiver_pb2_grpc.ReceiverStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Read(pb.ReadRequest(lane=lane, first=first, end=end), metadata=metadata))
    found: grpc.StatusCode = caught.value.code()
    return found


def test_only_the_token_opens_it(receiver: "subprocess.Popen[bytes]") -> None:
    address = started(receiver)
    first = first_position(1)
    for wrong in (None, "", "another", TOKEN + "x"):
        assert code(address, wrong, first, first + 1) is grpc.StatusCode.UNAUTHENTICATED
    assert code(address, TOKEN, first, first + 1) is grpc.StatusCode.OUT_OF_RANGE


def test_a_range_of_the_receiver_before_is_lost_and_nothing_else_is(receiver: "subprocess.Popen[bytes]") -> None:
    address = started(receiver)
    assert not fetch(RangePartition(Place(address), TOKEN, 5, 9), ["body"])
    # On the ports of a range it may be the receiver of another lane that is there now.
    assert code(address, TOKEN, first_position(1), first_position(1) + 9, lane=1) is grpc.StatusCode.NOT_FOUND
    with pytest.raises(ReadError, match="UNAUTHENTICATED"):
        fetch(RangePartition(Place(address), "another", 5, 9), ["body"])
    with pytest.raises(ReadError, match="OUT_OF_RANGE"):
        fetch(RangePartition(Place(address), TOKEN, first_position(1), first_position(1) + 9), ["body"])


def serving(core: ReceiverCore, port: int = 0) -> tuple[grpc.Server, int]:
    """What a receiver serves, without its process."""
    return serve(ReceiverService(core, Loop(), StatusBoard()), TOKEN, "127.0.0.1", [port], None)  # type: ignore[arg-type]


def test_a_task_waits_for_the_successor_of_one_that_gives_back_what_it_holds() -> None:
    nsqd = ModelNsqd()
    core = core_of(nsqd)
    nsqd.publish(4)
    run(core, nsqd, 1.0)
    server, port = serving(core)
    core.stop(2.0)
    assert code(f"127.0.0.1:{port}", TOKEN, 0, 4) is grpc.StatusCode.UNAVAILABLE
    with ThreadPoolExecutor() as pool:
        fetched = pool.submit(fetch, RangePartition(Place(f"127.0.0.1:{port}"), TOKEN, 0, 4), ["body"])
        server.stop(0).wait()
        successor, _ = serving(ReceiverCore(LIMITS, first_position(1)), port)
        assert not fetched.result()
    successor.stop(0).wait()


def test_the_token_is_in_neither_arguments_nor_environment(receiver: "subprocess.Popen[bytes]") -> None:
    started(receiver)
    for name in ("cmdline", "environ"):
        with open(f"/proc/{receiver.pid}/{name}", "rb") as file:
            assert TOKEN.encode() not in file.read()
    assert TOKEN not in repr(SETUP)


def test_the_end_of_its_standard_input_ends_it(receiver: "subprocess.Popen[bytes]") -> None:
    started(receiver)
    assert receiver.stdin
    receiver.stdin.close()
    assert receiver.wait(20) == 0


# A coordinator that lets somebody else keep its end of the receiver's standard input.
COORDINATOR = f"import subprocess; subprocess.Popen({COMMAND}).wait()"


def test_the_death_of_its_parent_ends_it_although_its_standard_input_stays_open() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", COORDINATOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as parent:
        started(parent)
        parent.kill()
        parent.wait()
        assert parent.stdin
        assert parent.stdout
        try:
            # Nobody but the receiver can write there now.
            assert select.select([parent.stdout], [], [], 20)[0]
            assert parent.stdout.read(1) == b""
        finally:
            parent.stdin.close()


def test_a_termination_ends_it_and_an_interrupt_does_not(receiver: "subprocess.Popen[bytes]") -> None:
    started(receiver)
    os.kill(receiver.pid, signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        receiver.wait(0.5)
    receiver.terminate()
    assert receiver.wait(20) == 0


def test_a_successor_gets_the_same_port(receiver: "subprocess.Popen[bytes]") -> None:
    address = started(receiver)
    receiver.kill()
    receiver.wait()
    port = int(address.rpartition(":")[2])
    setup = replace(SETUP, ports=range(port, port + 1))
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as successor:
        assert started(successor, setup) == address
        successor.kill()
