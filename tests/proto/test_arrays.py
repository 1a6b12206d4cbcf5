"""Arrow's arrays from numpy's and back, against Arrow's own ways."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.proto.arrays import (
    binary_scalar,
    body_sizes,
    fixed_width_array,
    fixed_width_values,
    mask_array,
    repeated,
    text_array,
)

numbers = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=40)
slices = st.tuples(st.integers(0, 20), st.integers(0, 40))


@given(numbers, slices, st.integers(-5, 5))
def test_values_are_read_and_nulls_are_replaced(rows: list[int | None], part: tuple[int, int], of_null: int) -> None:
    column = pa.array(rows, pa.int64()).slice(*part)
    expected = [of_null if value is None else value for value in column.to_pylist()]
    assert fixed_width_values(column, np.int64, of_null).tolist() == expected


@given(st.lists(st.none() | st.binary(max_size=20), max_size=40), slices, st.sampled_from([0, -1]))
def test_sizes_of_bodies(bodies: list[bytes | None], part: tuple[int, int], of_null: int) -> None:
    column = pa.array(bodies, pa.binary()).slice(*part)
    expected = [of_null if body is None else len(body) for body in column.to_pylist()]
    assert body_sizes(column, of_null).tolist() == expected


@given(st.lists(st.booleans(), max_size=40))
def test_masks(mask: list[bool]) -> None:
    array = mask_array(np.array(mask, np.bool_))
    array.validate(full=True)
    assert array.equals(pa.array(mask, pa.bool_()))


@given(st.lists(st.integers(0, 2**16 - 1), max_size=40))
def test_arrays_of_fixed_width(values: list[int]) -> None:
    array = fixed_width_array(pa.uint16(), np.array(values, np.uint16))
    assert array.equals(pa.array(values, pa.uint16()))


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("text", ["", "orders", "größer"])
def test_a_text_in_every_row(text: str, count: int) -> None:
    array = repeated(text, count)
    array.validate(full=True)
    assert array.equals(pa.array([text] * count, pa.string()))


@given(st.lists(st.text()))
def test_texts(texts: list[str]) -> None:
    array = text_array(texts)
    array.validate(full=True)
    assert array.equals(pa.array(texts, pa.string()))


@pytest.mark.parametrize("data", [b"", b"DPUB "])
def test_scalars(data: bytes) -> None:
    assert binary_scalar(data) == pa.scalar(data, pa.binary())


RECEIVED_AND_PUBLISHED = """
import struct, sys
import numpy as np
import pyarrow as pa
from pyspark_nsq.connector.options import parse_sink_options
from pyspark_nsq.connector.redeliveries import delivered_again, without_repeats
from pyspark_nsq.connector.rows import Piece, row_batch
from pyspark_nsq.connector.schema import DEFAULT_SCHEMA as SCHEMA
from pyspark_nsq.connector.sink_columns import SinkColumns, by_topic, find_invalid, read_rows, split_deferred
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto.arrays import binary_array, fixed_width_array, repeated
from pyspark_nsq.proto.columns import decode_frames, encode_messages
from pyspark_nsq.proto.dpub import encode_dpubs
from pyspark_nsq.proto.mpub import encode_mpubs
from pyspark.sql.pandas.types import to_arrow_schema
frames = b"".join(
    struct.pack(">IIqH", 4 + 26 + 3, 2, 1, attempts) + b"0123456789abcdef" + b"one" for attempts in (1, 2)
) + struct.pack(">II", 6, 0) + b"OK"
messages = decode_frames(frames, 1000).messages
assert len(messages) == 2 and delivered_again(messages).any() and list(without_repeats(messages))
encode_messages(messages)
piece = Piece(pb.Rows(topic="t", nsqd="n", message_count=2), messages)
row_batch(piece, SCHEMA, to_arrow_schema(SCHEMA, timezone="UTC"), "null")
bodies = binary_array(b"onetwo", np.array([0, 3, 6], np.int32))
delays = fixed_width_array(pa.int64(), np.array([0, 9]))
table = pa.RecordBatch.from_arrays([bodies, repeated("orders", 2), delays], ["body", "topic", "defer_ms"])
rows = read_rows([table], SinkColumns(0, 1, 2))
options = parse_sink_options({"nsqdTcpAddresses": "127.0.0.1:1"})
assert len(find_invalid(rows, options).rows) == 0
for name, part in by_topic(rows, options):
    now, later = split_deferred(part)
    assert list(encode_mpubs(name, now.bodies, message_size_max=100, body_size_max=1000))
    assert list(encode_dpubs(name, later.bodies, later.delays_ms, batch_size_max=1000, count_max=10))
print("pandas" in sys.modules)
"""


def test_what_receives_and_publishes_does_not_import_pandas() -> None:
    pytest.importorskip("pandas")
    ran = subprocess.run([sys.executable, "-c", RECEIVED_AND_PUBLISHED], capture_output=True, text=True)
    assert ran.stdout == "False\n", ran.stderr
