"""The reader behind ``nsq tail`` and the demo, where connections come and go."""

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from pyspark_nsq.cli.reading import Reader, Received, _Subscription
from pyspark_nsq.connector.client import NsqdStream
from pyspark_nsq.connector.options import parse_source_options
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.proto.compression import SnappyCompressor
from pyspark_nsq.proto.frames import HEARTBEAT, RESPONSE, encode_frame
from pyspark_nsq.testing import LocalNsq

# What nsqd answers to IDENTIFY, as far as it is needed.
FACTS = {"max_rdy_count": 2500, "msg_timeout": 60_000, "max_msg_timeout": 900_000, "snappy": True}
RESERVED_CHUNK = b"\x02\0\0\0"


def test_once_connected_again_it_waits_as_before(
    make_nsq: Callable[[], LocalNsq], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsq = make_nsq()
    nsq.create_channel("steady", "c")
    place = {"nsqdTcpAddresses": nsq.nsqd_tcp_addresses[0], "retryDelayMax": "1s", "lookupdPollInterval": "1h"}
    with Reader(parse_source_options({**place, "topic": "steady", "channel": "c"})) as reader:
        assert reader.receive(0) == []
        nsq.nsqds[0].kill()
        nsq.nsqds[0].start()
        nsq.publish("steady", ["after"])
        received = reader.receive(60)
        assert [each.message.body for each in received] == [b"after"]
        reader.finish(received)

        turns: list[float] = []
        exchange = reader._exchange

        def counted(wait_s: float) -> list[Received]:
            turns.append(wait_s)
            return exchange(wait_s)

        monkeypatch.setattr(reader, "_exchange", counted)
        assert reader.receive(0.5) == []
        assert len(turns) <= 3


def answer_until_it_is_undecodable(nsqd: socket.socket) -> None:
    """To one client: what it can read and what it cannot come at once."""
    peer, _ = nsqd.accept()
    with peer, peer.makefile("rb") as received:
        assert received.readline() == b"  V2IDENTIFY\n"
        received.read(int.from_bytes(received.read(4), "big"))
        peer.sendall(encode_frame(RESPONSE, json.dumps(FACTS).encode()))
        stream = SnappyCompressor()
        peer.sendall(stream.compress(encode_frame(RESPONSE, b"OK")))
        peer.recv(1)  # SUB
        peer.sendall(stream.compress(encode_frame(RESPONSE, b"OK")) + RESERVED_CHUNK)
        while peer.recv(65536):
            pass


def test_a_stream_that_cannot_be_decoded_is_a_connection_that_broke(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nsqd:
        answering = threading.Thread(target=answer_until_it_is_undecodable, args=(nsqd,))
        answering.start()
        place = {"nsqdTcpAddresses": f"127.0.0.1:{nsqd.getsockname()[1]}", "snappy": "true", "retryDelay": "1h"}
        place["retryDelayMax"] = "1h"
        with Reader(parse_source_options({**place, "topic": "t", "channel": "c"})) as reader:
            deadline = time.monotonic() + 30
            while "the connection broke (corrupt snappy stream" not in caplog.text:
                assert time.monotonic() < deadline
                assert reader.receive(0.1) == []
        answering.join()


def test_an_nsqd_that_never_reads_gets_no_answers_to_its_heartbeats() -> None:
    sock, peer = socket.socketpair()
    with peer, closing(NsqdStream(Address("127.0.0.1", 4150), sock)) as stream:
        subscription = _Subscription(("topic", stream.address), "channel", stream)
        subscription.send(bytes(2**24))
        waiting = stream.unsent_size
        assert waiting > 0
        peer.sendall(10 * encode_frame(RESPONSE, HEARTBEAT))
        assert len(subscription.receive()) == 10
        assert stream.unsent_size == waiting
