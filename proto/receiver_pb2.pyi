from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Command(_message.Message):
    __slots__ = ("assignment", "finish", "stop", "begin", "share", "beat")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    finish: Finish
    stop: Stop
    begin: Begin
    share: Share
    beat: Beat
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., begin: _Optional[_Union[Begin, _Mapping]] = ..., share: _Optional[_Union[Share, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("session", "token", "first_position", "limits", "connection", "sources_interval_ms", "lease_ms", "resume", "lane")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_FIELD_NUMBER: _ClassVar[int]
    SOURCES_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    session: str
    token: str
    first_position: int
    limits: Limits
    connection: ConnectionSettings
    sources_interval_ms: int
    lease_ms: int
    resume: bool
    lane: int
    def __init__(self, session: _Optional[str] = ..., token: _Optional[str] = ..., first_position: _Optional[int] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., connection: _Optional[_Union[ConnectionSettings, _Mapping]] = ..., sources_interval_ms: _Optional[int] = ..., lease_ms: _Optional[int] = ..., resume: bool = ..., lane: _Optional[int] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("number", "in_flight_max", "bytes_max", "status_interval_ms")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    STATUS_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    number: int
    in_flight_max: int
    bytes_max: int
    status_interval_ms: int
    def __init__(self, number: _Optional[int] = ..., in_flight_max: _Optional[int] = ..., bytes_max: _Optional[int] = ..., status_interval_ms: _Optional[int] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Limits(_message.Message):
    __slots__ = ("channel", "in_flight_max", "bytes_max", "frame_size_max", "attempts_max", "dead_letter_topic", "retry_delay_s", "retry_delay_s_max", "mark_ns")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    FRAME_SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_MAX_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_S_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_S_MAX_FIELD_NUMBER: _ClassVar[int]
    MARK_NS_FIELD_NUMBER: _ClassVar[int]
    channel: str
    in_flight_max: int
    bytes_max: int
    frame_size_max: int
    attempts_max: int
    dead_letter_topic: str
    retry_delay_s: float
    retry_delay_s_max: float
    mark_ns: int
    def __init__(self, channel: _Optional[str] = ..., in_flight_max: _Optional[int] = ..., bytes_max: _Optional[int] = ..., frame_size_max: _Optional[int] = ..., attempts_max: _Optional[int] = ..., dead_letter_topic: _Optional[str] = ..., retry_delay_s: _Optional[float] = ..., retry_delay_s_max: _Optional[float] = ..., mark_ns: _Optional[int] = ...) -> None: ...

class ConnectionSettings(_message.Message):
    __slots__ = ("security", "snappy", "deflate", "deflate_level", "client_id", "user_agent", "connect_timeout_s", "heartbeat_interval_ms", "msg_timeout_ms", "sample_rate")
    SECURITY_FIELD_NUMBER: _ClassVar[int]
    SNAPPY_FIELD_NUMBER: _ClassVar[int]
    DEFLATE_FIELD_NUMBER: _ClassVar[int]
    DEFLATE_LEVEL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_AGENT_FIELD_NUMBER: _ClassVar[int]
    CONNECT_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    MSG_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    security: Security
    snappy: bool
    deflate: bool
    deflate_level: int
    client_id: str
    user_agent: str
    connect_timeout_s: float
    heartbeat_interval_ms: int
    msg_timeout_ms: int
    sample_rate: int
    def __init__(self, security: _Optional[_Union[Security, _Mapping]] = ..., snappy: bool = ..., deflate: bool = ..., deflate_level: _Optional[int] = ..., client_id: _Optional[str] = ..., user_agent: _Optional[str] = ..., connect_timeout_s: _Optional[float] = ..., heartbeat_interval_ms: _Optional[int] = ..., msg_timeout_ms: _Optional[int] = ..., sample_rate: _Optional[int] = ...) -> None: ...

class Security(_message.Message):
    __slots__ = ("tls", "tls_ca_file", "tls_cert_file", "tls_key_file", "tls_key_password", "tls_server_name", "tls_insecure_skip_verify", "auth_secret", "auth_secret_file")
    TLS_FIELD_NUMBER: _ClassVar[int]
    TLS_CA_FILE_FIELD_NUMBER: _ClassVar[int]
    TLS_CERT_FILE_FIELD_NUMBER: _ClassVar[int]
    TLS_KEY_FILE_FIELD_NUMBER: _ClassVar[int]
    TLS_KEY_PASSWORD_FIELD_NUMBER: _ClassVar[int]
    TLS_SERVER_NAME_FIELD_NUMBER: _ClassVar[int]
    TLS_INSECURE_SKIP_VERIFY_FIELD_NUMBER: _ClassVar[int]
    AUTH_SECRET_FIELD_NUMBER: _ClassVar[int]
    AUTH_SECRET_FILE_FIELD_NUMBER: _ClassVar[int]
    tls: bool
    tls_ca_file: str
    tls_cert_file: str
    tls_key_file: str
    tls_key_password: str
    tls_server_name: str
    tls_insecure_skip_verify: bool
    auth_secret: str
    auth_secret_file: str
    def __init__(self, tls: bool = ..., tls_ca_file: _Optional[str] = ..., tls_cert_file: _Optional[str] = ..., tls_key_file: _Optional[str] = ..., tls_key_password: _Optional[str] = ..., tls_server_name: _Optional[str] = ..., tls_insecure_skip_verify: bool = ..., auth_secret: _Optional[str] = ..., auth_secret_file: _Optional[str] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("sources", "shared", "moved")
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    shared: _containers.RepeatedCompositeFieldContainer[Source]
    moved: _containers.RepeatedCompositeFieldContainer[Source]
    def __init__(self, sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., shared: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., moved: _Optional[_Iterable[_Union[Source, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("end", "finished", "held_messages", "held_bytes", "lost", "sources", "has_sources", "suspects", "refusal", "full", "due", "failure", "share", "charge", "busy", "socket")
    END_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    HELD_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    HAS_SOURCES_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    CHARGE_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    SOCKET_FIELD_NUMBER: _ClassVar[int]
    end: int
    finished: int
    held_messages: int
    held_bytes: int
    lost: int
    sources: _containers.RepeatedCompositeFieldContainer[SourceStatus]
    has_sources: bool
    suspects: int
    refusal: str
    full: bool
    due: int
    failure: str
    share: int
    charge: int
    busy: bool
    socket: str
    def __init__(self, end: _Optional[int] = ..., finished: _Optional[int] = ..., held_messages: _Optional[int] = ..., held_bytes: _Optional[int] = ..., lost: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[SourceStatus, _Mapping]]] = ..., has_sources: bool = ..., suspects: _Optional[int] = ..., refusal: _Optional[str] = ..., full: bool = ..., due: _Optional[int] = ..., failure: _Optional[str] = ..., share: _Optional[int] = ..., charge: _Optional[int] = ..., busy: bool = ..., socket: _Optional[str] = ...) -> None: ...

class SourceStatus(_message.Message):
    __slots__ = ("source", "connections", "in_flight", "counters", "received_until_mark", "full")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_UNTIL_MARK_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    source: Source
    connections: int
    in_flight: int
    counters: Counters
    received_until_mark: int
    full: bool
    def __init__(self, source: _Optional[_Union[Source, _Mapping]] = ..., connections: _Optional[int] = ..., in_flight: _Optional[int] = ..., counters: _Optional[_Union[Counters, _Mapping]] = ..., received_until_mark: _Optional[int] = ..., full: bool = ...) -> None: ...

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
    __slots__ = ("first", "end", "columns", "memory_domain", "lane")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    columns: _containers.RepeatedScalarFieldContainer[str]
    memory_domain: str
    lane: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ..., columns: _Optional[_Iterable[str]] = ..., memory_domain: _Optional[str] = ..., lane: _Optional[int] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("topic", "nsqd", "message_count", "columns", "memory")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NSQD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    nsqd: str
    message_count: int
    columns: bytes
    memory: str
    def __init__(self, topic: _Optional[str] = ..., nsqd: _Optional[str] = ..., message_count: _Optional[int] = ..., columns: _Optional[bytes] = ..., memory: _Optional[str] = ...) -> None: ...

class SourceMessages(_message.Message):
    __slots__ = ("source", "ids")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    source: Source
    ids: bytes
    def __init__(self, source: _Optional[_Union[Source, _Mapping]] = ..., ids: _Optional[bytes] = ...) -> None: ...

class Suspects(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[SourceMessages]
    def __init__(self, messages: _Optional[_Iterable[_Union[SourceMessages, _Mapping]]] = ...) -> None: ...

class Verdicts(_message.Message):
    __slots__ = ("held", "finished", "unknown")
    HELD_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedCompositeFieldContainer[SourceMessages]
    finished: _containers.RepeatedCompositeFieldContainer[SourceMessages]
    unknown: _containers.RepeatedCompositeFieldContainer[SourceMessages]
    def __init__(self, held: _Optional[_Iterable[_Union[SourceMessages, _Mapping]]] = ..., finished: _Optional[_Iterable[_Union[SourceMessages, _Mapping]]] = ..., unknown: _Optional[_Iterable[_Union[SourceMessages, _Mapping]]] = ...) -> None: ...

class Registration(_message.Message):
    __slots__ = ("host", "address", "instance", "failure")
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    host: str
    address: str
    instance: str
    failure: str
    def __init__(self, host: _Optional[str] = ..., address: _Optional[str] = ..., instance: _Optional[str] = ..., failure: _Optional[str] = ...) -> None: ...

class Registered(_message.Message):
    __slots__ = ("ended",)
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ended: bool
    def __init__(self, ended: bool = ...) -> None: ...

class Gathering(_message.Message):
    __slots__ = ("host",)
    HOST_FIELD_NUMBER: _ClassVar[int]
    host: str
    def __init__(self, host: _Optional[str] = ...) -> None: ...

class Gathered(_message.Message):
    __slots__ = ("done",)
    DONE_FIELD_NUMBER: _ClassVar[int]
    done: bool
    def __init__(self, done: bool = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("lane", "first", "end")
    LANE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    lane: int
    first: int
    end: int
    def __init__(self, lane: _Optional[int] = ..., first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Fate(_message.Message):
    __slots__ = ("lost",)
    LOST_FIELD_NUMBER: _ClassVar[int]
    lost: bool
    def __init__(self, lost: bool = ...) -> None: ...
