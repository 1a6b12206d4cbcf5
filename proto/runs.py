"""Runs: many messages' FIN, TOUCH or REQ in one piece of bytes, to and from a column of ids.

A column of ids is the ids one after the other, 16 bytes each.
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pyspark_nsq.proto.frames import MESSAGE_ID_SIZE

FIN: Final = b"FIN"
TOUCH: Final = b"TOUCH"
REQ: Final = b"REQ"

# Below this many ids numpy's cost a call is more than a plain loop's cost an id.
_VECTOR_COUNT_MIN = 32

_ID = np.dtype((np.void, MESSAGE_ID_SIZE))
_Bytes: TypeAlias = npt.NDArray[np.uint8]


def encode_run(word: bytes, ids: bytes | memoryview | _Bytes, delay_ms: int | None = None) -> bytes:
    """The commands that apply ``word`` to every id; ``delay_ms`` is REQ's, and the same for all."""
    prefix, suffix = _affixes(word, delay_ms)
    column = np.frombuffer(ids, _ID)
    if len(column) == 0:
        return b""
    command = prefix + bytes(MESSAGE_ID_SIZE) + suffix
    run = bytearray(command * len(column))
    _ids_in(run, len(prefix), len(column), len(command))[:] = column
    return bytes(run)


def _ids_in(data: bytes | bytearray, start: int, count: int, width: int) -> npt.NDArray[np.void]:
    """The ids that stand in the records of a run, each as one value: numpy copies those quicker than rows of bytes."""
    return np.ndarray((count,), _ID, data, start, (width,))


def _affixes(word: bytes, delay_ms: int | None) -> tuple[bytes, bytes]:
    return word + b" ", b"\n" if delay_ms is None else b" %d\n" % delay_ms


def decode_run(data: bytes, start: int, prefix: bytes, suffix: bytes) -> bytes:
    """The ids of the records ``prefix id suffix`` that stand one after the other from ``start`` on.

    The run ends where anything else begins, also an id with a byte up to the blank: such a record is rare and
    may mean something else, the caller reads it word by word.
    """
    if not data.startswith(prefix, start):
        return b""
    width = len(prefix) + MESSAGE_ID_SIZE + len(suffix)
    if (len(data) - start) // width >= _VECTOR_COUNT_MIN:
        return _decode_long_run(data, start, prefix, suffix)
    return _decode_short_run(data, start, prefix, suffix)


def _decode_short_run(data: bytes, start: int, prefix: bytes, suffix: bytes) -> bytes:
    ids = []
    skip, width = len(prefix), len(prefix) + MESSAGE_ID_SIZE + len(suffix)
    while data.startswith(prefix, start):
        message_id = data[start + skip : start + skip + MESSAGE_ID_SIZE]
        if not data.startswith(suffix, start + skip + MESSAGE_ID_SIZE) or min(message_id, default=0) <= 0x20:
            break
        ids.append(message_id)
        start += width
    return b"".join(ids)


def _decode_long_run(data: bytes, start: int, prefix: bytes, suffix: bytes) -> bytes:
    skip, width = len(prefix), len(prefix) + MESSAGE_ID_SIZE + len(suffix)
    count = (len(data) - start) // width
    records = np.frombuffer(data, np.uint8, count * width, start).reshape(count, width)
    ids = _ids_in(data, start + skip, count, width).copy().view(np.uint8).reshape(count, MESSAGE_ID_SIZE)
    good = ~_has_byte_up_to_blank(ids)
    good &= _equal_columns(records[:, :skip], prefix)
    good &= _equal_columns(records[:, skip + MESSAGE_ID_SIZE :], suffix)
    length = count if good.all() else int(good.argmin())
    return ids[:length].tobytes()


def _equal_columns(columns: _Bytes, expected: bytes) -> npt.NDArray[np.bool_]:
    equal = np.ones(len(columns), np.bool_)
    for index, byte in enumerate(expected):
        equal &= columns[:, index] == byte
    return equal


_EACH_BLANK_PLUS_1 = np.uint64(0x2121212121212121)
_EACH_HIGH_BIT = np.uint64(0x8080808080808080)


def _has_byte_up_to_blank(ids: _Bytes) -> npt.NDArray[np.bool_]:
    # Eight bytes at a time: subtracting 0x21 from each borrows into the high bit of those below it (a borrow may
    # also mark the byte above, but only where one below was found: whether there is any stays exact).
    words = ids.view(np.uint64)
    marks = (words - _EACH_BLANK_PLUS_1) & ~words & _EACH_HIGH_BIT
    found: npt.NDArray[np.bool_] = (marks[:, 0] | marks[:, 1]) != 0
    return found
