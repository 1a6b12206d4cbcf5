"""IDENTIFY: JSON rules, bounds of every field, the negotiated answer."""

import json
import struct
from collections.abc import Callable

import pytest
from blackbox.daemons import Nsqd
from blackbox.wire import RESPONSE, Conn

Connect = Callable[..., Conn]
ModuleNsqd = Callable[..., Nsqd]

DEFAULT_ANSWER = (
    b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,"tls_v1":false,'
    b'"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,"sample_rate":0,"auth_required":false,'
    b'"output_buffer_size":16384,"output_buffer_timeout":250'
)
# Go's master, the next release, adds the server's own place in the network.
TOPOLOGY = b',"topology_region":"","topology_zone":""'


def identify(conn: Conn, body: bytes) -> str:
    """Text of the answer to a body as it is: OK, or the error before the end."""
    conn.command("IDENTIFY", body)
    frame = conn.reply()
    return frame.data.decode() if frame.kind == RESPONSE else _then_closed(conn, frame.data)


def _then_closed(conn: Conn, data: bytes) -> str:
    conn.closed()
    return data.decode()


# case 9
def test_without_negotiation_ok_and_no_upgrade(connect: Connect, topic: str) -> None:
    conn = connect()
    assert identify(conn, b'{"snappy":true,"tls_v1":true}') == "OK"
    conn.publish(topic, b"plain")


# case 10
def test_negotiated_answer_is_byte_equal(connect: Connect) -> None:
    conn = connect()
    conn.command("IDENTIFY", b'{"feature_negotiation":true}')
    assert conn.reply().data in {DEFAULT_ANSWER + b"}", DEFAULT_ANSWER + TOPOLOGY + b"}"}


BOUNDS = [
    ("heartbeat_interval", "heartbeat interval", [-1, 0, 1000, 60000], [-2, 1, 999, 60001]),
    ("output_buffer_timeout", "output buffer timeout", [-1, 0, 25, 30000], [-2, 1, 24, 30001]),
    ("output_buffer_size", "output buffer size", [-1, 0, 64, 65536], [-2, 1, 63, 65537]),
    ("sample_rate", "sample rate", [0, 1, 99], [-1, 100]),
    ("msg_timeout", "msg timeout", [0, 1000, 900000], [-1, 1, 999, 900001]),
]


# case 11
@pytest.mark.parametrize(("field", "value"), [(field, value) for field, _, good, _ in BOUNDS for value in good])
def test_value_within_bounds(connect: Connect, field: str, value: int) -> None:
    assert identify(connect(), json.dumps({field: value}).encode()) == "OK"


# case 11
@pytest.mark.parametrize(
    ("field", "words", "value"), [(field, words, value) for field, words, _, bad in BOUNDS for value in bad]
)
def test_value_out_of_bounds(connect: Connect, field: str, words: str, value: int) -> None:
    text = identify(connect(), json.dumps({field: value}).encode())
    assert text == f"E_BAD_BODY IDENTIFY {words} ({value}) is invalid"


# case 11
def test_values_are_checked_in_the_order_of_the_fields(connect: Connect) -> None:
    wrong = {field: 7_000_000 for field, *_ in reversed(BOUNDS)}
    for field, words, _, _ in BOUNDS:
        text = identify(connect(), json.dumps(wrong).encode())
        assert text == f"E_BAD_BODY IDENTIFY {words} (7000000) is invalid"
        del wrong[field]


# case 12
@pytest.mark.parametrize(
    "body",
    [
        b"null",
        b"{}",
        b' {"unknown": [1, {"a": null}], "msg_timeout": null} \n',
        b'{"short_id": "a", "long_id": "b"}',
        b'{"msg_timeout": 999, "msg_timeout": 1000}',
        b'{"client_id": "\\u00fc\xff"}',
    ],
)
def test_tolerated_json(connect: Connect, body: bytes) -> None:
    assert identify(connect(), body) == "OK"


# case 12
@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"1",
        b"{",
        b"{} x",
        b"{'a': 1}",
        b'{"msg_timeout": 1000.0}',
        b'{"msg_timeout": 1e3}',
        b'{"msg_timeout": "1000"}',
        b'{"msg_timeout": true}',
        b'{"msg_timeout": [1000]}',
        b'{"client_id": 5}',
        b'{"snappy": 1}',
        b'{"feature_negotiation": "true"}',
        b'{"sample_rate": 4294967296}',
        b'{"msg_timeout": NaN}',
    ],
)
def test_wrong_json(connect: Connect, body: bytes) -> None:
    assert identify(connect(), body) == "E_BAD_BODY IDENTIFY failed to decode JSON body"


