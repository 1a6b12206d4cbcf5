"""Frames of messages to Arrow columns and back, a whole buffer at a time."""

from array import array
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_nsq.proto.arrays import (
    Bytes,
    binary_array,
    binary_scalar,
    body_sizes,
    fixed_width_array,
    fixed_width_values,
    mask_array,
)
from pyspark_nsq.proto.chains import SIZE_FIELD, chain_borders, find, find_borders, gather
from pyspark_nsq.proto.errors import WireError
from pyspark_nsq.proto.frames import (
    FRAME_SIZE_MIN,
    HEARTBEAT,
    MESSAGE,
    MESSAGE_FRAME_SIZE_MIN,
    MESSAGE_HEADER_SIZE,
    MESSAGE_ID_SIZE,
    RESPONSE,
    Frame,
    check_frame_size,
    check_heartbeats,
    encode_frame,
)

MESSAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("body", pa.binary(), nullable=False),
        pa.field("id", pa.binary(MESSAGE_ID_SIZE), nullable=False),
        pa.field("timestamp", pa.timestamp("ns", tz="UTC"), nullable=False),
        pa.field("attempts", pa.uint16(), nullable=False),
    ]
)

# Arrow's binary columns have 32-bit offsets.
BUFFER_SIZE_MAX: Final = 2**31 - 1

_SIZE = Struct(">I")
_HEARTBEAT_FRAME_SIZE: Final = len(encode_frame(RESPONSE, HEARTBEAT))
_NOTHING: Final = binary_scalar(b"")
_SIZE_AND_TYPE = np.dtype(">u8")
_HEADER = np.dtype(
    [("size", ">u4"), ("type", ">u4"), ("timestamp", ">i8"), ("attempts", ">u2"), ("id", f"V{MESSAGE_ID_SIZE}")]
)
assert _HEADER.itemsize == MESSAGE_HEADER_SIZE


class Control(NamedTuple):
    """A frame that is no message, and how many messages of the same buffer came before it."""

    messages_before: int
    frame: Frame


class Decoded(NamedTuple):
    messages: pa.RecordBatch
    controls: list[Control]
    consumed: int


def decode_frames(data: Bytes, frame_size_max: int) -> Decoded:
    """All whole frames at the start of ``data``: messages as columns, the others in their order.

    The columns do not share memory with ``data``, which may be used again. A frame that is not whole yet stays for
    the next call, its size is checked already. A size or type that no nsqd sends raises ``WireError``.
    """
    if len(data) > BUFFER_SIZE_MAX:
        raise ValueError(f"a buffer of {len(data)} bytes is more than {BUFFER_SIZE_MAX}: decode it in parts")
    borders = _frame_borders(data, frame_size_max)
    types = gather(data, borders[:-1] + 4, SIZE_FIELD)
    is_message = types == MESSAGE
    messages = _message_columns(data, borders, is_message)
    controls = [] if is_message.all() else _controls(data, borders, types)
    return Decoded(messages, controls, int(borders[-1]))


def _frame_borders(data: Bytes, frame_size_max: int) -> npt.NDArray[np.int32]:
    """Where each whole frame starts, and as the last entry where the first that is not whole does."""
    return find_borders(
        data,
        lambda block: _message_borders(block, frame_size_max),
        lambda start, stop: _borders_one_by_one(data, start, stop, frame_size_max),
    )


def _message_borders(data: memoryview, frame_size_max: int) -> npt.NDArray[np.int32]:
    """The same for the messages at the start, up to what is something else, all found at once."""
    # The type of a message is 0, 0, 0, 2, and stands behind the size.
    octets = np.frombuffer(data, np.uint8)
    is_start = octets[7:] == MESSAGE
    is_start &= octets[6:-1] == 0
    starts = find(is_start)
    heads = gather(data, starts, _SIZE_AND_TYPE).astype(np.int64)
    sizes = np.where(heads & 0xFFFFFFFF == MESSAGE, heads >> 32, 0)
    return chain_borders(starts, sizes, size_min=FRAME_SIZE_MIN, size_max=frame_size_max, end=len(data))


