"""Spark's tasks: a range of a lane, fetched from its receiver and given the columns that the query asked for."""

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StringType, StructType

from pyspark_nsq.connector.errors import NsqError

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_nsq.proto import receiver_pb2 as pb

log = logging.getLogger(__name__)

_TOKEN_KEY: Final = "authorization"  # noqa: S105 (the key, not the token)
_MESSAGE_COLUMNS: Final = ("body", "id", "timestamp", "attempts")
# A receiver that died is back within a second or two; one that cannot be reached for so long is a mistake.
_UNREACHABLE_S: Final = 30.0
_RETRY_S: Final = 0.2

InvalidUtf8 = Literal["fail", "null"]


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, address: str, token: str, first: int, end: int) -> None:
        super().__init__((first, end))
        self.address = address
        self.token = token
        self.first = first
        self.end = end

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r}, {self.first}, {self.end})"


class ReadError(NsqError):
    """A range that cannot be read, where leaving it out would lose messages."""


class BodyError(ValueError):
    """A body that is no UTF-8, where the query wants a string."""


def read_range(partition: RangePartition, schema: StructType, invalid_utf8: InvalidUtf8) -> Iterator["pa.RecordBatch"]:
    """The rows of a range: always the same, or none if the receiver that held them has died."""
    from pyspark.sql.pandas.types import to_arrow_schema

    columns = [name for name in _MESSAGE_COLUMNS if name in schema.names]
    pieces = fetch(partition, columns)
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    while pieces:
        # Popped, so that each piece is let go when Spark has it.
        yield row_batch(pieces.popleft(), columns, schema, arrow_schema, invalid_utf8)


def fetch(partition: RangePartition, columns: Sequence[str]) -> "deque[pb.Rows]":
    """All of the range before the first row goes out: a receiver that dies on the way must not leave half of it."""
    import grpc

    from pyspark_nsq.proto import receiver_pb2 as pb

    request = pb.ReadRequest(first=partition.first, end=partition.end, columns=columns)
    deadline = time.monotonic() + _UNREACHABLE_S
    while True:
        try:
            pieces = deque(_stub(partition.address).Read(request, metadata=[(_TOKEN_KEY, partition.token)]))
            break
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                # Only the receiver's successor says this, with the query's token: that the first is dead is certain.
                log.warning("%r: %s; nsqd delivers them again", partition, error.details())
                return deque()
            if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                raise _read_error(partition, error) from error
            time.sleep(_RETRY_S)
    count = sum(piece.message_count for piece in pieces)
    if count != partition.end - partition.first:
        raise ReadError(f"{partition!r} has {partition.end - partition.first} messages, but {count} came")
    return pieces


def _read_error(partition: RangePartition, error: Any) -> ReadError:
    hint = ""
    if error.code().name == "UNAVAILABLE":
        hint = "; if this task is not on the driver's host, set option receiverHost to an address it can be reached at"
    return ReadError(f"{partition!r} cannot be read: {error.code().name} {error.details()}{hint}")


_stubs: dict[str, Any] = {}
_STUBS_MAX: Final = 8


def _stub(address: str) -> Any:
    """A connection to a receiver, kept as long as the worker lives: it is quicker, no more."""
    import grpc

    from pyspark_nsq.proto import receiver_pb2_grpc

    if address not in _stubs:
        if len(_stubs) >= _STUBS_MAX:
            _stubs.clear()
        options = [
            ("grpc.max_receive_message_length", -1),
            # A receiver that is started again is back in a moment.
            ("grpc.max_reconnect_backoff_ms", 500),
            ("grpc.initial_reconnect_backoff_ms", 100),
            # Loopback and cluster addresses; a proxy of the environment is for neither.
            ("grpc.enable_http_proxy", 0),
        ]
        _stubs[address] = receiver_pb2_grpc.ReceiverStub(grpc.insecure_channel(address, options))  # type: ignore[no-untyped-call]
    return _stubs[address]


def row_batch(
    piece: "pb.Rows", columns: Sequence[str], schema: StructType, arrow_schema: "pa.Schema", invalid_utf8: InvalidUtf8
) -> "pa.RecordBatch":
    import pyarrow as pa

    from pyspark_nsq.proto.columns import MESSAGE_SCHEMA

    messages: Any = None
    if columns:
        sent = pa.schema([MESSAGE_SCHEMA.field(name) for name in columns])
        messages = pa.ipc.read_record_batch(pa.py_buffer(piece.columns), sent)
    arrays = []
    for field in schema.fields:
        if field.name == "topic":
            arrays.append(pa.repeat(piece.topic, piece.message_count))
        elif field.name == "nsqd":
            arrays.append(pa.repeat(piece.nsqd, piece.message_count))
        elif field.name == "body" and isinstance(field.dataType, StringType):
            arrays.append(_text(messages, invalid_utf8))
        else:
            arrays.append(_converted(messages.column(field.name), field.name, arrow_schema.field(field.name).type))
    arrays = [
        array if array.type == wanted.type else array.cast(wanted.type)
        for array, wanted in zip(arrays, arrow_schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)


def _converted(column: "pa.Array", name: str, wanted: "pa.DataType") -> "pa.Array":
    import pyarrow.compute as pc

    if name == "id":
        return _id_text(column)
    # Of a time in nanoseconds Spark keeps the microseconds.
    return pc.cast(column, wanted, safe=False) if column.type != wanted else column


def _id_text(ids: "pa.Array") -> "pa.Array":
    """The ids as strings, in the same memory: nsqd makes them of ASCII characters."""
    import numpy as np
    import pyarrow as pa

    from pyspark_nsq.proto.frames import MESSAGE_ID_SIZE

    first, count = ids.offset * MESSAGE_ID_SIZE, len(ids) * MESSAGE_ID_SIZE
    characters = np.frombuffer(ids.buffers()[1], np.uint8)[first : first + count]
    if (characters >= 0x80).any():
        # Of no nsqd: shown as far as it can be, the stream goes on.
        characters = np.where(characters < 0x80, characters, ord("?")).astype(np.uint8)
    offsets = np.arange(0, count + 1, MESSAGE_ID_SIZE, dtype=np.int32)
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(characters))


def _text(messages: "pa.RecordBatch", invalid_utf8: InvalidUtf8) -> "pa.Array":
    """The bodies as strings."""
    import pyarrow as pa

    bodies = messages.column("body")
    try:
        return bodies.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [_decoded(body.as_buffer().to_pybytes()) for body in bodies]
    if invalid_utf8 == "fail":
        raise BodyError(
            f"the body of the message in row {texts.index(None)} of a piece of {len(texts)} is no UTF-8: "
            "set option invalidUtf8 to null, or read body as BINARY"
        )
    return pa.array(texts, pa.string())


def _decoded(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
