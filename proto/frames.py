"""Frames, the units of what nsqd sends: a size, a type, and that many bytes less four of data."""

from struct import Struct
from typing import Final, NamedTuple

from pyspark_nsq.proto.errors import WireError

RESPONSE: Final = 0
ERROR: Final = 1
MESSAGE: Final = 2

OK: Final = b"OK"
HEARTBEAT: Final = b"_heartbeat_"
CLOSE_WAIT: Final = b"CLOSE_WAIT"

# nsqd gives up who has not answered the last ones.
HEARTBEATS_MAX: Final = 100

MESSAGE_ID_SIZE: Final = 16
# Within a frame of a message: size, type, timestamp, attempts, id; the body is all that follows.
MESSAGE_HEADER_SIZE: Final = 34
# The smallest size field that a frame, and a message's frame, can have.
FRAME_SIZE_MIN: Final = 4
MESSAGE_FRAME_SIZE_MIN: Final = MESSAGE_HEADER_SIZE - 4

_HEADER = Struct(">II")
_MESSAGE_HEADER = Struct(">IIqH16s")
# The same behind the frame's size and type.
_MESSAGE_FIELDS = Struct(">qH16s")


class Frame(NamedTuple):
    type: int
    data: bytes


class Message(NamedTuple):
    """What the frame of a message holds; ``timestamp`` counts nanoseconds of Unix time."""

    timestamp: int
    attempts: int
    id: bytes
    body: bytes


def encode_frame(frame_type: int, data: bytes) -> bytes:
    """One frame, ready to send."""
    return _HEADER.pack(len(data) + 4, frame_type) + data


def encode_message(timestamp: int, attempts: int, message_id: bytes, body: bytes) -> bytes:
    """The frame of one message, ready to send."""
    size = len(body) + MESSAGE_FRAME_SIZE_MIN
    return _MESSAGE_HEADER.pack(size, MESSAGE, timestamp, attempts, message_id) + body


def decode_message(data: bytes) -> Message:
    """The message in the data of one frame."""
    if len(data) < MESSAGE_FRAME_SIZE_MIN - 4:
        raise WireError(
            f"a message's frame has {len(data)} bytes of data, at least {MESSAGE_FRAME_SIZE_MIN - 4} are needed"
        )
    timestamp, attempts, message_id = _MESSAGE_FIELDS.unpack_from(data)
    return Message(timestamp, attempts, message_id, data[_MESSAGE_FIELDS.size :])


def split_frames(data: bytes, frame_size_max: int) -> tuple[list[Frame], int]:
    """The whole frames at the start of ``data``, one object each, and how many bytes they take.

    This is for connections that carry replies. Messages come by the thousand: see ``columns.decode_frames``.
    """
    frames = []
    start, end = 0, len(data)
    while end - start >= 8:
        size, frame_type = _HEADER.unpack_from(data, start)
        check_frame_size(size, frame_size_max)
        if start + 4 + size > end:
            break
        frames.append(Frame(frame_type, data[start + 8 : start + 4 + size]))
        start += 4 + size
    return frames, start


def check_heartbeats(count: int) -> None:
    """Of so many that came at once."""
    if count > HEARTBEATS_MAX:
        raise WireError(f"{count} heartbeats at once, which come at intervals")


def check_frame_size(size: int, frame_size_max: int) -> None:
    if not FRAME_SIZE_MIN <= size <= frame_size_max:
        raise WireError(f"frame size {size} is not in {FRAME_SIZE_MIN}..{frame_size_max}")
