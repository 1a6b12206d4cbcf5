"""What is decoded a buffer at a time: frames and MPUB to columns, however the borders in them are found."""

from collections.abc import Callable
from typing import Any
from unittest import mock

from fuzz.target import KIB, MIB, Target
from pyspark_nsq.proto import chains, commands
from pyspark_nsq.proto.columns import decode_frames
from pyspark_nsq.proto.errors import WireError
from pyspark_nsq.proto.frames import ERROR, HEARTBEAT, OK, RESPONSE, encode_frame, encode_message
from pyspark_nsq.proto.mpub import decode_mpub

_SIZE_MAX = 2 * KIB
_BLOCK_SIZE = 64
# One after the other, as in what is small; and as in what is large, in one block or many.
_ONE_BY_ONE = {"_SEARCHED_SIZE_MIN": MIB}
_SEARCHED: dict[str, Any] = {"_SEARCHED_SIZE_MIN": 1, "_SHARE_MAX": 1}
_WAYS: tuple[dict[str, Any], ...] = (_SEARCHED, _SEARCHED | {"_BLOCK_SIZE": _BLOCK_SIZE})


def _alike(decode: Callable[[], Any]) -> None:
    """Every way leads to the same columns, or to the same error."""
    expected = _outcome(decode, _ONE_BY_ONE)
    for way in _WAYS:
        found = _outcome(decode, way)
        assert found == expected, f"{found} with {way}, {expected} one by one"


def _outcome(decode: Callable[[], Any], way: dict[str, Any]) -> object:
    with mock.patch.multiple(chains, **way):
        try:
            return decode()
        except WireError as error:
            return str(error)


def frame_columns(data: bytes) -> None:
    """An nsqd's stream."""
    _alike(lambda: decode_frames(data, _SIZE_MAX))


def mpub_columns(data: bytes) -> None:
    """The payload of an MPUB."""
    _alike(lambda: decode_mpub(data, _SIZE_MAX))


_LOOKALIKE = b"\0\0\0\x1e\0\0\0\2"
_BODIES = [b"a", b"bcd" * 9, _LOOKALIKE, bytes(5), b"x" * 100]
_MESSAGES = b"".join(encode_message(number, 1, b"%016d" % number, body) for number, body in enumerate(_BODIES))

TARGETS = [
    Target(
        "frame-columns",
        frame_columns,
        [
            _MESSAGES,
            _MESSAGES + encode_frame(RESPONSE, HEARTBEAT) + _MESSAGES,
            encode_frame(RESPONSE, OK) + _MESSAGES + encode_frame(ERROR, b"E_INVALID no") + _MESSAGES[:-9],
        ],
        [b"\0\0\0\2", _LOOKALIKE, b"\0\0\0\1", b"\0\0\x08\1", b"\xff\xff\xff\xff"],
        size_max=KIB,
        memory_per_byte=KIB,
        runs=600,
    ),
    Target(
        "mpub-columns",
        mpub_columns,
        [commands.mpub("t", bodies)[len("MPUB t\n") + 4 :] for bodies in (_BODIES, _BODIES * 3, [b"a"] * 40)],
        [b"\0\0\0\1", b"\0\0\0\5", b"\0\0\x08\1", b"\0\0\0\0", b"\xff\xff\xff\xff"],
        size_max=KIB,
        memory_per_byte=KIB,
        runs=600,
    ),
]