def _borders_one_by_one(data: Bytes, start: int, stop: int, frame_size_max: int) -> "array[int]":
    """The same for the frames that begin from ``start`` on and before ``stop``."""
    end = len(data)
    borders = array("i", [start])
    append, size_at = borders.append, _SIZE.unpack_from
    while start < stop and start + 4 <= end:
        (size,) = size_at(data, start)
        # One test on the way for sizes too small and too large: below the minimum it wraps round.
        if (size - FRAME_SIZE_MIN) & 0xFFFFFFFF > frame_size_max - FRAME_SIZE_MIN:
            check_frame_size(size, frame_size_max)
        start += 4 + size
        if start > end:
            break
        append(start)
    return borders


def _controls(data: Bytes, borders: npt.NDArray[np.int32], types: npt.NDArray[Any]) -> list[Control]:
    check_heartbeats(int(np.count_nonzero((types == RESPONSE) & (np.diff(borders) == _HEARTBEAT_FRAME_SIZE))))
    messages_before = np.cumsum(types == MESSAGE)
    controls = []
    for index in np.flatnonzero(types != MESSAGE):
        if types[index] > MESSAGE:
            raise WireError(f"frame type {types[index]} is not in 0..{MESSAGE}")
        frame = Frame(int(types[index]), bytes(data[borders[index] + 8 : borders[index + 1]]))
        controls.append(Control(int(messages_before[index]), frame))
    return controls


def _message_columns(data: Bytes, borders: npt.NDArray[np.int32], is_message: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    frames = binary_array(data, borders)
    starts = borders[:-1]
    sizes = np.diff(borders) - 4
    if not is_message.all():
        frames, starts, sizes = frames.filter(mask_array(is_message)), starts[is_message], sizes[is_message]
    if len(sizes) and sizes.min() < MESSAGE_FRAME_SIZE_MIN:
        raise WireError(
            f"frame size {sizes.min()} is too small for a message, which has {MESSAGE_FRAME_SIZE_MIN} or more"
        )
    headers = gather(data, starts, _HEADER)
    columns = [
        # An explicit stop: without one Arrow computes a negative size.
        pc.binary_slice(frames, MESSAGE_HEADER_SIZE, BUFFER_SIZE_MAX),
        fixed_width_array(MESSAGE_SCHEMA.field("id").type, np.ascontiguousarray(headers["id"])),
        fixed_width_array(MESSAGE_SCHEMA.field("timestamp").type, headers["timestamp"].astype(np.int64)),
        fixed_width_array(MESSAGE_SCHEMA.field("attempts").type, headers["attempts"].astype(np.uint16)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


def encode_messages(messages: pa.RecordBatch) -> pa.Buffer:
    """The frames of these messages (of ``MESSAGE_SCHEMA``), ready to send."""
    bodies = messages.column("body")
    headers = np.empty(len(bodies), _HEADER)
    headers["size"] = body_sizes(bodies) + MESSAGE_FRAME_SIZE_MIN
    headers["type"] = MESSAGE
    headers["timestamp"] = fixed_width_values(messages.column("timestamp"), np.int64)
    headers["attempts"] = fixed_width_values(messages.column("attempts"), np.uint16)
    ids = messages.column("id")
    headers["id"] = np.frombuffer(ids.buffers()[1], headers["id"].dtype, len(ids), ids.offset * MESSAGE_ID_SIZE)
    return join_records(headers, bodies)


def join_records(records: npt.NDArray[Any], bodies: pa.Array) -> pa.Buffer:
    """Every record with its body behind it, in one buffer."""
    if len(bodies) == 0:
        return pa.py_buffer(b"")
    borders = np.arange(0, (len(records) + 1) * records.itemsize, records.itemsize, dtype=np.int32)
    return pc.binary_join_element_wise(binary_array(records, borders), bodies, _NOTHING).buffers()[2]
