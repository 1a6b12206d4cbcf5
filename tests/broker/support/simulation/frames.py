"""Frames as a client sees them."""

from collections.abc import Iterable
from typing import NamedTuple


class Frame(NamedTuple):
    """A message frame, taken apart."""

    timestamp: int
    attempts: int
    message_id: bytes
    body: bytes


def parse(buffers: Iterable[bytes | memoryview]) -> list[Frame]:
    """All frames in the buffers."""
    data = b"".join(buffers)
    frames = []
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        assert data[position + 4 : position + 8] == b"\x00\x00\x00\x02"
        timestamp = int.from_bytes(data[position + 8 : position + 16], "big")
        attempts = int.from_bytes(data[position + 16 : position + 18], "big")
        frames.append(
            Frame(timestamp, attempts, data[position + 18 : position + 34], data[position + 34 : position + 4 + size])
        )
        position += 4 + size
    assert position == len(data)
    return frames
