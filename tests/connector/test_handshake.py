"""The steps from the magic to the first command, and what a peer may answer instead."""

import json
from typing import Any

import pytest

from pyspark_nsq.connector.errors import ConnectError, RefusedError, SecurityError
from pyspark_nsq.connector.handshake import Handshake, Send, StartDeflate, StartSnappy, StartTls, identify_fields
from pyspark_nsq.connector.settings import Address, ConnectionSettings, Secret, Security
from pyspark_nsq.proto.frames import ERROR, MESSAGE, RESPONSE, Frame

HERE = Address("nsqd.example", 4150)
OK = Frame(RESPONSE, b"OK")
FACTS = {"version": "1.3.0", "max_rdy_count": 2500, "msg_timeout": 60000, "max_msg_timeout": 900000, "deflate_level": 6}


def answer(**facts: object) -> Frame:
    return Frame(RESPONSE, json.dumps(FACTS | facts).encode())


def begin(settings: ConnectionSettings | None = None, secret: bytes | None = None) -> Handshake:
    handshake = Handshake(HERE, settings or ConnectionSettings(), secret)
    first = handshake.start()
    assert isinstance(first, Send)
    assert first.data.startswith(b"  V2IDENTIFY\n")
    return handshake


def test_without_options_it_ends_with_the_answer_to_identify() -> None:
    handshake = begin()
    assert handshake.receive(answer(version="9.9", max_rdy_count=7)) is None
    assert handshake.facts is not None
    assert (handshake.facts.version, handshake.facts.max_rdy_count) == ("9.9", 7)
    assert (handshake.facts.msg_timeout_ms, handshake.facts.max_msg_timeout_ms) == (60000, 900000)


def test_each_step_waits_for_the_one_before() -> None:
    settings = ConnectionSettings(security=Security(tls=True), deflate=True, deflate_level=9)
    handshake = begin(settings, b"sesame")
    assert handshake.receive(answer(tls_v1=True, deflate=True, deflate_level=3, auth_required=True)) == StartTls()
    assert handshake.receive(OK) == StartDeflate(3)
    assert handshake.receive(OK) == Send(b"AUTH\n\x00\x00\x00\x06sesame")
    assert handshake.receive(Frame(RESPONSE, b'{"permission_count":1}')) is None


def test_a_step_does_not_show_the_secret_that_it_sends() -> None:
    handshake = begin(secret=b"sesame")
    step = handshake.receive(answer(auth_required=True))
    assert step == Send(b"AUTH\n\x00\x00\x00\x06sesame")
    assert repr(step) == str(step) == "Send(<15 bytes>)"


def test_snappy() -> None:
    handshake = begin(ConnectionSettings(snappy=True))
    assert handshake.receive(answer(snappy=True)) == StartSnappy()
    assert handshake.receive(OK) is None


def test_heartbeats_may_come_at_any_time() -> None:
    handshake = begin()
    assert handshake.receive(Frame(RESPONSE, b"_heartbeat_")) == Send(b"NOP\n")
    assert handshake.receive(answer()) is None


def test_a_secret_that_nobody_asks_for_stays_here() -> None:
    assert begin(secret=b"sesame").receive(answer(auth_required=False)) is None


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        (ConnectionSettings(security=Security(tls=True)), "tls"),
        (ConnectionSettings(snappy=True), "snappy"),
        (ConnectionSettings(deflate=True), "deflate"),
    ],
)
@pytest.mark.parametrize("granted", [False, None, "true", 1])
def test_what_is_not_granted_is_not_done_without(settings: ConnectionSettings, option: str, granted: object) -> None:
    with pytest.raises(SecurityError, match=f"nsqd.example:4150: does not offer {option}"):
        begin(settings).receive(answer(tls_v1=granted, snappy=granted, deflate=granted))


def test_auth_is_demanded_but_there_is_no_secret() -> None:
    with pytest.raises(SecurityError, match="set option authSecret or authSecretFile"):
        begin().receive(answer(auth_required=True))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (b"E_AUTH_FAILED AUTH failed", SecurityError, "see options authSecret and authSecretFile"),
        (b"E_INVALID cannot AUTH in current state (TLS required)", SecurityError, "set option tls to true"),
        (b"E_BAD_BODY IDENTIFY msg timeout (1) is invalid", RefusedError, "E_BAD_BODY IDENTIFY msg timeout"),
        (b"\xff\x00" * 10_000, RefusedError, r"\\xff"),
    ],
)
def test_errors_say_what_may_help(error: bytes, kind: type[ConnectError], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        begin().receive(Frame(ERROR, error))
    assert type(caught.value) is kind
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (
            ConnectionSettings(msg_timeout_ms=1_800_000),
            b"E_BAD_BODY IDENTIFY msg timeout (1800000) is invalid",
            r"is invalid: option msgTimeout is 1800000 ms; .* --max-msg-timeout",
        ),
        (
            ConnectionSettings(heartbeat_interval_ms=60_000),
            b"E_BAD_BODY IDENTIFY heartbeat interval (60000) is invalid",
            r"is invalid: option heartbeatInterval is 60000 ms; .* --max-heartbeat-interval",
        ),
        (
            ConnectionSettings(sample_rate=99),
            b"E_BAD_BODY IDENTIFY sample rate (99) is invalid",
            r"is invalid: option sampleRate is 99; choose another$",
        ),
    ],
    ids=["msgTimeout", "heartbeatInterval", "sampleRate"],
)
def test_a_value_that_nsqd_refuses_is_named_and_not_tried_again(
    settings: ConnectionSettings, error: bytes, words: str
) -> None:
    with pytest.raises(SecurityError, match=words):
        begin(settings).receive(Frame(ERROR, error))


@pytest.mark.parametrize(
    "frame",
    [
        OK,
        Frame(RESPONSE, b"[]"),
        Frame(RESPONSE, b"[" * 60_000),
        Frame(RESPONSE, b"\xff"),
        Frame(RESPONSE, b"{}"),
        Frame(MESSAGE, b"x" * 40),
        answer(max_rdy_count=0),
        answer(max_rdy_count=True),
        answer(msg_timeout="60000"),
        answer(max_msg_timeout=2**64),
    ],
    ids=lambda frame: repr(frame)[:60],
)
def test_what_no_nsqd_answers(frame: Frame) -> None:
    with pytest.raises(ConnectError, match="does not behave like nsqd"):
        begin().receive(frame)


def test_the_level_of_deflate_is_checked() -> None:
    with pytest.raises(ConnectError, match="deflate_level"):
        begin(ConnectionSettings(deflate=True)).receive(answer(deflate=True, deflate_level=10))


def fields(settings: ConnectionSettings) -> dict[str, Any]:
    return identify_fields(settings)


def test_identify_leaves_out_what_nsqd_shall_decide() -> None:
    assert not {"msg_timeout", "sample_rate", "output_buffer_size"} & fields(ConnectionSettings()).keys()
    told = fields(ConnectionSettings(msg_timeout_ms=5000, sample_rate=9, output_buffer_size=65536, client_id="me"))
    assert (told["msg_timeout"], told["sample_rate"], told["output_buffer_size"]) == (5000, 9, 65536)
    assert told["client_id"] == "me"
    assert told["user_agent"].startswith("pyspark-nsq/")


def test_identify_holds_no_secret() -> None:
    security = Security(auth_secret=Secret("sesame"), tls_key_password=Secret("pw123"))
    assert not {"sesame", "pw123"} & set(map(str, fields(ConnectionSettings(security=security)).values()))
