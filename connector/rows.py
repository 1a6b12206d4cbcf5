"""Spark's tasks: a range of a lane, fetched from its receiver and given the columns that the query asked for."""

import itertools
import logging
import os
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StringType, StructType

from pyspark_nsq.connector.errors import NsqError
from pyspark_nsq.connector.receiver_tls import ReceiverTls
from pyspark_nsq.connector.ways import Way

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_nsq.proto import receiver_pb2 as pb

log = logging.getLogger(__name__)

_MESSAGE_COLUMNS: Final = ("body", "id", "timestamp", "attempts")
# A receiver that died is back within a second or two; one that cannot be reached for so long is a mistake.
_UNREACHABLE_S: Final = 30.0
_RETRY_S: Final = 0.2
# Mistakes, not accidents.
_FINAL: Final = {"OUT_OF_RANGE", "INVALID_ARGUMENT", "UNIMPLEMENTED"}

# In what gRPC tells of a peer that was reached and not believed.
_TLS_WORDS: Final = re.compile("handshake|verif|certificate", re.IGNORECASE)

InvalidUtf8 = Literal["fail", "null"]


@dataclass(frozen=True)
class Place:
    """Where a receiver is, and its lane; a unix socket on its host where it is not plainly beside the driver."""

    address: str
    lane: int = 0
    socket: str = ""
    way: Way | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """The ways to it, the shortest first."""
        is_here = self.socket and os.path.exists(self.socket)
        return (f"unix:{self.socket}", self.address) if is_here else (self.address,)


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, place: Place, token: str, first: int, end: int) -> None:
        super().__init__((first, end))
        self.place = place
        self.token = token
        self.first = first
        self.end = end

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.place.address!r}, {self.first}, {self.end})"


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
        yield row_batch(pieces.popleft(), schema, arrow_schema, invalid_utf8)


class Piece(NamedTuple):
    """Messages of one topic from one nsqd; None where no column of theirs was asked for."""

    rows: "pb.Rows"
    messages: "pa.RecordBatch | None"


def fetch(partition: RangePartition, columns: Sequence[str]) -> deque[Piece]:
    """All of the range before the first row goes out: a receiver that dies on the way must not leave half of it."""
    import grpc

    from pyspark_nsq.connector.channels import TOKEN_KEY
    from pyspark_nsq.connector.shared_memory import memory_domain
    from pyspark_nsq.proto import receiver_pb2 as pb

    request = pb.ReadRequest(
        lane=partition.place.lane,
        first=partition.first,
        end=partition.end,
        columns=columns,
        memory_domain=memory_domain(),
    )
    deadline = time.monotonic() + _UNREACHABLE_S
    targets = itertools.cycle(partition.place.targets)
    while True:
        stub = _stub(next(targets), partition.place.way)
        try:
            return pieces_of(stub.Read(request, metadata=[(TOKEN_KEY, partition.token)]), partition, columns)
        except OSError as error:
            # Memory that cannot be looked into: then it has to be sent.
            log.debug("%r: %s", partition, error)
            request.memory_domain = ""
        except grpc.RpcError as error:
            # Its successor says so, with the query's token, or the coordinator: that the first is dead is certain.
            if error.code() == grpc.StatusCode.NOT_FOUND or _is_lost(partition):
                log.warning("%r: %s; nsqd delivers them again", partition, error.details())
                return deque()
            if not _may_pass(error, partition) or time.monotonic() > deadline:
                raise _read_error(partition, error) from error
            time.sleep(_RETRY_S)


def pieces_of(call: Any, partition: RangePartition, columns: Sequence[str]) -> deque[Piece]:
    """All that comes in a call."""
    from pyspark_nsq.connector.shared_memory import opened

    wanted = partition.end - partition.first
    rows = []
    count = 0
    for each in call:
        rows.append(each)
        count += each.message_count
        if each.memory and count == wanted:
            # The call ends when we do.
            break
    if count != wanted:
        raise ReadError(f"{partition!r} has {wanted} messages, but {count} came")
    if rows and rows[0].memory:
        try:
            messages = opened(rows[0].memory)
        finally:
            call.cancel()
    else:
        messages = [received_messages(each, columns) for each in rows]
    return deque(Piece(each, batch) for each, batch in zip(rows, messages, strict=True))


def _is_lost(partition: RangePartition) -> bool:
    """What the coordinator says, where receivers come and go with their hosts."""
    from pyspark_nsq.connector.asking import is_lost

    place = partition.place
    if place.way is None or not place.way.coordinator:
        return False
    return is_lost(place.way, place.lane, partition.first, partition.end)


def _may_pass(error: Any, partition: RangePartition) -> bool:
    """Whether to try again may help: where there is a coordinator, it may just not know yet what is lost."""
    way = partition.place.way
    return error.code().name == "UNAVAILABLE" or (
        way is not None and bool(way.coordinator) and error.code().name not in _FINAL
    )


def _read_error(partition: RangePartition, error: Any) -> ReadError:
    hint = ""
    if _TLS_WORDS.search(error.details() or ""):
        hint = "; see options receiverTlsCaFile and receiverTlsServerName"
    elif error.code().name == "UNAVAILABLE":
        hint = "; if this task is not on the driver's host, set option receiverHost to an address it can be reached at"
    return ReadError(f"{partition!r} cannot be read: {error.code().name} {error.details()}{hint}")


_stubs: dict[tuple[str, ReceiverTls | None], Any] = {}
_STUBS_MAX: Final = 64


def _stub(target: str, way: Way | None) -> Any:
    """A connection to a receiver, kept as long as the worker lives: it is quicker, no more."""
    from pyspark_nsq.connector.channels import open_channel
    from pyspark_nsq.proto import receiver_pb2_grpc

    tls = way.tls if way else None
    key = (target, tls)
    if key not in _stubs:
        if len(_stubs) >= _STUBS_MAX:
            _stubs.clear()
        try:
            channel = open_channel(target, tls)
        except OSError as error:
            raise ReadError(f"option receiverTlsCaFile: {error}, on this host") from error
        _stubs[key] = receiver_pb2_grpc.ReceiverStub(channel)  # type: ignore[no-untyped-call]
    return _stubs[key]


def received_messages(rows: "pb.Rows", columns: Sequence[str]) -> "pa.RecordBatch | None":
    """What was sent along."""
    import pyarrow as pa

    from pyspark_nsq.proto.columns import MESSAGE_SCHEMA

    if not columns:
        return None
    return pa.ipc.read_record_batch(
        pa.py_buffer(rows.columns), pa.schema([MESSAGE_SCHEMA.field(name) for name in columns])
    )


def row_batch(
    piece: Piece, schema: StructType, arrow_schema: "pa.Schema", invalid_utf8: InvalidUtf8
) -> "pa.RecordBatch":
    import pyarrow as pa

    from pyspark_nsq.proto.arrays import repeated

    rows = piece.rows
    messages: Any = piece.messages
    arrays = []
    for field in schema.fields:
        if field.name == "topic":
            arrays.append(repeated(rows.topic, rows.message_count))
        elif field.name == "nsqd":
            arrays.append(repeated(rows.nsqd, rows.message_count))
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
