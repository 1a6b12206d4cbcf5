"""nsqlookupd's protocol: whole, byte by byte, with something behind."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.broker.logs import Logger
from pyspark_nsq.broker.lookupd_registry import Registry
from pyspark_nsq.broker.lookupd_session import BODY_BYTES_MAX, LINE_BYTES_MAX, LookupdSession

MAGIC = b"  V1"
SECOND = 10**9


def sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big", signed=True) + data


def identify(**changes: object) -> bytes:
    said = {"broadcast_address": "b", "hostname": "h", "http_port": 1, "tcp_port": 2, "version": "1.3.0"} | changes
    return b"IDENTIFY\n" + sized(json.dumps(said).encode())


class Line:
    """A session with its registry and log."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.registry = Registry()
        log = Logger("", write=self.lines.append)
        self.session = LookupdSession("10.0.0.7:51234", self.registry, lambda: b"{identity}", log)

    def say(self, data: bytes, now_ns: int = 0) -> bytes:
        return self.session.receive(data, now_ns)


OK = sized(b"OK")
ME = sized(b"{identity}")

CASES: list[tuple[bytes, bytes, bool]] = [
    (MAGIC + b"PING\n", OK, False),
    (MAGIC + b" \tPING \r\n", OK, False),
    (MAGIC + identify(), ME, False),
    (MAGIC + identify(hostname="", topology_zone="z", unknown=[1]), ME, False),
    (MAGIC + identify() + b"PING\nREGISTER t c\nREGISTER t\nUNREGISTER t c\nUNREGISTER t\n", ME + OK * 5, False),
    (MAGIC + identify() + b"REGISTER t c more words\n", ME + OK, False),
    (MAGIC + identify() + b"UNREGISTER unknown\n", ME + OK, False),
    (b"  V2", sized(b"E_BAD_PROTOCOL"), True),
    (b"\x16\x03\x01\x02", sized(b"E_BAD_PROTOCOL"), True),
    (MAGIC + b"ping\n", sized(b"E_INVALID invalid command ping"), True),
    (MAGIC + b"\n", sized(b"E_INVALID invalid command "), True),
    (MAGIC + b"SUB \xff x\n", sized(b"E_INVALID invalid command SUB"), True),
    (MAGIC + b"\xff\n", sized(b"E_INVALID invalid command \xff"), True),
    (MAGIC + b"REGISTER t\n", sized(b"E_INVALID client must IDENTIFY"), True),
    (MAGIC + b"UNREGISTER\n", sized(b"E_INVALID client must IDENTIFY"), True),
    (MAGIC + identify() + b"IDENTIFY\n", ME + sized(b"E_INVALID cannot IDENTIFY again"), True),
    (MAGIC + identify() + b"REGISTER\n", ME + sized(b"E_INVALID REGISTER insufficient number of params"), True),
    (MAGIC + identify() + b"REGISTER  t\n", ME + sized(b"E_BAD_TOPIC REGISTER topic name '' is not valid"), True),
    (MAGIC + identify() + b"REGISTER t! c\n", ME + sized(b"E_BAD_TOPIC REGISTER topic name 't!' is not valid"), True),
    (
        MAGIC + identify() + b"UNREGISTER t \xff\n",
        ME + sized(b"E_BAD_CHANNEL UNREGISTER channel name '\xff' is not valid"),
        True,
    ),
    (MAGIC + b"IDENTIFY\n" + sized(b"[]"), sized(b"E_BAD_BODY IDENTIFY failed to decode JSON body"), True),
    (MAGIC + b"IDENTIFY\n" + sized(b""), sized(b"E_BAD_BODY IDENTIFY failed to decode JSON body"), True),
    (MAGIC + identify(tcp_port="2"), sized(b"E_BAD_BODY IDENTIFY failed to decode JSON body"), True),
    *(
        (MAGIC + identify(**{field: empty}), sized(b"E_BAD_BODY IDENTIFY missing fields"), True)
        for field, empty in [("broadcast_address", ""), ("tcp_port", 0), ("http_port", None), ("version", "")]
    ),
    (MAGIC + b"IDENTIFY\n\xff\xff\xff\xff", sized(b"E_BAD_BODY IDENTIFY invalid body size -1"), True),
    (MAGIC + b"IDENTIFY\n\x00\x01\x00\x01", sized(b"E_BAD_BODY IDENTIFY body too big 65537 > 65536"), True),
    (MAGIC + b"x" * LINE_BYTES_MAX, b"", True),
]


@pytest.mark.parametrize(("data", "answers", "closing"), CASES)
def test_whole_byte_by_byte_and_with_something_behind(data: bytes, answers: bytes, closing: bool) -> None:
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))], [data + b"PIN"]):
        line = Line()
        said = b"".join(line.say(piece) for piece in pieces)
        assert (said, line.session.closing) == (answers, closing)


def test_nothing_is_done_after_the_last_answer() -> None:
    line = Line()
    line.say(MAGIC + identify() + b"nonsense\nREGISTER t\n")
    line.say(b"REGISTER u\n")
    assert line.registry.topics() == []


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"", b""),
        (b"  V", b""),
        (MAGIC + b"PIN", b""),
        (MAGIC + b"IDENTIFY\n\x00\x00", sized(b"E_BAD_BODY IDENTIFY failed to read body size")),
        (MAGIC + b"IDENTIFY\n\x00\x00\x00\x05ab", sized(b"E_BAD_BODY IDENTIFY failed to read body")),
    ],
)
def test_end_of_input(data: bytes, answer: bytes) -> None:
    line = Line()
    line.say(data)
    assert line.session.receive_eof(0) == answer
    assert line.session.closing


def test_who_identifies_is_known_until_the_end() -> None:
    line = Line()
    line.say(MAGIC + identify(topology_zone="z", remote_address="forged") + b"REGISTER t c\n", 5 * SECOND)
    (peer,) = line.registry.peers()
    assert (peer.id, peer.broadcast_address, peer.topology_zone) == ("10.0.0.7:51234", "b", "z")
    assert peer.last_update_ns == 5 * SECOND
    line.say(b"PING\n", 20 * SECOND)
    assert peer.last_update_ns == 20 * SECOND
    assert any("pinged (last ping 15s)" in text for text in line.lines)
    line.session.end()
    line.session.end()
    assert (line.registry.peers(), line.registry.topics()) == ([], ["t"])


@given(
    st.lists(
        st.sampled_from(
            [b"PING\n", identify(), b"REGISTER t c\n", b"UNREGISTER t", b"\n", b"IDENTIFY\n", b"\xff\xff\xff\xff", b" "]
        )
        | st.binary(max_size=6)
    )
)
def test_hostile_bytes_end_the_session_or_leave_it_bounded(pieces: list[bytes]) -> None:
    line = Line()
    for piece in (MAGIC, *pieces):
        line.say(piece)
        assert len(line.session._buffer) <= max(BODY_BYTES_MAX, LINE_BYTES_MAX)
    line.session.receive_eof(0)
    line.session.end()
    with suppress(StopIteration):
        assert not next(iter(line.registry.peers()))
