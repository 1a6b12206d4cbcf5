"""Between Arrow's arrays and numpy's, in the same memory where that is possible.

Arrow's own ways (``pa.array``, ``to_numpy``, Python values as arguments of its functions) import pandas where it is
installed: for each process that receives or publishes half a second and tens of MB for nothing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = bytes | bytearray | memoryview


def binary_array(data: Bytes | npt.NDArray[Any], borders: npt.NDArray[np.int32]) -> pa.BinaryArray:
    """The pieces of ``data`` between the borders, not copied."""
    buffers = [None, pa.py_buffer(borders), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(borders) - 1, buffers)


def binary_scalar(data: bytes) -> pa.BinaryScalar:
    return binary_array(data, np.array([0, len(data)], np.int32))[0]


def text_array(texts: Sequence[str]) -> pa.StringArray:
    pieces = [text.encode() for text in texts]
    borders = np.cumsum([0, *map(len, pieces)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(pieces), pa.py_buffer(borders), pa.py_buffer(b"".join(pieces)))


def repeated(text: str, count: int) -> pa.StringArray:
    """The same text in every row."""
    data = text.encode()
    borders = np.arange(0, len(data) * count + 1, len(data), dtype=np.int32) if data else np.zeros(count + 1, np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(borders), pa.py_buffer(data * count))


def fixed_width_array(data_type: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(data_type, len(values), [None, pa.py_buffer(values)])


def mask_array(mask: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(np.packbits(mask, bitorder="little"))])


def fixed_width_values(column: pa.Array, data_type: npt.DTypeLike, of_null: int = 0) -> npt.NDArray[Any]:
    """The values of a column of this type."""
    if len(column) == 0:
        return np.empty(0, data_type)
    first = column.offset * np.dtype(data_type).itemsize
    values = np.frombuffer(column.buffers()[1], data_type, len(column), first)
    return np.where(_is_null(column), of_null, values) if column.null_count else values


def _is_null(column: pa.Array) -> npt.NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(column.buffers()[0], np.uint8), bitorder="little")
    is_null: npt.NDArray[np.bool_] = bits[column.offset : column.offset + len(column)] == 0
    return is_null


def body_sizes(bodies: pa.BinaryArray, of_null: int = 0) -> npt.NDArray[Any]:
    """How many bytes each of them has."""
    return fixed_width_values(pc.binary_length(bodies), np.int32, of_null)
