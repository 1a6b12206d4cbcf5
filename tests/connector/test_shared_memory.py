"""Batches handed over in memory are what would have been sent, and nothing of that memory is left."""

import os
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
import pytest
from model_nsqd import Loop

from pyspark_nsq.connector import shared_memory
from pyspark_nsq.connector.connection import Connection, Source
from pyspark_nsq.connector.handshake import ServerFacts
from pyspark_nsq.connector.receiver_core import ReceiverCore
from pyspark_nsq.connector.receiver_service import ReceiverService, StatusBoard, serve
from pyspark_nsq.connector.rows import Place, RangePartition, fetch
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.connector.source_state import Limits
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc
from pyspark_nsq.proto.columns import decode_frames
from pyspark_nsq.proto.frames import encode_message

TOKEN = "token"
LIMITS = Limits("channel", 1000, 2**30, 2**20, None, None, 0.1, 10.0)
COLUMNS = ["body", "id", "timestamp", "attempts"]


@pytest.fixture
def address() -> Iterator[str]:
    """A receiver that holds 30 messages of two nsqds, which came in six pieces."""
    core = ReceiverCore(LIMITS, 0)
    for index in range(6):
        source = Source("topic", Address("host", 1 + index // 3))
        connection = Connection(source, ServerFacts("1", 2500, 60_000, 900_000), "channel", 2**20)
        frames = [encode_message(index, 1, b"%016d" % number, b"body" * number) for number in range(5)]
        core.lane.append(decode_frames(b"".join(frames), 2**20).messages, connection, 0.0)
    server, port = serve(ReceiverService(core, Loop(), StatusBoard()), TOKEN, "127.0.0.1", [0], None)  # type: ignore[arg-type]
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


def content(address: str, columns: list[str]) -> list[tuple[str, int, Any]]:
    pieces = fetch(RangePartition(Place(address), TOKEN, 2, 28), columns)
    return [(each.rows.nsqd, each.rows.message_count, each.messages and each.messages.to_pydict()) for each in pieces]


def offered_files() -> list[str]:
    """The files in memory that this process, which is the receiver too, has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if "memfd:nsq-batch" in target:
            found.append(target)
    return found


def wait_until_closed() -> None:
    deadline = time.monotonic() + 20
    while offered_files():
        assert time.monotonic() < deadline, "a file in memory was left open"
        time.sleep(0.01)


@pytest.mark.parametrize("columns", [COLUMNS, ["id"], ["attempts", "body"], []])
def test_memory_holds_what_would_be_sent(address: str, columns: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(shared_memory, "opened", lambda path: opened.append(path) or OPENED(path))
    in_memory = content(address, columns)
    assert len(opened) == bool(columns)
    monkeypatch.setattr(shared_memory, "memory_domain", lambda: "")
    assert content(address, columns) == in_memory
    assert len(opened) == bool(columns)
    assert [(nsqd, count) for nsqd, count, _ in in_memory] == [("host:1", 13), ("host:2", 13)]
    wait_until_closed()


OPENED = shared_memory.opened


def test_a_reader_elsewhere_is_sent_everything(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "opened", lambda _: pytest.fail("it cannot be opened there"))
    monkeypatch.setattr(shared_memory, "memory_domain", lambda: "another host")
    assert sum(count for _, count, _ in content(address, COLUMNS)) == 26


def test_memory_that_cannot_be_opened_is_sent_instead(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    def refuse(path: str) -> list[pa.RecordBatch]:
        refused.append(path)
        raise PermissionError(path)

    monkeypatch.setattr(shared_memory, "opened", refuse)
    assert sum(count for _, count, _ in content(address, COLUMNS)) == 26
    assert len(refused) == 1
    wait_until_closed()


def test_a_reader_that_goes_away_leaves_nothing(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = receiver_pb2_grpc.ReceiverStub(channel)  # type: ignore[no-untyped-call]
        request = pb.ReadRequest(first=0, end=30, columns=COLUMNS, memory_domain=shared_memory.memory_domain())
        call = stub.Read(request, metadata=[("authorization", TOKEN)])
        assert next(call).memory
        assert offered_files()
    wait_until_closed()


def test_what_was_opened_outlives_its_file() -> None:
    with shared_memory.offered() as path:
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, pa.schema([("n", pa.int64())])) as stream:
            stream.write_batch(pa.record_batch({"n": pa.array(range(1000), pa.int64())}))
        (batch,) = shared_memory.opened(path)
    assert not offered_files()
    assert batch.column("n").to_pylist() == list(range(1000))