# case 12
def test_keys_in_any_case_and_the_last_one_wins(connect: Connect) -> None:
    conn = connect()
    conn.command("IDENTIFY", b'{"Feature_Negotiation":true,"msg_timeout":2000,"MSG_TIMEOUT":3000}')
    assert json.loads(conn.reply().data)["msg_timeout"] == 3000


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0, "E_BAD_BODY IDENTIFY invalid body size 0"),
        (-1, "E_BAD_BODY IDENTIFY invalid body size -1"),
        (5242881, "E_BAD_BODY IDENTIFY body too big 5242881 > 5242880"),
    ],
)
def test_length_of_the_body(connect: Connect, length: int, text: str) -> None:
    conn = connect()
    conn.send(b"IDENTIFY\n" + struct.pack(">i", length))
    assert conn.fatal() == text


# case 13
def test_output_buffer_off_is_reported_as_size_one(connect: Connect) -> None:
    answer = connect().identify(output_buffer_size=-1)
    assert (answer["output_buffer_size"], answer["output_buffer_timeout"]) == (1, 0)


def test_negotiated_values_are_reported(connect: Connect) -> None:
    answer = connect().identify(
        msg_timeout=5000, sample_rate=42, output_buffer_size=1024, output_buffer_timeout=-1, user_agent="x"
    )
    expected = {"msg_timeout": 5000, "sample_rate": 42, "output_buffer_size": 1024, "output_buffer_timeout": 0}
    assert {key: answer[key] for key in expected} == expected


@pytest.fixture(scope="module")
def deep(module_nsqd: ModuleNsqd) -> Nsqd:
    """A broker that compresses harder, but not with snappy."""
    return module_nsqd("--max-deflate-level=9", "--snappy=false")


# case 14
@pytest.mark.parametrize(("asked", "given"), [(9, 6), (1, 1), (0, 6), (-1, 6)])
def test_deflate_level_is_capped(connect: Connect, asked: int, given: int) -> None:
    answer = connect().identify(deflate=True, deflate_level=asked)
    assert (answer["deflate"], answer["deflate_level"], answer["max_deflate_level"]) == (True, given, 6)


# case 14
def test_deflate_level_up_to_the_servers_limit(connect: Connect, deep: Nsqd) -> None:
    answer = connect(deep).identify(deflate=True, deflate_level=9)
    assert (answer["deflate_level"], answer["max_deflate_level"]) == (9, 9)


# case 15
def test_deflate_and_snappy_exclude_each_other(connect: Connect) -> None:
    conn = connect()
    text = identify(conn, b'{"feature_negotiation":true,"deflate":true,"snappy":true}')
    assert text == "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"


# case 15
def test_deflate_and_snappy_where_the_server_has_one_of_them(connect: Connect, deep: Nsqd) -> None:
    answer = connect(deep).identify(deflate=True, snappy=True)
    assert (answer["deflate"], answer["snappy"]) == (True, False)


# case 16
def test_two_identifies_before_sub(connect: Connect, topic: str) -> None:
    conn = connect()
    assert conn.identify(msg_timeout=2000)["msg_timeout"] == 2000
    assert conn.identify(msg_timeout=3000)["msg_timeout"] == 3000
    conn.subscribe(topic, "channel")
    conn.command("IDENTIFY", b"{}")
    assert conn.fatal() == "E_INVALID cannot IDENTIFY in current state"


# case 16
@pytest.mark.known_defect("D8")
def test_second_identify_is_applied_whole(connect: Connect, patience: float) -> None:
    conn = connect()
    conn.identify(heartbeat_interval=60000)
    conn.identify(heartbeat_interval=1000)
    assert conn.frame(patience).data == b"_heartbeat_"


# case 19
def test_heartbeats_off_allow_publishing_but_not_consuming(connect: Connect, topic: str) -> None:
    conn = connect()
    conn.identify(heartbeat_interval=-1)
    conn.publish(topic, b"body")
    conn.command(f"SUB {topic} channel")
    assert conn.fatal() == "E_INVALID cannot SUB with heartbeats disabled"


def test_msg_timeout_of_the_broker_is_the_default(connect: Connect, module_nsqd: ModuleNsqd) -> None:
    daemon = module_nsqd("--msg-timeout=7s", "--max-msg-timeout=8s", "--max-rdy-count=11")
    answer = connect(daemon).identify()
    assert (answer["msg_timeout"], answer["max_msg_timeout"], answer["max_rdy_count"]) == (7000, 8000, 11)
