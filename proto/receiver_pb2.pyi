from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Command(_message.Message):
    __slots__ = ("assignment", "finish", "stop")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    finish: Finish
    stop: Stop
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("sources",)
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    def __init__(self, sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("topic", "host", "port")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    host: str
    port: int
    def __init__(self, topic: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("before",)
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    before: int
    def __init__(self, before: _Optional[int] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Status(_message.Message):
    __slots__ = ("end", "finished", "held_messages", "held_bytes", "lost", "sources")
    END_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    HELD_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    end: int
    finished: int
    held_messages: int
    held_bytes: int
    lost: int
    sources: _containers.RepeatedCompositeFieldContainer[SourceStatus]
    def __init__(self, end: _Optional[int] = ..., finished: _Optional[int] = ..., held_messages: _Optional[int] = ..., held_bytes: _Optional[int] = ..., lost: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[SourceStatus, _Mapping]]] = ...) -> None: ...

class SourceStatus(_message.Message):
    __slots__ = ("source", "connections", "in_flight", "counters", "received_until_mark")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_UNTIL_MARK_FIELD_NUMBER: _ClassVar[int]
    source: Source
    connections: int
    in_flight: int
    counters: Counters
    received_until_mark: int
    def __init__(self, source: _Optional[_Union[Source, _Mapping]] = ..., connections: _Optional[int] = ..., in_flight: _Optional[int] = ..., counters: _Optional[_Union[Counters, _Mapping]] = ..., received_until_mark: _Optional[int] = ...) -> None: ...

class Counters(_message.Message):
    __slots__ = ("received", "emitted", "finished", "touched", "requeued", "timed_out", "redelivered", "dropped", "dead_lettered", "failed_connections")
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    EMITTED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    TOUCHED_FIELD_NUMBER: _ClassVar[int]
    REQUEUED_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    FAILED_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    received: int
    emitted: int
    finished: int
    touched: int
    requeued: int
    timed_out: int
    redelivered: int
    dropped: int
    dead_lettered: int
    failed_connections: int
    def __init__(self, received: _Optional[int] = ..., emitted: _Optional[int] = ..., finished: _Optional[int] = ..., touched: _Optional[int] = ..., requeued: _Optional[int] = ..., timed_out: _Optional[int] = ..., redelivered: _Optional[int] = ..., dropped: _Optional[int] = ..., dead_lettered: _Optional[int] = ..., failed_connections: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("first", "end", "columns")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ..., columns: _Optional[_Iterable[str]] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("topic", "nsqd", "message_count", "columns")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NSQD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    nsqd: str
    message_count: int
    columns: bytes
    def __init__(self, topic: _Optional[str] = ..., nsqd: _Optional[str] = ..., message_count: _Optional[int] = ..., columns: _Optional[bytes] = ...) -> None: ...
