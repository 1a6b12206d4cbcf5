"""Nsqds that lie: how each begins a connection, as an honest one would, and what it says then."""

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from struct import pack

from pyspark_nsq.proto.frames import ERROR, MESSAGE, RESPONSE, encode_frame

# The nsqd of the connector's own tests.
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "connector"))

from scripted_nsqd import FACTS, Peer, ScriptedNsqd

Script = Callable[[Peer], None]
MIB = 1024 * 1024
# They begin with 100 to 150 MiB. What may be in flight, 16 MiB, is there several times while it is decoded.
MEMORY_MAX = 300 * MIB

# How connections begin, as long as nothing is wrong.


def at_once(_peer: Peer) -> None:
    """With the lie."""


def greeted(peer: Peer) -> None:
    """Until IDENTIFY is to be answered."""
    assert peer.read(4) == b"  V2"
    assert peer.read_line() == b"IDENTIFY"
    peer.read_body()


def subscribed(peer: Peer) -> None:
    """Until messages are expected."""
    peer.identify()
    expect_sub(peer)


def published(peer: Peer) -> None:
    """Until there is an MPUB to be read."""
    peer.identify()
    if not peer.socket.recv(1, socket.MSG_PEEK):
        raise EOFError


def expect_sub(peer: Peer) -> None:
    assert peer.read_line().startswith(b"SUB ")
    peer.answer()


# What they say.


def message(number: int, body: bytes = b"a lie", attempts: int = 1, message_id: bytes = b"") -> bytes:
    content = pack(">qH", time.time_ns(), attempts) + (message_id or b"%016x" % number) + body
    return encode_frame(MESSAGE, content)


def listen(peer: Peer) -> None:
    """Read whatever comes, for ever."""
    while peer.socket.recv(65536):
        pass


def in_background(peer: Peer) -> None:
    threading.Thread(target=_listen_quietly, args=(peer,), daemon=True).start()


def _listen_quietly(peer: Peer) -> None:
    with contextlib.suppress(OSError):
        listen(peer)


# To the source.


def size(number: int) -> Script:
    def lie(peer: Peer) -> None:
        peer.send(pack(">II", number, MESSAGE) + bytes(64))
        listen(peer)

    return lie


def unknown_frames(peer: Peer) -> None:
    peer.send(message(1) + encode_frame(77, b"what is this?"))
    listen(peer)


def past_ready(peer: Peer) -> None:
    """Without end, whatever RDY says, and without ever reading."""
    many = b"".join(message(number, bytes(10_000)) for number in range(100))
    while True:
        peer.send(many)


def endless(peer: Peer, size: int) -> None:
    """Messages of this size, as fast as they go, from the first RDY on and whatever it says later."""
    assert peer.read_line().startswith(b"RDY ")
    in_background(peer)
    body, number = bytes(size), 0
    while True:
        number += 1
        peer.send(message(number, body))


def large_past_ready(peer: Peer) -> None:
    endless(peer, 2**20)


def huge_frames(peer: Peer) -> None:
    endless(peer, 40 * 2**20)


def heartbeats(peer: Peer) -> None:
    """Without end, and the answers are never read."""
    many = encode_frame(RESPONSE, b"_heartbeat_") * 1000
    while True:
        peer.send(many)


def paced_heartbeats(peer: Peer) -> None:
    """Never so many at once that it shows, and the answers are never read."""
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    some = encode_frame(RESPONSE, b"_heartbeat_") * 80
    while True:
        peer.send(some)
        time.sleep(0.005)


def garbage(peer: Peer) -> None:
    peer.send(bytes(number * 37 % 251 for number in range(5000)))
    listen(peer)


def half_frame(peer: Peer) -> None:
    peer.send(message(1, bytes(1000))[:500])
    listen(peer)


