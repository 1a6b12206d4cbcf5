"""Frames to columns and back, against plain loops."""

import struct
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.proto.columns import MESSAGE_SCHEMA, decode_frames, encode_messages
from pyspark_nsq.proto.errors import WireError
from pyspark_nsq.proto.frames import (
    ERROR,
    HEARTBEAT,
    HEARTBEATS_MAX,
    OK,
    RESPONSE,
    Frame,
    decode_message,
    encode_frame,
    encode_message,
    split_frames,
)

FRAME_SIZE_MAX = 4096


pytestmark = pytest.mark.usefixtures("way")


class Message(NamedTuple):
    body: bytes
    id: bytes
    timestamp: int
    attempts: int


class Stream(NamedTuple):
    """What a buffer of frames holds: the specification of ``decode_frames``."""

    messages: list[Message]
    controls: list[tuple[int, Frame]]
    consumed: int


def decode_by_loop(data: bytes) -> Stream:
    messages: list[Message] = []
    controls: list[tuple[int, Frame]] = []
    position = 0
    while position + 4 <= len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        if not 4 <= size <= FRAME_SIZE_MAX:
            raise WireError("size")
        if position + 4 + size > len(data):
            break
        kind, content = struct.unpack(f">I{size - 4}s", data[position + 4 : position + 4 + size])
        if kind == 2:
            if size < 30:
                raise WireError("too small for a message")
            timestamp, attempts, message_id = struct.unpack_from(">qH16s", content)
            messages.append(Message(content[26:], message_id, timestamp, attempts))
        elif kind in (0, 1):
            controls.append((len(messages), Frame(kind, content)))
        else:
            raise WireError("type")
        position += 4 + size
    return Stream(messages, controls, position)


def decode_by_columns(data: bytes) -> Stream:
    decoded = decode_frames(data, FRAME_SIZE_MAX)
    assert decoded.messages.schema == MESSAGE_SCHEMA
    decoded.messages.validate(full=True)
    columns = [decoded.messages.column(name) for name in ("body", "id", "timestamp", "attempts")]
    columns[2] = columns[2].cast(pa.int64())
    messages = [Message(*row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]
    return Stream(messages, [tuple(control) for control in decoded.controls], decoded.consumed)


# What looks like a message where none begins, or like its beginning.
LOOKALIKES = [b"\0\0\0\2", b"\0\0\0\x1e\0\0\0\2", b"\0", b"\2", encode_message(1, 1, b"0123456789abcdef", b"body")]

messages = st.builds(
    Message,
    st.binary(max_size=40) | st.lists(st.sampled_from(LOOKALIKES), max_size=4).map(b"".join),
    st.binary(min_size=16, max_size=16),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**16 - 1),
)
controls = st.builds(
    Frame, st.sampled_from([RESPONSE, ERROR]), st.binary(max_size=40) | st.sampled_from([OK, HEARTBEAT])
)
streams = st.lists(messages | controls, max_size=12)


def encode(items: list[Message | Frame]) -> bytes:
    return b"".join(
        encode_frame(item.type, item.data)
        if isinstance(item, Frame)
        else encode_message(item.timestamp, item.attempts, item.id, item.body)
        for item in items
    )


@given(streams, st.binary(max_size=3))
def test_a_whole_buffer(items: list[Message | Frame], trailing: bytes) -> None:
    data = encode(items)
    stream = decode_by_columns(data + trailing)
    assert stream == decode_by_loop(data + trailing)
    assert stream.consumed == len(data)
    assert stream.messages == [item for item in items if isinstance(item, Message)]
    assert [frame for _, frame in stream.controls] == [item for item in items if isinstance(item, Frame)]


@given(streams)
def test_byte_by_byte(items: list[Message | Frame]) -> None:
    buffered = b""
    decoded: list[Message | Frame] = []
    for byte in encode(items):
        buffered += bytes([byte])
        stream = decode_by_columns(buffered)
        decoded += stream.messages + [frame for _, frame in stream.controls]
        buffered = buffered[stream.consumed :]
    assert (decoded, buffered) == (items, b"")


@given(streams, st.data())
def test_damaged_bytes_end_as_in_the_loop(items: list[Message | Frame], data: st.DataObject) -> None:
    stream = bytearray(encode(items) or b"\0")
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    try:
        expected = decode_by_loop(bytes(stream))
    except WireError:
        with pytest.raises(WireError):
            decode_by_columns(bytes(stream))
    else:
        assert decode_by_columns(bytes(stream)) == expected


