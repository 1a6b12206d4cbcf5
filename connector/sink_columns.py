"""What the sink makes of a DataFrame's columns: which of them it uses, and which rows NSQ can take."""

from collections import Counter
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import BinaryType, ByteType, DataType, IntegerType, LongType, ShortType, StringType, StructType

from pyspark_nsq.connector.errors import NsqError, OptionError
from pyspark_nsq.connector.options import SinkOptions
from pyspark_nsq.proto.arrays import body_sizes, fixed_width_array, fixed_width_values, text_array
from pyspark_nsq.proto.names import is_valid_name, quote

_TEXT: Final = (BinaryType, StringType)
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
_COLUMNS: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    "body": (_TEXT, "BINARY or STRING"),
    "value": (_TEXT, "BINARY or STRING"),
    "topic": ((StringType,), "STRING"),
    "defer_ms": (_WHOLE, "a whole number, such as INT or BIGINT"),
}


class InvalidRowError(NsqError):
    """Rows that NSQ cannot take. What they hold is told by its size only, and names by what can be printed."""


@dataclass(frozen=True)
class SinkColumns:
    """Where the parts of a message are among the columns; ``topic`` is None where the option names it."""

    body: int
    topic: int | None
    defer_ms: int | None


def choose_columns(schema: StructType, options: SinkOptions) -> SinkColumns:
    """Raises ``OptionError`` naming the column that is unknown, missing, there twice or of another type."""
    places: dict[str, int] = {}
    for index, field in enumerate(schema.fields):
        name = field.name.lower()
        if name not in _COLUMNS:
            if not options.ignore_unknown_columns:
                raise OptionError(
                    f"column {field.name}: the sink takes {', '.join(_COLUMNS)}; drop it, or set option "
                    "ignoreUnknownColumns to true"
                )
        elif name in places:
            raise OptionError(f"column {field.name}: it is there twice")
        else:
            _check_type(field.name, field.dataType)
            places[name] = index
    if ("body" in places) == ("value" in places):
        what = "both are there, name one of them" if "body" in places else "neither is there"
        raise OptionError(f"columns body and value: {what}; one of them holds what is published")
    if options.topic is None and "topic" not in places:
        raise OptionError(
            "column topic: it is not there, and option topic is not set; one of them says where to publish"
        )
    body = places["body"] if "body" in places else places["value"]
    return SinkColumns(body, places.get("topic") if options.topic is None else None, places.get("defer_ms"))


def _check_type(name: str, data_type: DataType) -> None:
    types, allowed = _COLUMNS[name.lower()]
    if not isinstance(data_type, types):
        raise OptionError(f"column {name}: its type is {data_type.simpleString().upper()}, it must be {allowed}")


class Rows(NamedTuple):
    """Rows on their way to nsqd. Without topics the option names the topic, without delays nothing waits."""

    bodies: pa.Array
    topics: pa.DictionaryArray | None
    delays_ms: pa.Array | None

    def take(self, rows: npt.NDArray[np.int64]) -> "Rows":
        index = fixed_width_array(pa.int64(), rows)
        return Rows(*(None if column is None else column.take(index) for column in self))


def read_rows(batches: list[pa.RecordBatch], columns: SinkColumns) -> Rows:
    """The columns that matter, in one piece each."""
    table = pa.Table.from_batches(batches)

    def column(index: int) -> pa.Array:
        return table.column(index).combine_chunks()

    topics = None if columns.topic is None else _names(column(columns.topic))
    delays_ms = None if columns.defer_ms is None else _without_null(column(columns.defer_ms).cast(pa.int64()))
    return Rows(column(columns.body).cast(pa.binary()), topics, delays_ms)


