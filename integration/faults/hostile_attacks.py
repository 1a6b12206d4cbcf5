"""What attackers say to the ports of the daemons, and what they are told before they are shut out.

Every attack is a connection: it says its opening, goes on a byte at a time if it drips, and listens until it is closed.
"""

import asyncio
import os
import re
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from pyspark_nsq.proto import commands
from pyspark_nsq.proto.compression import DeflateCompressor

# No attack lasts longer: the daemons' own patience with half a head or half a command is below it.
PATIENCE_S = 20.0
_DRIP_S = 0.2
_PIECE = 64 * 1024
_HEARD_MAX = 64 * 1024

_HEARTBEAT = commands.MAGIC_V2 + commands.identify({"heartbeat_interval": 1000})
_LIE = b"\x7f\xff\xff\xff"
# One body of 32 MB that compresses to 32 KB, and says that it has a gigabyte.
_BOMB = DeflateCompressor(9).compress(b"PUB t\n" + bytes(32 * 2**20))

# The record and the message within it are to be 16 KB.
_HALF_HELLO = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03"


@dataclass(frozen=True)
class Attack:
    """``answer`` is a pattern of what has to come back; it is enough to be shut out where that is empty."""

    name: str
    opening: bytes
    answer: str = ""
    drip: bytes = b""
    # What it says once it was answered.
    follow_up: bytes = b""
    # It listens to nothing: what it asked for piles up at the other end.
    is_deaf: bool = False
    # Where TLS is spoken, its opening is said beside it.
    is_beside_tls: bool = False


@dataclass
class Outcome:
    """What came of an attack."""

    attack: Attack
    heard: bytes = b""
    ended: bool = False

    @property
    def complaint(self) -> str:
        """Empty where it was shut out with the right words."""
        if not self.ended:
            return f"{self.attack.name}: still connected after {PATIENCE_S:g} s"
        if not re.search(self.attack.answer.encode(), self.heard, re.DOTALL):
            return f"{self.attack.name}: answered {self.heard[:200]!r} where {self.attack.answer!r} was expected"
        return ""


async def launch(address: tuple[str, int], attack: Attack, tls: ssl.SSLContext | None = None) -> Outcome:
    """Attack, under TLS if that is given, until the daemon ends it or patience does."""
    outcome = Outcome(attack)
    reader, writer = await asyncio.open_connection(*address, limit=2 * _PIECE, ssl=tls)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await _attack(reader, writer, outcome)
    except TimeoutError:
        return outcome
    except (ConnectionError, ssl.SSLError):
        outcome.ended = True
    finally:
        writer.transport.abort()
    return outcome


async def _attack(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, outcome: Outcome) -> None:
    attack = outcome.attack
    talking = asyncio.create_task(_talk(writer, attack))
    try:
        if attack.is_deaf:
            # Its end is noticed by what can no longer be sent.
            await talking
            while True:
                await asyncio.sleep(_DRIP_S)
                writer.write(commands.NOP)
                await writer.drain()
        if attack.follow_up:
            outcome.heard = await reader.read(_PIECE)
            writer.write(attack.follow_up)
        while piece := await reader.read(_PIECE):
            outcome.heard = (outcome.heard + piece)[:_HEARD_MAX]
        outcome.ended = True
    finally:
        talking.cancel()
        with suppress(asyncio.CancelledError, ConnectionError, ssl.SSLError):
            await talking


async def _talk(writer: asyncio.StreamWriter, attack: Attack) -> None:
    if attack.is_beside_tls:
        os.write(writer.get_extra_info("socket").fileno(), attack.opening)
    else:
        writer.write(attack.opening)
        await writer.drain()
    while attack.drip:
        await asyncio.sleep(_DRIP_S)
        writer.write(attack.drip)
        await writer.drain()


def _garbage(seed: int, size: int) -> bytes:
    return Random(seed).randbytes(size)


