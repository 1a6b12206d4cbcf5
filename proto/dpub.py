"""DPUB, a message to be delivered later, from an Arrow column of bodies and one of delays."""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_nsq.proto.arrays import binary_array, binary_scalar, body_sizes

_SIZE: Final = Struct(">I")


class Dpubs(NamedTuple):
    """The commands for so many rows; nsqd answers each of them."""

    message_count: int
    data: pa.Buffer


def encode_dpubs(
    topic: str, bodies: pa.Array, delays_ms: pa.Array, *, batch_size_max: int, count_max: int
) -> Iterator[Dpubs]:
    """A DPUB a row, handed out in batches of at most so many bytes and rows; a larger row goes alone.

    Bodies are binary or string, and none of them null or empty; delays are whole numbers from 0 on.
    """
    bodies = bodies.cast(pa.binary())
    commands = _join(topic, bodies, delays_ms)
    ends = np.frombuffer(commands.buffers()[1], np.int32)[commands.offset + 1 : commands.offset + len(commands) + 1]
    data = commands.buffers()[2]
    first, start = 0, 0
    while first < len(ends):
        fitting = int(np.searchsorted(ends, start + batch_size_max, side="right"))
        end = min(max(fitting, first + 1), first + count_max)
        yield Dpubs(end - first, data.slice(start, int(ends[end - 1]) - start))
        first, start = end, int(ends[end - 1])


def _join(topic: str, bodies: pa.Array, delays_ms: pa.Array) -> pa.Array:
    """The commands as a column."""
    sizes = body_sizes(bodies).astype(">u4")
    borders = np.arange(0, (len(sizes) + 1) * _SIZE.size, _SIZE.size, dtype=np.int32)
    size_fields = binary_array(sizes, borders)
    digits = delays_ms.cast(pa.string()).cast(pa.binary())
    command, end, nothing = map(binary_scalar, (f"DPUB {topic} ".encode(), b"\n", b""))
    return pc.binary_join_element_wise(command, digits, end, size_fields, bodies, nothing)
