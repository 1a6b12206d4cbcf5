"""Receivers that are not the coordinator's children, but for their processes."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from pyspark_nsq.connector.beginning import Beginning
from pyspark_nsq.connector.channels import TOKEN_KEY, listen, make_server
from pyspark_nsq.connector.receiver_host import HostService
from pyspark_nsq.connector.settings import ConnectionSettings
from pyspark_nsq.connector.source_state import Limits
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc

HOST_TOKEN = "the token of the host"
LIMITS = Limits("channel", 0, 2**20, 2**20, None, None, 0.1, 1.0)
BEGINNING = Beginning("session", "the token of the query", 0, LIMITS, ConnectionSettings(), 0.5, 60.0)


class Host:
    """A receiver process, but for the process."""

    def __init__(self, port: int = 0) -> None:
        self.instance = secrets.token_hex(8)
        self.service = HostService(HOST_TOKEN, "/somewhere/a.sock")
        self.server = make_server(16)
        receiver_pb2_grpc.add_ReceiverServicer_to_server(self.service, self.server)  # type: ignore[no-untyped-call]
        self.address = f"127.0.0.1:{listen(self.server, '127.0.0.1', [port], None)}"
        self.server.start()
        self.channel = grpc.insecure_channel(self.address)
        self.stub: Any = receiver_pb2_grpc.ReceiverStub(self.channel)  # type: ignore[no-untyped-call]

    def control(self, *commands: pb.Command, token: str = HOST_TOKEN) -> Any:
        """The statuses of a stream that sends these, and then nothing more for as long as it lasts."""
        ended = threading.Event()

        def send() -> Iterator[pb.Command]:
            yield from commands
            ended.wait()

        call = self.stub.Control(send(), metadata=[(TOKEN_KEY, token)])
        call.add_callback(ended.set)
        return call

    def read(self, token: str) -> grpc.StatusCode:
        """With what a read fails."""
        with pytest.raises(grpc.RpcError) as caught:
            list(self.stub.Read(pb.ReadRequest(first=0, end=1), metadata=[(TOKEN_KEY, token)], timeout=20))
        code: grpc.StatusCode = caught.value.code()
        return code

    def stop(self) -> None:
        self.channel.close()
        self.service.stop()
        self.server.stop(0).wait()


def wait_until(look: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def hold_the_end(host: Host, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Stop the host's session, whose nsqds do not take back what it has before the event."""
    (session,) = host.service.sessions
    given_back = threading.Event()
    monkeypatch.setattr(session.loop, "_close", lambda _is_done: given_back.wait(30))
    session.stop()
    wait_until(lambda: session.core.stopping)
    return given_back
