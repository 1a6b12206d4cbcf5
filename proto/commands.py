"""The commands a client sends, as bytes: to nsqd (V2) and, by nsqd itself, to nsqlookupd (V1)."""

import json
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final

MAGIC_V1: Final = b"  V1"
MAGIC_V2: Final = b"  V2"
NOP: Final = b"NOP\n"
CLS: Final = b"CLS\n"
PING: Final = b"PING\n"

_SIZE = Struct(">I")


def sized(body: bytes) -> bytes:
    """The body behind its size, as every body and every answer of nsqlookupd travels."""
    return _SIZE.pack(len(body)) + body


def identify(fields: Mapping[str, object]) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps(fields, separators=(",", ":")).encode())


def auth(secret: bytes) -> bytes:
    return b"AUTH\n" + sized(secret)


def sub(topic: str, channel: str) -> bytes:
    return f"SUB {topic} {channel}\n".encode()


def pub(topic: str, body: bytes) -> bytes:
    return f"PUB {topic}\n".encode() + sized(body)


def dpub(topic: str, defer_ms: int, body: bytes) -> bytes:
    return f"DPUB {topic} {defer_ms}\n".encode() + sized(body)


def mpub(topic: str, bodies: Iterable[bytes]) -> bytes:
    """One MPUB of a few bodies; for columns of them see ``mpub.encode_mpubs``."""
    messages = [sized(body) for body in bodies]
    return f"MPUB {topic}\n".encode() + sized(_SIZE.pack(len(messages)) + b"".join(messages))


def rdy(count: int) -> bytes:
    return b"RDY %d\n" % count


def fin(message_id: bytes) -> bytes:
    return b"FIN %b\n" % message_id


def touch(message_id: bytes) -> bytes:
    return b"TOUCH %b\n" % message_id


def req(message_id: bytes, delay_ms: int) -> bytes:
    return b"REQ %b %d\n" % (message_id, delay_ms)


def register(topic: str, channel: str | None = None) -> bytes:
    return f"REGISTER {topic} {channel}\n".encode() if channel else f"REGISTER {topic}\n".encode()


def unregister(topic: str, channel: str | None = None) -> bytes:
    return b"UN" + register(topic, channel)
