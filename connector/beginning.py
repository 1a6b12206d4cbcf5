"""What a receiver elsewhere is told when it begins to work for a query, as values and as the contract's messages."""

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, TypeVar

from pyspark_nsq.connector.settings import ConnectionSettings, Secret, Security
from pyspark_nsq.connector.source_state import Limits
from pyspark_nsq.proto import receiver_pb2 as pb

_Value = TypeVar("_Value")

_TOKEN_SIZE_MIN: Final = 16
_TEXT_SIZE_MAX: Final = 256
_LEASE_MS: Final = range(500, 60_001)
_COUNT_MAX: Final = 2**54
_SECRETS: Final = {"tls_key_password", "auth_secret"}


@dataclass(frozen=True)
class Beginning:
    """A query as its receivers know it, and from which position of which lane on one of them counts."""

    session: str
    token: str = field(repr=False)
    first_position: int
    limits: Limits
    connection: ConnectionSettings
    sources_interval_s: float
    lease_s: float
    lane: int = 0


def to_message(beginning: Beginning) -> pb.Begin:
    message = pb.Begin(
        session=beginning.session,
        token=beginning.token,
        first_position=beginning.first_position,
        sources_interval_ms=round(beginning.sources_interval_s * 1000),
        lease_ms=round(beginning.lease_s * 1000),
        lane=beginning.lane,
    )
    _fill(message.limits, beginning.limits)
    _fill(message.connection, beginning.connection)
    return message


def from_message(message: pb.Begin) -> Beginning:
    """What a message says; ``ValueError`` where no coordinator can have meant it."""
    _check(message)
    limits = _read(Limits, message.limits)
    security = _read(Security, message.connection.security)
    return Beginning(
        session=message.session,
        token=message.token,
        first_position=message.first_position,
        limits=limits,
        connection=_read(ConnectionSettings, message.connection, security=security),
        sources_interval_s=message.sources_interval_ms / 1000,
        lease_s=message.lease_ms / 1000,
        lane=message.lane,
    )


def _check(message: pb.Begin) -> None:
    limits = message.limits
    texts = (message.session, message.token, limits.channel)
    if len(message.token) < _TOKEN_SIZE_MIN or not all(0 < len(text) <= _TEXT_SIZE_MAX for text in texts):
        raise ValueError("a session, its token and its channel have a length")
    if message.lease_ms not in _LEASE_MS:
        raise ValueError(f"a lease of {message.lease_ms} ms is not from {_LEASE_MS[0]} to {_LEASE_MS[-1]} ms")
    counts = (message.first_position + 1, limits.in_flight_max + 1, limits.bytes_max, limits.frame_size_max)
    delays = (limits.retry_delay_s, limits.retry_delay_s_max, message.connection.connect_timeout_s)
    # What is no number is not less than anything.
    if not all(0 < count <= _COUNT_MAX for count in counts) or not all(0 < delay < math.inf for delay in delays):
        raise ValueError("a limit is not positive, or absurd")


def _fill(message: Any, value: Any) -> None:
    for each in fields(value):
        content = getattr(value, each.name)
        if is_dataclass(content) and not isinstance(content, Secret):
            _fill(getattr(message, each.name), content)
        elif content is not None:
            setattr(message, each.name, content.reveal if isinstance(content, Secret) else content)


def _read(kind: type[_Value], message: Any, **known: Any) -> _Value:
    """A value of this class; what the message leaves out is None."""
    values = dict(known)
    for each in message.DESCRIPTOR.fields:
        if each.name not in values:
            is_absent = each.has_presence and not message.HasField(each.name)
            content = None if is_absent else getattr(message, each.name)
            values[each.name] = Secret(content) if content is not None and each.name in _SECRETS else content
    return kind(**values)
