"""Nsqds that lie: what each says on a connection."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from struct import pack

from pyspark_nsq.proto.frames import ERROR, MESSAGE, RESPONSE, encode_frame

# The nsqd of the connector's own tests.
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "connector"))

from scripted_nsqd import Peer, ScriptedNsqd

__all__ = ["SINK_LIES", "SOURCE_LIES", "Lie", "ScriptedNsqd"]


def message(number: int, body: bytes = b"a lie", attempts: int = 1, message_id: bytes = b"") -> bytes:
    content = pack(">qH", time.time_ns(), attempts) + (message_id or b"%016x" % number) + body
    return encode_frame(MESSAGE, content)


def subscribed(peer: Peer, **facts: object) -> None:
    """Honest until messages are expected."""
    peer.identify(**facts)
    assert peer.read_line().startswith(b"SUB ")
    peer.answer()


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


def wrong_sizes(peer: Peer) -> None:
    subscribed(peer)
    size = (0, 3, 2**31 - 1, 2**32 - 1, 2**28)[int(time.monotonic() * 10) % 5]
    peer.send(pack(">II", size, MESSAGE) + bytes(64))
    listen(peer)


def unknown_frames(peer: Peer) -> None:
    subscribed(peer)
    peer.send(message(1) + encode_frame(77, b"what is this?"))
    listen(peer)


def past_ready(peer: Peer) -> None:
    """Without end, whatever RDY says, and without ever reading."""
    subscribed(peer)
    many = b"".join(message(number, bytes(10_000)) for number in range(100))
    while True:
        peer.send(many)


def endless(peer: Peer, size: int) -> None:
    """Messages of this size, as fast as they go, from the first RDY on and whatever it says later."""
    subscribed(peer)
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
    subscribed(peer)
    many = encode_frame(RESPONSE, b"_heartbeat_") * 1000
    while True:
        peer.send(many)


def garbage(peer: Peer) -> None:
    subscribed(peer)
    peer.send(bytes(number * 37 % 251 for number in range(5000)))
    listen(peer)


def half_frame(peer: Peer) -> None:
    subscribed(peer)
    peer.send(message(1, bytes(1000))[:500])
    listen(peer)


def slow_drip(peer: Peer) -> None:
    """A frame of many megabytes, a byte at a time."""
    subscribed(peer)
    in_background(peer)
    peer.send(pack(">II", 15_000_000, MESSAGE))
    while True:
        peer.send(b"x")
        time.sleep(0.01)


def cut_off(peer: Peer) -> None:
    subscribed(peer)
    peer.send(b"".join(message(number) for number in range(50)) + b"\0\0")


def same_id(peer: Peer) -> None:
    subscribed(peer)
    in_background(peer)
    for _ in range(300):
        peer.send(message(7) * 3)
        time.sleep(0.02)
    listen(peer)


def strange_messages(peer: Peer) -> None:
    subscribed(peer)
    peer.send(message(1, attempts=0, message_id=b"\xff\n FIN\0\r\n" + b"x" * 7) + message(2, attempts=65535, body=b""))
    content = pack(">qH", -(2**63), 1) + b"f" * 16
    peer.send(encode_frame(MESSAGE, content + b"before time") + message(2**63, b"\xff\xfe"))
    listen(peer)


def failures(peer: Peer) -> None:
    """That nothing asked for could be done, without end."""
    subscribed(peer)
    in_background(peer)
    number = 0
    while True:
        many = (b"E_FIN_FAILED FIN %016x failed ID not in flight" % each for each in range(number, number + 100))
        peer.send(b"".join(encode_frame(ERROR, error) for error in many))
        number += 100
        time.sleep(0.01)


def strange_facts(peer: Peer) -> None:
    choices: list[dict[str, object]] = [
        {"max_rdy_count": -5},
        {"max_rdy_count": 2**62},
        {"msg_timeout": 0},
        {"msg_timeout": -1, "max_msg_timeout": 0},
        {"version": ["1.3.0"], "max_rdy_count": "many"},
        {"tls_v1": True, "snappy": True, "deflate": True},
    ]
    peer.identify(**choices[int(time.monotonic() * 10) % len(choices)])
    listen(peer)


def deep_facts(peer: Peer) -> None:
    peer.read(4)
    peer.read_line()
    peer.read_body()
    peer.answer(b'{"a":' + b"[" * 200_000)
    listen(peer)


def other_facts(peer: Peer) -> None:
    """Valid, but of the smallest and largest."""
    subscribed(peer, max_rdy_count=1, msg_timeout=1, max_msg_timeout=1)
    in_background(peer)
    for number in range(200):
        peer.send(message(number))
        time.sleep(0.02)
    listen(peer)


def never_answers(peer: Peer) -> None:
    listen(peer)


def closes_at_once(peer: Peer) -> None:
    peer.read(1)


# To the sink.


def acknowledges_nothing(peer: Peer) -> None:
    peer.identify()
    listen(peer)


def fails(peer: Peer) -> None:
    peer.identify()
    while True:
        peer.read_mpub()
        peer.answer(b"E_MPUB_FAILED MPUB failed", ERROR)


def answers_garbage(peer: Peer) -> None:
    peer.identify()
    peer.read_mpub()
    peer.send(bytes(range(256)))
    listen(peer)


def answers_by_halves(peer: Peer) -> None:
    peer.identify()
    peer.read_mpub()
    peer.send(encode_frame(RESPONSE, b"OK")[:7])
    listen(peer)


def sends_messages(peer: Peer) -> None:
    peer.identify()
    peer.read_mpub()
    peer.send(message(1) * 10)
    listen(peer)


class Taker:
    """Says OK, so many times, and throws away; it tells what it took."""

    def __init__(self, answers: int = 1) -> None:
        self.answers = answers
        self.bodies: set[bytes] = set()

    def __call__(self, peer: Peer) -> None:
        peer.identify()
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
    name: str
    script: Callable[[Peer], None]

    def anew(self) -> "Lie":
        """The same, by somebody who has taken nothing yet."""
        return replace(self, script=Taker(self.script.answers)) if isinstance(self.script, Taker) else self

    @property
    def taken(self) -> set[bytes]:
        return self.script.bodies if isinstance(self.script, Taker) else set()


SOURCE_LIES = (
    Lie("wrong sizes", wrong_sizes),
    Lie("unknown frames", unknown_frames),
    Lie("messages past RDY", past_ready),
    Lie("endless heartbeats", heartbeats),
    Lie("garbage", garbage),
    Lie("half a frame", half_frame),
    Lie("slow drip", slow_drip),
    Lie("cut off", cut_off),
    Lie("one id for all", same_id),
    Lie("strange messages", strange_messages),
    Lie("endless failures", failures),
    Lie("strange IDENTIFY", strange_facts),
    Lie("deep IDENTIFY", deep_facts),
    Lie("time-outs of 1 ms", other_facts),
    Lie("never answers", never_answers),
    Lie("closes at once", closes_at_once),
    Lie("1 MB bodies past RDY", large_past_ready),
    Lie("a huge frame at full speed", huge_frames),
)
SINK_LIES = (
    Lie("acknowledges nothing", acknowledges_nothing),
    Lie("answers twice", Taker(answers=2)),
    Lie("always fails", fails),
    Lie("answers garbage", answers_garbage),
    Lie("answers by halves", answers_by_halves),
    Lie("sends messages", sends_messages),
    Lie("OK without write", Taker()),
)
