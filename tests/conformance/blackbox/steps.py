"""Steps that many tests begin with."""

from collections.abc import Iterable

from blackbox.daemons import Nsqd
from blackbox.diskqueue import Record
from blackbox.wire import PATIENCE_SECONDS, Conn, Message


def has_depth(daemon: Nsqd, topic: str, channel: str, depth: int) -> bool:
    """Whether so many messages wait in a channel."""
    return bool(daemon.channel(topic, channel)["depth"] == depth)


def consumer(conn: Conn, topic: str, channel: str, ready: int = 1, **fields: object) -> Conn:
    """A consumer whose messages time out after a second, unless told otherwise."""
    conn.identify(**({"msg_timeout": 1000} | fields))
    conn.subscribe(topic, channel, ready)
    return conn


def numbered(count: int, prefix: bytes = b"") -> list[bytes]:
    """Bodies that tell their place."""
    return [prefix + b"%d" % number for number in range(count)]


def drain(conn: Conn, topic: str, channel: str, count: int, patience: float = PATIENCE_SECONDS) -> list[Message]:
    """Consume and finish `count` messages; fails if there are fewer."""
    conn.subscribe(topic, channel, ready=max(1, min(count, 2500)))
    messages = []
    for _ in range(count):
        messages.append(conn.message(patience))
        conn.finish(messages[-1])
    conn.round_trip()
    return messages


def bodies_of(messages: Iterable[Message | Record]) -> list[bytes]:
    """The bodies in a comparable order."""
    return sorted(message.body for message in messages)