@given(st.lists(messages, max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_columns_to_frames(rows: list[Message], first: int, length: int) -> None:
    columns = [
        pa.array([row[index] for row in rows], pa.int64() if index == 2 else MESSAGE_SCHEMA.types[column])
        for column, index in enumerate((0, 1, 2, 3))
    ]
    columns[2] = columns[2].cast(MESSAGE_SCHEMA.types[2])
    batch = pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA).slice(first, length)
    assert encode_messages(batch).to_pybytes() == encode(list(rows[first : first + length]))


@pytest.mark.parametrize("buffer_type", [bytes, bytearray, memoryview])
def test_columns_do_not_share_memory_with_the_buffer(buffer_type: type) -> None:
    data = bytearray(encode([Message(b"body", b"0123456789abcdef", 7, 1)]))
    decoded = decode_frames(buffer_type(data), FRAME_SIZE_MAX)
    data[:] = bytes(len(data))
    assert decoded.messages.column("body").to_pylist() == [b"body"]
    assert decoded.messages.column("id").to_pylist() == [b"0123456789abcdef"]


@pytest.mark.parametrize("size", [0, 3, FRAME_SIZE_MAX + 1, 2**31, 2**32 - 1])
def test_a_size_no_nsqd_sends_is_refused_before_its_frame_is_here(size: int) -> None:
    data = encode_frame(RESPONSE, OK) + size.to_bytes(4, "big")
    with pytest.raises(WireError, match=f"frame size {size} is not in 4..4096"):
        decode_frames(data, FRAME_SIZE_MAX)
    with pytest.raises(WireError, match=f"frame size {size} is not in 4..4096"):
        split_frames(data + b"\0" * 4, FRAME_SIZE_MAX)


@pytest.mark.parametrize("size", [0, 3, FRAME_SIZE_MAX + 1])
def test_such_a_size_is_refused_where_all_of_its_message_is_here(size: int) -> None:
    message = encode_message(1, 1, b"0123456789abcdef", b"body")
    strange = size.to_bytes(4, "big") + b"\0\0\0\2" + bytes(FRAME_SIZE_MAX)
    with pytest.raises(WireError, match=f"frame size {size} is not in 4..4096"):
        decode_frames(message + strange, FRAME_SIZE_MAX)


def test_more_than_columns_have_room_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_frame(RESPONSE, OK)
    monkeypatch.setattr("pyspark_nsq.proto.columns.BUFFER_SIZE_MAX", len(data))
    assert decode_frames(data, FRAME_SIZE_MAX).consumed == len(data)
    with pytest.raises(ValueError, match="a buffer of 11 bytes is more than 10"):
        decode_frames(data + b"x", FRAME_SIZE_MAX)


def test_an_unknown_frame_type_is_refused() -> None:
    with pytest.raises(WireError, match=r"frame type 3 is not in 0\.\.2"):
        decode_frames(encode_frame(3, b""), FRAME_SIZE_MAX)


def test_a_message_frame_without_room_for_its_header_is_refused() -> None:
    with pytest.raises(WireError, match="frame size 29 is too small for a message"):
        decode_frames(encode_frame(2, bytes(25)), FRAME_SIZE_MAX)


def test_heartbeats_by_the_hundred_are_no_nsqd_s() -> None:
    """Each would cost an answer, and time in which nobody else is heard."""
    data = encode_frame(RESPONSE, HEARTBEAT) * HEARTBEATS_MAX
    assert len(decode_frames(data, FRAME_SIZE_MAX).controls) == HEARTBEATS_MAX
    with pytest.raises(WireError, match="101 heartbeats at once"):
        decode_frames(data + encode_frame(RESPONSE, HEARTBEAT), FRAME_SIZE_MAX)


@given(st.lists(controls, max_size=6), st.binary(max_size=7))
def test_replies_as_objects(items: list[Frame], trailing: bytes) -> None:
    data = encode(list(items))
    partial = encode_frame(RESPONSE, b"more")[: len(trailing)]
    assert split_frames(data + partial, FRAME_SIZE_MAX) == (items, len(data))


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**16 - 1), st.binary(min_size=16, max_size=16), st.binary())
def test_one_message_comes_out_as_it_went_in(timestamp: int, attempts: int, message_id: bytes, body: bytes) -> None:
    (frame,), _ = split_frames(encode_message(timestamp, attempts, message_id, body), 2**20)
    assert decode_message(frame.data) == (timestamp, attempts, message_id, body)


def test_a_frame_too_small_for_a_message_is_refused() -> None:
    assert decode_message(b"\0" * 26).body == b""
    with pytest.raises(WireError, match="25 bytes"):
        decode_message(b"\0" * 25)