def _head(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", "Host: a", *headers, "", ""]).encode()


def nsqd_tcp(seed: int, flood: str) -> Sequence[Attack]:
    """``flood`` is a topic with more than a connection holds."""
    return [
        Attack("another protocol", b"GET / HTTP/1.0\r\n\r\n", "E_BAD_PROTOCOL"),
        Attack("garbage", _garbage(seed, 300_000)),
        Attack("garbage behind the magic", commands.MAGIC_V2 + _garbage(seed, 300_000)),
        Attack("a line without end", commands.MAGIC_V2 + b"x" * 200_000),
        Attack("a gigabyte of IDENTIFY", commands.MAGIC_V2 + b"IDENTIFY\n" + _LIE, "E_BAD_BODY IDENTIFY body too big"),
        Attack("less than nothing", commands.MAGIC_V2 + b"IDENTIFY\n\xff\xff\xff\xff", "E_BAD_BODY IDENTIFY invalid"),
        Attack("nested JSON", commands.MAGIC_V2 + b"IDENTIFY\n" + commands.sized(b"[" * 100_000), "E_BAD_BODY"),
        Attack("a gigabyte of PUB", commands.MAGIC_V2 + b"PUB t\n" + _LIE, "E_BAD_MESSAGE PUB message too big"),
        Attack("a gigabyte of MPUB", commands.MAGIC_V2 + b"MPUB t\n" + _LIE, "E_BAD_BODY MPUB body too big"),
        Attack("more messages than bytes", commands.MAGIC_V2 + b"MPUB t\n" + commands.sized(_LIE), "E_BAD_BODY"),
        Attack("a huge name", commands.MAGIC_V2 + commands.pub("t" * 10_000, b"x"), "E_BAD_TOPIC"),
        Attack("half a frame", _HEARTBEAT + commands.pub("t", b"x" * 1000)[:-1], "E_BAD_MESSAGE PUB failed to read"),
        Attack("a slow drip", _HEARTBEAT + b"PUB t\n\0\x0f\0\0", "E_BAD_MESSAGE PUB failed to read", b"x"),
        Attack("garbage for snappy", _asking_for("snappy"), follow_up=_garbage(seed, 10_000)),
        Attack("a bomb", _asking_for("deflate"), follow_up=_BOMB),
        Attack("garbage for TLS", _asking_for("tls_v1"), follow_up=_garbage(seed, 10_000)),
        Attack("no TLS after all", _asking_for("tls_v1"), follow_up=commands.pub("t", b"x")),
        Attack("half a ClientHello", _asking_for("tls_v1"), follow_up=_HALF_HELLO),
        Attack("never reads", _HEARTBEAT + commands.sub(flood, "c") + commands.rdy(2500), is_deaf=True),
    ]


def _asking_for(feature: str) -> bytes:
    return commands.MAGIC_V2 + commands.identify({"feature_negotiation": True, feature: True})


def lookupd_tcp(seed: int) -> Sequence[Attack]:
    return [
        Attack("another protocol", commands.MAGIC_V2 + commands.NOP, "E_BAD_PROTOCOL"),
        Attack("garbage", _garbage(seed, 300_000), "E_BAD_PROTOCOL"),
        Attack("garbage behind the magic", commands.MAGIC_V1 + _garbage(seed, 300_000)),
        Attack("a line without end", commands.MAGIC_V1 + b"x" * 200_000),
        Attack("a gigabyte of IDENTIFY", commands.MAGIC_V1 + b"IDENTIFY\n" + _LIE, "E_BAD_BODY IDENTIFY body too big"),
        Attack("less than nothing", commands.MAGIC_V1 + b"IDENTIFY\n\xff\xff\xff\xff", "E_BAD_BODY IDENTIFY invalid"),
        Attack("nested JSON", commands.MAGIC_V1 + b"IDENTIFY\n" + commands.sized(b"[" * 50_000), "E_BAD_BODY"),
        Attack("nobody registers", commands.MAGIC_V1 + commands.register("t"), "E_INVALID client must IDENTIFY"),
        Attack("half a magic", b"  V"),
    ]


def http(seed: int) -> Sequence[Attack]:
    many = [f"X-{number}: {'x' * 100}" for number in range(1000)]
    long = "Content-Length: 99999999999999999"
    both = ("Content-Length: 3", "Transfer-Encoding: chunked")
    chunked = _head("POST /topic/create?topic=t", "Transfer-Encoding: chunked")
    return [
        Attack("garbage", _garbage(seed, 300_000), "HTTP/1.1 4"),
        Attack("headers without end", _head("GET /ping", *many), "HTTP/1.1 431 "),
        Attack("a huge header", b"GET /ping HTTP/1.1\r\nX: " + b"x" * 200_000, "HTTP/1.1 431 "),
        Attack("a huge target", b"GET /" + b"x" * 200_000, "HTTP/1.1 431 "),
        Attack("a huge body", _head("POST /topic/create?topic=t", long), "HTTP/1.1 413 "),
        Attack("two lengths", _head("POST /topic/create?topic=t", *both), "HTTP/1.1 400 "),
        Attack("a chunk without size", chunked + b"zz\r\n", "HTTP/1.1 400 "),
        Attack("a huge chunk", chunked + b"fffffffffff\r\n", "HTTP/1.1 413 "),
        Attack("a slow head", b"GET /ping HTTP/1.1\r\nX: ", drip=b"x"),
        Attack("half a head", b"GET /ping HTTP/1.1\r\nX: "),
    ]


def tls_port(seed: int) -> Sequence[Attack]:
    """Where TLS is expected."""
    return [
        Attack("garbage", _garbage(seed, 300_000)),
        Attack("another protocol", _head("GET /ping")),
        Attack("half a ClientHello", _HALF_HELLO),
        Attack("a slow ClientHello", _HALF_HELLO, drip=b"x"),
        Attack("an empty record without end", b"\x16\x03\x01\0\0" * 50_000),
    ]


def under_tls(seed: int) -> Sequence[Attack]:
    return [*http(seed), Attack("garbage beside TLS", _garbage(seed, 10_000), is_beside_tls=True)]


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def grpc_port(seed: int) -> Sequence[Attack]:
    """Of receivers and of the driver's side: they speak HTTP/2."""
    settings = _http2_frame(4, 0, b"")
    return [
        Attack("another protocol", commands.MAGIC_V2 + commands.NOP),
        Attack("HTTP/1.1", _head("GET /")),
        Attack("garbage", _garbage(seed, 300_000)),
        Attack("garbage behind the preface", _PREFACE + _garbage(seed, 300_000)),
        Attack("a huge frame", _PREFACE + settings + b"\xff\xff\xff\1\4\0\0\0\1" + bytes(100_000)),
        Attack(
            "headers without end", _PREFACE + settings + _http2_frame(1, 1, b"\x82") + _http2_frame(1, 3, b"\xff" * 9)
        ),
        Attack("half a preface", _PREFACE[:10]),
        Attack("a slow preface", _PREFACE[:1], drip=b"R"),
    ]


def _http2_frame(kind: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + content