def drip(size: int, kind: int) -> Script:
    """A frame of this size, a byte at a time."""

    def lie(peer: Peer) -> None:
        in_background(peer)
        peer.send(pack(">II", size, kind))
        while True:
            peer.send(b"x")
            time.sleep(0.01)

    return lie


def cut_off(peer: Peer) -> None:
    peer.send(b"".join(message(number) for number in range(50)) + b"\0\0")


def same_id(peer: Peer) -> None:
    in_background(peer)
    for _ in range(300):
        peer.send(message(7) * 3)
        time.sleep(0.02)
    listen(peer)


def strange_messages(peer: Peer) -> None:
    peer.send(message(1, attempts=0, message_id=b"\xff\n FIN\0\r\n" + b"x" * 7) + message(2, attempts=65535, body=b""))
    content = pack(">qH", -(2**63), 1) + b"f" * 16
    peer.send(encode_frame(MESSAGE, content + b"before time") + message(2**63, b"\xff\xfe"))
    listen(peer)


def failures(peer: Peer) -> None:
    """That nothing asked for could be done, without end."""
    in_background(peer)
    number = 0
    while True:
        many = (b"E_FIN_FAILED FIN %016x failed ID not in flight" % each for each in range(number, number + 100))
        peer.send(b"".join(encode_frame(ERROR, error) for error in many))
        number += 100
        time.sleep(0.01)


def facts(**told: object) -> Script:
    def lie(peer: Peer) -> None:
        peer.answer(json.dumps(FACTS | told).encode())
        listen(peer)

    return lie


def deep_facts(peer: Peer) -> None:
    peer.answer(b'{"a":' + b"[" * 200_000)
    listen(peer)


def short_time_outs(peer: Peer) -> None:
    """Valid, but of the smallest."""
    peer.answer(json.dumps(FACTS | {"max_rdy_count": 1, "msg_timeout": 1, "max_msg_timeout": 1}).encode())
    expect_sub(peer)
    in_background(peer)
    for number in range(200):
        peer.send(message(number))
        time.sleep(0.02)
    listen(peer)


def closes(peer: Peer) -> None:
    peer.read(1)


# To the sink.


def fails(peer: Peer) -> None:
    while True:
        peer.read_mpub()
        peer.answer(b"E_MPUB_FAILED MPUB failed", ERROR)


def answers_garbage(peer: Peer) -> None:
    peer.read_mpub()
    peer.send(bytes(range(256)))
    listen(peer)


def answers_by_halves(peer: Peer) -> None:
    peer.read_mpub()
    peer.send(encode_frame(RESPONSE, b"OK")[:7])
    listen(peer)


def sends_messages(peer: Peer) -> None:
    peer.read_mpub()
    peer.send(message(1) * 10)
    listen(peer)


class Taker:
    """Says OK, so many times, and throws away; it tells what it took."""

    def __init__(self, answers: int = 1) -> None:
        self.answers = answers
        self.bodies: set[bytes] = set()

    def __call__(self, peer: Peer) -> None:
        while True:
            _, body = peer.read_mpub()
            rest = body[4:]
            while rest:
                size = int.from_bytes(rest[:4], "big")
                self.bodies.add(rest[4 : 4 + size])
                rest = rest[4 + size :]
            for _ in range(self.answers):
                peer.answer()


@dataclass(frozen=True)
class Lie:
    """After an honest beginning; of several forms each connection hears the next one.

    ``options`` are those of the query that hears it. Its processes may have so much memory meanwhile.
    """

    name: str
    begin: Script
    forms: Sequence[Script]
    options: Mapping[str, str] = field(default_factory=dict)
    memory_max: int = MEMORY_MAX

    def anew(self) -> "Lie":
        """The same, by somebody who has taken nothing yet."""
        forms = [Taker(form.answers) if isinstance(form, Taker) else form for form in self.forms]
        return replace(self, forms=forms)

    @property
    def taken(self) -> set[bytes]:
        """A set that grows."""
        return next((form.bodies for form in self.forms if isinstance(form, Taker)), set())


