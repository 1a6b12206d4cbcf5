"""MPUB, many messages in one command, from and to an Arrow column of bodies."""

from array import array
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_nsq.proto.arrays import Bytes, binary_array, body_sizes
from pyspark_nsq.proto.chains import SIZE_FIELD, chain_borders, find, find_borders, gather
from pyspark_nsq.proto.columns import BUFFER_SIZE_MAX, join_records
from pyspark_nsq.proto.errors import WireError

SIZE_FIELD_SIZE: Final = 4
# What a message takes at least: its size, and a byte of body.
_MESSAGE_SIZE_MIN: Final = SIZE_FIELD_SIZE + 1
# Messages larger than so many times the average are rare.
_USUAL_FACTOR: Final = 16

_SIZE = Struct(">I")
_SIZE_AND_COUNT = Struct(">II")


class Mpub(NamedTuple):
    """One command, sent as ``head`` and then ``messages``: so many bodies of the column from row ``first`` on."""

    first: int
    message_count: int
    head: bytes
    messages: pa.Buffer


class BodyError(ValueError):
    """A body that nsqd would refuse: the row of the column, and why. The body itself is not shown."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"the body of row {row} {reason}")
        self.row = row
        self.reason = reason


def message_count_max(body_size_max: int) -> int:
    """How many messages nsqd takes in one MPUB."""
    return (body_size_max - SIZE_FIELD_SIZE) // _MESSAGE_SIZE_MIN


def encode_mpubs(
    topic: str,
    bodies: pa.Array,
    *,
    message_size_max: int,
    body_size_max: int,
    batch_size_max: int | None = None,
    count_max: int | None = None,
) -> Iterator[Mpub]:
    """The column, of binary or string, as few MPUBs as nsqd's limits, ``batch_size_max`` and ``count_max`` allow.

    A message larger than ``batch_size_max`` goes alone. All bodies are checked before the first command comes: a
    ``BodyError`` means that nothing was made.
    """
    bodies = bodies.cast(pa.binary())
    check_bodies(bodies, min(message_size_max, body_size_max - 2 * SIZE_FIELD_SIZE))
    size_max = min(batch_size_max or body_size_max, body_size_max)
    # nsqd's own limit of the count is kept with that of the size, as it counts bodies of one byte.
    return _encode_checked(f"MPUB {topic}\n".encode(), bodies, size_max - SIZE_FIELD_SIZE, count_max or BUFFER_SIZE_MAX)


def check_bodies(bodies: pa.Array, size_max: int) -> None:
    """Raise ``BodyError`` for the first body that is null, empty or larger than ``size_max``."""
    sizes = body_sizes(bodies)
    refused = np.flatnonzero((sizes < 1) | (sizes > size_max))
    if len(refused) == 0:
        return
    row = int(refused[0])
    if not bodies[row].is_valid:
        raise BodyError(row, "is null: a message has a body")
    if sizes[row] == 0:
        raise BodyError(row, "is empty: nsqd takes no message without a body")
    raise BodyError(row, f"has {sizes[row]} bytes, more than {size_max} that nsqd takes")


def _encode_checked(command: bytes, bodies: pa.Array, messages_size_max: int, count_max: int) -> Iterator[Mpub]:
    sizes = body_sizes(bodies)
    ends = np.cumsum(sizes + SIZE_FIELD_SIZE, dtype=np.int64)
    portion_first = 0
    while portion_first < len(ends):
        # Arrow joins at most 2 GiB at once.
        portion_end = _range_end(ends, portion_first, BUFFER_SIZE_MAX, BUFFER_SIZE_MAX)
        portion = slice(portion_first, portion_end)
        joined = join_records(sizes[portion].astype(">u4"), bodies[portion])
        offset = _end_before(ends, portion_first)
        first = portion_first
        while first < portion_end:
            end = min(_range_end(ends, first, messages_size_max, count_max), portion_end)
            start, size = _end_before(ends, first), int(ends[end - 1]) - _end_before(ends, first)
            head = command + _SIZE_AND_COUNT.pack(size + SIZE_FIELD_SIZE, end - first)
            yield Mpub(first, end - first, head, joined.slice(start - offset, size))
            first = end
        portion_first = portion_end


def _end_before(ends: np.ndarray, row: int) -> int:
    return int(ends[row - 1]) if row else 0


def _range_end(ends: np.ndarray, first: int, size_max: int, count_max: int) -> int:
    """The row after the last that fits behind row ``first`` into ``size_max`` bytes and ``count_max`` messages."""
    fitting = int(np.searchsorted(ends, _end_before(ends, first) + size_max, side="right"))
    return min(max(fitting, first + 1), first + count_max)


def decode_mpub(payload: Bytes, message_size_max: int) -> pa.BinaryArray:
    """The bodies of an MPUB's payload (the count, then each message), every length checked against what is there."""
    if len(payload) > BUFFER_SIZE_MAX:
        raise ValueError(f"an MPUB of {len(payload)} bytes is more than {BUFFER_SIZE_MAX}, what a column has room for")
    if len(payload) < SIZE_FIELD_SIZE:
        raise WireError(f"an MPUB of {len(payload)} bytes has no message count")
    (count,) = _SIZE.unpack_from(payload)
    if not 0 < count <= message_count_max(len(payload)):
        raise WireError(
            f"message count {count} is not in 1..{message_count_max(len(payload))}, what {len(payload)} bytes hold"
        )
    messages = memoryview(payload)[SIZE_FIELD_SIZE:]
    borders = _message_borders(messages, count, message_size_max)
    if len(borders) - 1 < count:
        raise WireError(f"the payload ends before message {len(borders) - 1} of {count}")
    if borders[count] != len(messages):
        raise WireError(f"{len(messages) - borders[count]} bytes follow the last of {count} messages")
    return pc.binary_slice(binary_array(messages, borders), SIZE_FIELD_SIZE, BUFFER_SIZE_MAX)