def _names(topics: pa.Array) -> pa.DictionaryArray:
    """Spark's strings may hold any bytes: of those that are no text comes one that is no name either."""
    encoded = topics.cast(pa.binary()).dictionary_encode()
    texts = [name.decode("utf-8", "backslashreplace") for name in encoded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(encoded.indices, text_array(texts))


def _without_null(delays_ms: pa.Array) -> pa.Array:
    return fixed_width_array(pa.int64(), fixed_width_values(delays_ms, np.int64)) if delays_ms.null_count else delays_ms


# Why a row is invalid; its code is the reason's place here.
_REASONS: Final = (
    "",
    "defer_ms is not in 0..maxReqTimeout",
    "the topic's name is not valid",
    "the topic is null",
    "the body is larger than option maxMsgSize",
    "the body is empty",
    "the body is null",
)
_VALID, _BAD_DELAY, _BAD_TOPIC, _NO_TOPIC, _LARGE_BODY, _EMPTY_BODY, _NULL_BODY = range(len(_REASONS))


class Invalid(NamedTuple):
    """Which rows are invalid, and why each is."""

    rows: npt.NDArray[np.int64]
    reasons: list[str]

    def counts(self) -> Counter[str]:
        return Counter(self.reasons)


def find_invalid(rows: Rows, options: SinkOptions) -> Invalid:
    """Every row that nsqd would refuse, with one reason each: of several the one that is looked for last."""
    codes = np.full(len(rows.bodies), _VALID, np.int8)
    if rows.delays_ms is not None:
        delays_ms = fixed_width_values(rows.delays_ms, np.int64)
        codes[(delays_ms < 0) | (delays_ms > options.defer_ms_max)] = _BAD_DELAY
    if rows.topics is not None:
        names = rows.topics.dictionary.to_pylist()
        is_bad = np.array([not is_valid_name(name) for name in names] + [False], dtype=bool)
        topics = fixed_width_values(rows.topics.indices, np.int32, of_null=len(names))
        codes[is_bad[topics]] = _BAD_TOPIC
        codes[topics == len(names)] = _NO_TOPIC
    sizes = body_sizes(rows.bodies, of_null=-1)
    codes[sizes > options.message_size_max] = _LARGE_BODY
    codes[sizes == 0] = _EMPTY_BODY
    codes[sizes < 0] = _NULL_BODY
    found = np.flatnonzero(codes)
    return Invalid(found, [_REASONS[code] for code in codes[found]])


def describe_invalid(rows: Rows, invalid: Invalid, options: SinkOptions) -> str:
    """The error's text: how many, and the first one without its content."""
    first = int(invalid.rows[0])
    body = rows.bodies[first]
    facts = [f"its body has {len(body.as_buffer())} bytes" if body.is_valid else "it has no body"]
    facts.append(f"maxMsgSize is {options.message_size_max}")
    facts.append(f"its topic is {_shown_topic(rows, first, options)}")
    if rows.delays_ms is not None:
        facts.append(f"its defer_ms is {rows.delays_ms[first].as_py()}, maxReqTimeout {options.defer_ms_max}")
    return (
        f"{len(invalid.rows)} of {len(rows.bodies)} rows cannot be published. The first: {invalid.reasons[0]} "
        f"({', '.join(facts)}). Option onInvalid=skip leaves such rows out, onInvalid=deadLetterTopic keeps them aside"
    )


def _shown_topic(rows: Rows, row: int, options: SinkOptions) -> str:
    name = options.topic if rows.topics is None else rows.topics[row].as_py()
    return "null" if name is None else quote(name[:100].encode("utf-8", "surrogatepass"))


def valid_rows(rows: Rows, invalid: Invalid) -> Rows:
    if len(invalid.rows) == 0:
        return rows
    return rows.take(np.delete(np.arange(len(rows.bodies)), invalid.rows))


def by_topic(rows: Rows, options: SinkOptions) -> list[tuple[str, Rows]]:
    """The rows of each topic, in their order."""
    if rows.topics is None:
        assert options.topic is not None
        return [(options.topic, rows)]
    codes = fixed_width_values(rows.topics.indices, np.int32)
    names = rows.topics.dictionary.to_pylist()
    counts = np.bincount(codes, minlength=len(names))
    if np.count_nonzero(counts) == 1:
        return [(names[int(counts.argmax())], rows)]
    ordered = rows.take(np.argsort(codes, kind="stable"))
    ends = np.cumsum(counts)
    parts = []
    for name, end, count in zip(names, ends.tolist(), counts.tolist(), strict=True):
        if count:
            parts.append((name, _slice(ordered, end - count, count)))
    return parts


def _slice(rows: Rows, first: int, count: int) -> Rows:
    return Rows(*(None if column is None else column.slice(first, count) for column in rows))


def split_deferred(rows: Rows) -> tuple[Rows, Rows | None]:
    """The rows to deliver at once, and those to deliver later if there are any."""
    if rows.delays_ms is None:
        return rows, None
    is_deferred = fixed_width_values(rows.delays_ms, np.int64) > 0
    if not is_deferred.any():
        return rows, None
    return rows.take(np.flatnonzero(~is_deferred)), rows.take(np.flatnonzero(is_deferred))
