"""From what a receiver sends to the rows that the query asked for."""

from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_nsq.connector.errors import OptionError
from pyspark_nsq.connector.rows import (
    BodyError,
    Piece,
    Place,
    RangePartition,
    ReadError,
    pieces_of,
    read_range,
    received_messages,
    row_batch,
)
from pyspark_nsq.connector.schema import DEFAULT_SCHEMA, check_schema
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto.columns import decode_frames
from pyspark_nsq.proto.frames import encode_message

TIME_NS = 1_700_000_000_123_456_789
TYPES = {
    "BINARY": BinaryType(),
    "INT": IntegerType(),
    "STRING": StringType(),
    "TIMESTAMP": TimestampType(),
    "TIMESTAMP_NTZ": TimestampNTZType(),
}
COLUMNS = ("body", "id", "timestamp", "attempts")


def struct_of(text: str) -> StructType:
    """What Spark makes of such a text, without Spark."""
    fields = [field.split(maxsplit=2) for field in text.split(", ")]
    return StructType([StructField(name, TYPES[kind], not rest) for name, kind, *rest in fields])


def piece(columns: list[str], *bodies: bytes, message_id: bytes = b"0123456789abcdef") -> pb.Rows:
    """Two messages before it show that offsets into a larger batch are respected."""
    frames = b"".join(encode_message(TIME_NS, 3, message_id, body) for body in (b"?", b"??", *bodies))
    messages = decode_frames(frames, 2**20).messages.slice(2)
    rows = pb.Rows(topic="events", nsqd="127.0.0.1:4150", message_count=len(bodies))
    if columns:
        rows.columns = messages.select(columns).serialize().to_pybytes()
    return rows


def rows(
    schema: str, *bodies: bytes, invalid_utf8: str = "fail", message_id: bytes = b"0123456789abcdef"
) -> pa.RecordBatch:
    struct = struct_of(schema)
    columns = [name for name in COLUMNS if name in struct.names]
    sent = piece(columns, *bodies, message_id=message_id)
    batch = row_batch(
        Piece(sent, received_messages(sent, columns)), struct, to_arrow_schema(struct, timezone="UTC"), invalid_utf8
    )  # type: ignore[arg-type]
    batch.validate(full=True)
    # Spark refuses a schema that differs in anything.
    assert batch.schema == to_arrow_schema(struct, timezone="UTC")
    return batch


def test_all_columns() -> None:
    batch = rows("body BINARY, id STRING, timestamp TIMESTAMP, attempts INT, topic STRING, nsqd STRING", b"a", b"bc")
    assert batch.to_pylist()[1] == {
        "body": b"bc",
        "id": "0123456789abcdef",
        "timestamp": datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=123456),
        "attempts": 3,
        "topic": "events",
        "nsqd": "127.0.0.1:4150",
    }


def test_a_subset_in_another_order() -> None:
    assert rows("attempts INT, body STRING NOT NULL", "ä".encode()).to_pylist() == [{"attempts": 3, "body": "ä"}]


def test_columns_that_need_nothing_of_the_message() -> None:
    assert rows("topic STRING", b"a", b"b").to_pylist() == [{"topic": "events"}] * 2


@pytest.mark.parametrize(
    ("schema", "columns"),
    [
        ("body BINARY, id STRING, timestamp TIMESTAMP, attempts INT, topic STRING, nsqd STRING", list(COLUMNS)),
        ("nsqd STRING, attempts INT, body STRING", ["body", "attempts"]),
        ("topic STRING", []),
    ],
)
def test_what_the_query_does_not_ask_for_is_not_sent(
    schema: str, columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[pb.ReadRequest] = []

    class Stub:
        def Read(self, request: pb.ReadRequest, **_: object) -> Iterator[pb.Rows]:  # noqa: N802
            asked.append(request)
            return iter([piece(list(request.columns), b"a", b"b")])

    monkeypatch.setattr("pyspark_nsq.connector.rows._stub", lambda *_: Stub())
    struct = struct_of(schema)
    (batch,) = read_range(RangePartition(Place("127.0.0.1:1"), "token", 5, 7), struct, "fail")
    assert (batch.num_rows, batch.schema.names) == (2, struct.names)
    assert [(request.first, request.end, list(request.columns)) for request in asked] == [(5, 7, columns)]


def test_a_body_that_is_no_text() -> None:
    assert rows("body STRING", b"a", b"\xff", b"c", invalid_utf8="null").to_pydict() == {"body": ["a", None, "c"]}
    with pytest.raises(BodyError, match="set option invalidUtf8 to null"):
        rows("body STRING", b"a", b"\xff")


def test_an_id_that_is_no_text_does_not_stop_the_stream() -> None:
    assert rows("id STRING", b"a", message_id=b"\xff" * 8 + b"01234567").to_pydict() == {"id": ["????????01234567"]}


def test_many_ids_share_memory() -> None:
    count = 1000
    frames = b"".join(encode_message(1, 1, b"%016d" % number, b"x") for number in range(count))
    sent = pb.Rows(
        message_count=count, columns=decode_frames(frames, 2**20).messages.select(["id"]).serialize().to_pybytes()
    )
    struct = struct_of("id STRING")
    batch = row_batch(
        Piece(sent, received_messages(sent, ["id"])), struct, to_arrow_schema(struct, timezone="UTC"), "fail"
    )
    assert batch.column("id").to_pylist() == [f"{number:016d}" for number in np.arange(count)]


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ("body INT", "column body of the schema is INT: it can be BINARY or STRING"),
        ("body BINARY, key STRING", "column key of the schema is unknown: the source has body, id, timestamp"),
        ("timestamp TIMESTAMP_NTZ", "TIMESTAMP_NTZ: it can be TIMESTAMP"),
        ("topic STRING, topic STRING", "is there twice"),
    ],
)
def test_a_schema_that_cannot_be_served_is_refused(schema: str, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        check_schema(struct_of(schema), "fail")


def test_a_body_that_may_be_null_is_not_promised_to_be_none() -> None:
    struct = StructType([StructField("body", StringType(), nullable=False)])
    check_schema(struct, "fail")
    with pytest.raises(OptionError, match=r"body of the schema is NOT NULL: .*; leave that out, or set invalidUtf8"):
        check_schema(struct, "null")
    check_schema(StructType([StructField("body", BinaryType(), nullable=False)]), "null")


def test_the_default_schema_is_accepted() -> None:
    check_schema(DEFAULT_SCHEMA, "null")


def test_a_partition_does_not_show_its_token() -> None:
    assert "secret" not in repr(RangePartition(Place("127.0.0.1:1"), "secret", 0, 5))


def test_a_range_of_which_a_part_is_missing_yields_nothing() -> None:
    partition = RangePartition(Place("127.0.0.1:1"), "token", 0, 3)
    with pytest.raises(ReadError, match="has 3 messages, but 2 came"):
        pieces_of(iter([piece([], b"a", b"b")]), partition, [])
