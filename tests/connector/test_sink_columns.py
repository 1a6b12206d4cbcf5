"""Columns and rows as the sink takes and refuses them."""

import base64
import json

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from pyspark_nsq.connector.dead_letters import dead_letters
from pyspark_nsq.connector.errors import OptionError
from pyspark_nsq.connector.options import SinkOptions, parse_sink_options
from pyspark_nsq.connector.sink_columns import (
    Rows,
    SinkColumns,
    by_topic,
    choose_columns,
    describe_invalid,
    find_invalid,
    read_rows,
    split_deferred,
    valid_rows,
)

TYPES: dict[str, DataType] = {
    "BINARY": BinaryType(),
    "STRING": StringType(),
    "TINYINT": ByteType(),
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "DOUBLE": DoubleType(),
}
WITHOUT_TOPIC = {"nsqdTcpAddresses": "h:1"}


def options(**texts: str) -> SinkOptions:
    return parse_sink_options(WITHOUT_TOPIC | {"topic": "t"} | texts)


def choose(schema: str, **texts: str) -> SinkColumns:
    fields = [StructField(name, TYPES[kind]) for name, kind in (part.split() for part in schema.split(","))]
    return choose_columns(StructType(fields), parse_sink_options(WITHOUT_TOPIC | texts))


@pytest.mark.parametrize(
    ("schema", "texts", "expected"),
    [
        ("body BINARY", {"topic": "t"}, SinkColumns(0, None, None)),
        ("Value STRING", {"topic": "t"}, SinkColumns(0, None, None)),
        ("topic STRING, body STRING", {}, SinkColumns(1, 0, None)),
        ("topic STRING, body STRING", {"topic": "t"}, SinkColumns(1, None, None)),
        ("defer_ms TINYINT, body STRING", {"topic": "t"}, SinkColumns(1, None, 0)),
        ("x DOUBLE, body STRING", {"topic": "t", "ignoreUnknownColumns": "true"}, SinkColumns(1, None, None)),
    ],
)
def test_columns(schema: str, texts: dict[str, str], expected: SinkColumns) -> None:
    assert choose(schema, **texts) == expected


