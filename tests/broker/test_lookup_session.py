"""nsqd's side of a connection to an nsqlookupd."""

import pytest

from pyspark_nsq.broker.lookup_session import LookupSession
from pyspark_nsq.proto.commands import sized
from pyspark_nsq.proto.errors import WireError

IDENTITY = {"version": "1.3.0", "tcp_port": 1, "http_port": 2, "hostname": "h", "broadcast_address": "b"}
INFO = sized(b'{"broadcast_address":"lookup","hostname":"h","http_port":4161,"tcp_port":4160,"version":"1.3.0"}')


def test_greeting_is_magic_and_identity_with_sorted_keys():
    greeting = LookupSession(1000).greet(IDENTITY)
    body = b'{"broadcast_address":"b","hostname":"h","http_port":2,"tcp_port":1,"version":"1.3.0"}'
    assert greeting == b"  V1IDENTIFY\n" + sized(body)


def test_everything_is_registered_in_one_go():
    session = LookupSession(1000)
    assert session.register_all([("t", None), ("t2", "c")]) == b"REGISTER t\nREGISTER t2 c\n"
    assert session.awaited == 2


def test_commands():
    session = LookupSession(1000)
    assert session.register("t") == b"REGISTER t\n"
    assert session.register("t", "c") == b"REGISTER t c\n"
    assert session.unregister("t", "c") == b"UNREGISTER t c\n"
    assert session.unregister("t") == b"UNREGISTER t\n"
    assert session.ping() == b"PING\n"
    assert session.awaited == 5


@pytest.mark.parametrize("step", [1, 3, 10_000])
def test_answers_in_pieces(step: int):
    session = LookupSession(1000)
    session.greet(IDENTITY)
    session.register("t")
    session.ping()
    answers = INFO + sized(b"OK") + sized(b"E_INVALID")
    complaints = []
    for start in range(0, len(answers), step):
        complaints += session.receive(answers[start : start + step])
    assert complaints == ["PING: b'E_INVALID'"]
    assert session.awaited == 0
    assert session.info is not None
    assert session.info.http_address == "lookup:4161"


@pytest.mark.parametrize(
    "answers",
    [sized(b"E_INVALID"), sized(b"[]"), sized(b'{"http_port":"x"}'), b"\xff\xff\xff\xff", b"\x00\x01\x00\x00"],
)
def test_answers_that_end_the_connection(answers: bytes):
    session = LookupSession(1000)
    session.greet(IDENTITY)
    with pytest.raises(WireError):
        session.receive(answers)


def test_an_answer_that_nothing_asked_for_ends_the_connection():
    with pytest.raises(WireError):
        LookupSession(1000).receive(sized(b"OK"))


def test_a_lookupd_without_an_address_is_used_but_not_asked():
    session = LookupSession(1000)
    session.greet(IDENTITY)
    session.receive(sized(b"{}"))
    assert session.info is not None
    assert session.info.http_address == ""