def _message_borders(messages: memoryview, count: int, message_size_max: int) -> npt.NDArray[np.int32]:
    """Where the size field of each message stands, and as the last entry where the last message ends."""
    usual_size_max = min(_USUAL_FACTOR * len(messages) // count, message_size_max)
    return find_borders(
        messages,
        lambda block: _usual_borders(block, usual_size_max),
        lambda start, stop: _borders_one_by_one(messages, start, stop, message_size_max),
    )


def _usual_borders(messages: memoryview, size_max: int) -> npt.NDArray[np.int32]:
    """The same for those at the start, up to one that is larger than this, or than 64 KiB, all found at once."""
    octets = np.frombuffer(messages, np.uint8)
    # Each size begins with 0, 0, and then something small.
    is_zero = octets == 0
    is_start = is_zero[:-3] & is_zero[1:-2]
    is_start &= octets[2:-1] <= min(size_max >> 8, 255)
    starts = find(is_start)
    sizes = gather(messages, starts, SIZE_FIELD).astype(np.int64)
    return chain_borders(starts, sizes, size_min=1, size_max=size_max, end=len(messages))


def _borders_one_by_one(messages: memoryview, start: int, stop: int, message_size_max: int) -> "array[int]":
    """The same for the messages that begin from ``start`` on and before ``stop``."""
    end = len(messages)
    borders = array("i", [start])
    append, size_at = borders.append, _SIZE.unpack_from
    while start < stop and start + SIZE_FIELD_SIZE <= end:
        (size,) = size_at(messages, start)
        if not 0 < size <= message_size_max:
            raise WireError(f"the size of the message at byte {start}, {size}, is not in 1..{message_size_max}")
        start += SIZE_FIELD_SIZE + size
        if start > end:
            raise WireError(f"the last message has {size} bytes, {start - end} more than the payload")
        append(start)
    return borders
