"""Frames without what can be computed from their segment: how messages wait in memory that nobody is about to take.

    frame   size(4) type(4)=2 | timestamp(8) attempts(2)=1 id(16) | body

Of new messages of one size all but the bodies, and the timestamps where they differ, is known: ids are consecutive.
For bodies of 200 bytes that is a seventh less, and costs 20 ns a message to take off and as much to put back. Bodies of
different sizes stay as they are: cutting them one by one would cost as much as delivering them. Large MPUBs come
packed, with bodies that are still behind their sizes.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from pyspark_nsq.broker.message_id import HEX3, IDS_PER_TICK
from pyspark_nsq.broker.segment import Packed

_HEAD_BYTES: Final = 34
_TIMESTAMP: Final = slice(8, 16)
_LAST3: Final = slice(31, 34)  # of the id: what differs within a segment
_HEX3: Final = np.frombuffer(b"".join(HEX3), np.uint8).reshape(IDS_PER_TICK, 3)


def pack(frames: bytes, count: int, *, one_timestamp: bool) -> Packed:
    """Of `count` frames of one size."""
    table = np.frombuffer(frames, np.uint8).reshape(count, -1)
    timestamps = b"" if one_timestamp else table[:, _TIMESTAMP].tobytes()
    return Packed(frames[:_HEAD_BYTES], timestamps, table[:, _HEAD_BYTES:].tobytes(), 0)


def unpack(packed: Packed, count: int, first: int) -> bytes:
    """The frames, whose ids end with the `first` of all last three characters and those that follow."""
    head, timestamps, bodies, lead = packed
    body_table = np.frombuffer(bodies, np.uint8).reshape(count, -1)[:, lead:]
    table = np.empty((count, _HEAD_BYTES + body_table.shape[1]), np.uint8)
    table[:, :_HEAD_BYTES] = np.frombuffer(head, np.uint8)
    table[:, _LAST3] = _HEX3[first : first + count]
    if timestamps:
        table[:, _TIMESTAMP] = np.frombuffer(timestamps, np.uint8).reshape(count, 8)
    table[:, _HEAD_BYTES:] = body_table
    return table.tobytes()
