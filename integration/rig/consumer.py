"""A plain consumer: everything that a channel holds, finished as it comes."""

import time
from collections import Counter

from pyspark_nsq.connector.client import NsqdStream, connect
from pyspark_nsq.connector.settings import Address, ConnectionSettings
from pyspark_nsq.proto import commands
from pyspark_nsq.proto.columns import decode_frames
from pyspark_nsq.proto.frames import HEARTBEAT, OK, RESPONSE, Frame
from pyspark_nsq.proto.runs import FIN, encode_run
from rig.daemons import Nsqd

FRAME_SIZE_MAX = 64 * 2**20
READ_SIZE = 4 * 2**20


def drain(nsqd: Nsqd, topic: str, channel: str, settings: ConnectionSettings | None = None) -> Counter[bytes]:
    """Every body in the channel, with how often it came, once nothing is waiting, in flight or deferred any more."""
    address = Address("127.0.0.1", nsqd.ports["TCP"])
    stream = connect(address, settings or ConnectionSettings(), 10)
    try:
        stream.write(commands.sub(topic, channel) + commands.rdy(min(2500, stream.facts.max_rdy_count)))
        return _receive_all(stream, nsqd, topic, channel)
    finally:
        stream.close()


def _receive_all(stream: NsqdStream, nsqd: Nsqd, topic: str, channel: str) -> Counter[bytes]:
    bodies: Counter[bytes] = Counter()
    data = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not stream.wait_readable(0.1):
            if not data and nsqd.unfinished(topic, channel) == 0:
                return bodies
            continue
        piece = stream.read(READ_SIZE)
        assert piece, f"nsqd closed the connection of {topic}/{channel}"
        messages, controls, consumed = decode_frames(data + piece, FRAME_SIZE_MAX)
        data = (data + piece)[consumed:]
        bodies.update(messages.column("body").to_pylist())
        if messages.num_rows:
            stream.write(encode_run(FIN, b"".join(messages.column("id").to_pylist())))
        _answer_controls(stream, [control.frame for control in controls])
    raise AssertionError(f"{topic}/{channel} still holds {nsqd.unfinished(topic, channel)} messages")


def _answer_controls(stream: NsqdStream, frames: list[Frame]) -> None:
    for frame in frames:
        assert frame.type == RESPONSE, frame
        assert frame.data in (OK, HEARTBEAT), frame
        if frame.data == HEARTBEAT:
            stream.write(commands.NOP)