class Liar(ScriptedNsqd):
    """Lies to everybody who connects, and knows whether it came to that."""

    def __init__(self, lie: Lie) -> None:
        self._lie = lie
        self._lock = threading.Lock()
        self.told = 0
        super().__init__((self._tell,))

    def _tell(self, peer: Peer) -> None:
        self._lie.begin(peer)
        with self._lock:
            turn = self.told
            self.told += 1
        self._lie.forms[turn % len(self._lie.forms)](peer)

    @property
    def has_told_all(self) -> bool:
        """Whether every form was told: each connection hears one."""
        return self.told >= len(self._lie.forms)

    @property
    def complaint(self) -> str:
        """Empty where it was spoken to as an nsqd has to be, and had its say."""
        if self.failures:
            return f"an nsqd was told what it cannot expect: {self.failures[0]!r}"
        if not self.told:
            return "the lie was never told"
        return "" if self.has_told_all else f"the lie was told in {self.told} of its {len(self._lie.forms)} forms"


_WRONG_SIZES = (0, 3, 2**31 - 1, 2**32 - 1, 2**28)
_STRANGE_FACTS: tuple[dict[str, object], ...] = (
    {"max_rdy_count": -5},
    {"max_rdy_count": 2**62},
    {"msg_timeout": 0},
    {"msg_timeout": -1, "max_msg_timeout": 0},
    {"version": ["1.3.0"], "max_rdy_count": "many"},
    {"tls_v1": True, "snappy": True, "deflate": True},
)

# What the sink waits for as long as it does where nobody hurries it may grow for as long.
PATIENT = {"requestTimeout": "10s"}

SOURCE_LIES = (
    Lie("wrong sizes", subscribed, [size(number) for number in _WRONG_SIZES]),
    Lie("unknown frames", subscribed, [unknown_frames]),
    Lie("messages past RDY", subscribed, [past_ready]),
    Lie("endless heartbeats", subscribed, [heartbeats]),
    Lie("garbage", subscribed, [garbage]),
    Lie("half a frame", subscribed, [half_frame]),
    Lie("slow drip", subscribed, [drip(15_000_000, MESSAGE)]),
    Lie("cut off", subscribed, [cut_off]),
    Lie("one id for all", subscribed, [same_id]),
    Lie("strange messages", subscribed, [strange_messages]),
    Lie("endless failures", subscribed, [failures]),
    Lie("strange IDENTIFY", greeted, [facts(**told) for told in _STRANGE_FACTS]),
    Lie("deep IDENTIFY", greeted, [deep_facts]),
    Lie("time-outs of 1 ms", greeted, [short_time_outs]),
    Lie("never answers", at_once, [listen]),
    Lie("closes at once", at_once, [closes]),
    Lie("1 MB bodies past RDY", subscribed, [large_past_ready]),
    Lie("a huge frame at full speed", subscribed, [huge_frames], memory_max=400 * MIB),
    Lie("heartbeats at a pace", subscribed, [paced_heartbeats]),
)
SINK_LIES = (
    Lie("acknowledges nothing", published, [listen]),
    Lie("answers twice", published, [Taker(answers=2)]),
    Lie("always fails", published, [fails]),
    Lie("answers garbage", published, [answers_garbage]),
    Lie("answers by halves", published, [answers_by_halves]),
    Lie("sends messages", published, [sends_messages]),
    Lie("OK without write", published, [Taker()]),
    # As many megabytes as none would send to a producer, and a few kilobytes.
    Lie("slow drip", published, [drip(15_000_000, RESPONSE), drip(8_000, RESPONSE)]),
    Lie("wrong sizes", published, [size(number) for number in _WRONG_SIZES]),
    Lie("endless heartbeats", published, [heartbeats], PATIENT),
    Lie("heartbeats at a pace", published, [paced_heartbeats]),
)