@pytest.mark.parametrize(
    ("schema", "texts", "words"),
    [
        ("id BIGINT, body BINARY", {"topic": "t"}, "column id: the sink takes body, value, topic, defer_ms"),
        ("body BINARY, value BINARY", {"topic": "t"}, "body and value: both are there"),
        ("topic STRING", {}, "body and value: neither is there"),
        ("body BINARY", {}, "column topic: it is not there, and option topic is not set"),
        ("body BINARY, BODY STRING", {"topic": "t"}, "column BODY: it is there twice"),
        ("body INT", {"topic": "t"}, "column body: its type is INT, it must be BINARY or STRING"),
        ("body BINARY, topic BINARY", {}, "column topic: its type is BINARY, it must be STRING"),
        ("body BINARY, defer_ms DOUBLE", {"topic": "t"}, "column defer_ms: its type is DOUBLE"),
    ],
)
def test_columns_that_are_refused(schema: str, texts: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        choose(schema, **texts)
    assert words in str(caught.value)


def rows(bodies: list[bytes | None], topics: list[str | None] | None = None, delays: list[int] | None = None) -> Rows:
    return Rows(
        pa.array(bodies, pa.binary()),
        None if topics is None else pa.array(topics, pa.string()).dictionary_encode(),
        None if delays is None else pa.array(delays, pa.int64()),
    )


def test_batches_are_put_together_whatever_their_types() -> None:
    fields = {"body": pa.string(), "topic": pa.large_string(), "defer_ms": pa.int8()}
    schema = pa.schema(list(fields.items()))
    batches = [
        pa.record_batch([["a", None], ["x", "y"], [1, None]], schema=schema),
        pa.record_batch([["ä"], [None], [3]], schema=schema).slice(0, 1),
    ]
    read = read_rows(batches, SinkColumns(0, 1, 2))
    assert read.bodies.to_pylist() == [b"a", None, "ä".encode()]
    assert read.topics is not None
    assert read.topics.to_pylist() == ["x", "y", None]
    assert read.delays_ms is not None
    assert read.delays_ms.to_pylist() == [1, 0, 3]


def test_every_invalid_row_is_found_with_its_reason() -> None:
    found = find_invalid(
        rows(
            [b"ok", None, b"", b"12345", b"x", b"x", b"x", b"x", b"1234"],
            ["t", "t", "t", "t", None, "a b", "t", "t", "t"],
            [0, 0, 0, 0, 0, 0, -1, 3_600_001, 3_600_000],
        ),
        options(maxMsgSize="4"),
    )
    assert list(zip(found.rows.tolist(), found.reasons, strict=True)) == [
        (1, "the body is null"),
        (2, "the body is empty"),
        (3, "the body is larger than option maxMsgSize"),
        (4, "the topic is null"),
        (5, "the topic's name is not valid"),
        (6, "defer_ms is not in 0..maxReqTimeout"),
        (7, "defer_ms is not in 0..maxReqTimeout"),
    ]


def test_a_topic_that_is_no_text_is_invalid_as_other_names() -> None:
    """Spark's strings may hold any bytes."""
    topics = pa.array([b"t", b"\xfft", b"t", b"\xed\xa0\x80"], pa.binary()).view(pa.string())
    batch = pa.record_batch({"topic": topics, "body": pa.array([b"1", b"2", b"3", b"4"])})
    read = read_rows([batch], SinkColumns(1, 0, None))
    found = find_invalid(read, options())
    assert list(zip(found.rows.tolist(), found.reasons, strict=True)) == [
        (1, "the topic's name is not valid"),
        (3, "the topic's name is not valid"),
    ]
    assert r'its topic is "\\xfft"' in describe_invalid(read, found, options())
    letters = [json.loads(letter) for letter in dead_letters(read, found, options()).to_pylist()]
    assert [letter["topic"] for letter in letters] == [r"\xfft", r"\xed\xa0\x80"]
    ((topic, part),) = by_topic(valid_rows(read, found), options())
    assert (topic, part.bodies.to_pylist()) == ("t", [b"1", b"3"])


def test_the_error_tells_sizes_and_names_but_no_content() -> None:
    made = rows([b"ok", b"secret content"], ["t", 'bad "name"\n' + "x" * 1000], [0, 5])
    text = describe_invalid(made, find_invalid(made, options()), options())
    assert "1 of 2 rows cannot be published" in text
    assert "its body has 14 bytes" in text
    assert '\\"name\\"\\nxxx' in text
    assert "secret" not in text
    assert len(text) < 600


def test_without_invalid_rows_nothing_is_copied() -> None:
    made = rows([b"a"])
    assert valid_rows(made, find_invalid(made, options())) is made


def test_rows_are_grouped_by_topic_in_their_order() -> None:
    made = rows([b"1", b"2", b"3", b"4", b"5"], ["b", "a", "b", "gone", "a"], [1, 2, 3, 4, 5])
    invalid = find_invalid(rows([b"x", b"x", b"x", b"", b"x"]), options())
    groups = {
        topic: (part.bodies.to_pylist(), part.delays_ms.to_pylist())
        for topic, part in by_topic(valid_rows(made, invalid), options())
    }
    assert groups == {"b": ([b"1", b"3"], [1, 3]), "a": ([b"2", b"5"], [2, 5])}
    assert by_topic(rows([]), options())[0][0] == "t"
    assert by_topic(rows([], []), options()) == []


def test_deferred_rows_are_set_apart() -> None:
    at_once, deferred = split_deferred(rows([b"1", b"2", b"3"], None, [0, 7, 0]))
    assert at_once.bodies.to_pylist() == [b"1", b"3"]
    assert deferred is not None
    assert deferred.bodies.to_pylist() == [b"2"]
    assert split_deferred(rows([b"1"], None, [0]))[1] is None
    assert split_deferred(rows([b"1"]))[1] is None


def test_a_dead_letter_tells_all_that_fits() -> None:
    made = rows([None, b"\xff", b"y" * 2000], ["t", "bad name", "t"], [0, 5, 0])
    chosen = options(maxMsgSize="1999")
    letters = [json.loads(letter) for letter in dead_letters(made, find_invalid(made, chosen), chosen).to_pylist()]
    assert letters == [
        {"reason": "the body is null", "size": None, "topic": "t", "defer_ms": 0},
        {
            "reason": "the topic's name is not valid",
            "size": 1,
            "topic": "bad name",
            "defer_ms": 5,
            "body": base64.b64encode(b"\xff").decode(),
        },
        {"reason": "the body is larger than option maxMsgSize", "size": 2000, "topic": "t", "defer_ms": 0},
    ]
