"""What an auth server is asked, and what its answers allow."""

import json

import pytest

from pyspark_nsq.broker.auth import AuthError, AuthQuestion, endpoint, parse_answer

SECOND = 1_000_000_000


def answer(**fields: object) -> bytes:
    return json.dumps({"ttl": 10, **fields}).encode()


def rule(
    topic: str = ".*", channels: tuple[str, ...] = (".*",), permissions: tuple[str, ...] = ("subscribe", "publish")
):
    return {"topic": topic, "channels": list(channels), "permissions": list(permissions)}


def test_question_in_the_query_string_is_sorted_and_escaped():
    question = AuthQuestion(b"s&cret", "10.0.0.1", False, "")
    assert question.query_string() == "common_name=&remote_ip=10.0.0.1&secret=s%26cret&tls=false"


def test_question_as_json():
    body = AuthQuestion(b"s", "10.0.0.1", True, "cn").json_body()
    assert body == b'{"common_name":["cn"],"remote_ip":["10.0.0.1"],"secret":["s"],"tls":["true"]}'


def test_secret_is_not_shown():
    assert "hush" not in repr(AuthQuestion(b"hush", "10.0.0.1", True, "cn"))


def test_secret_of_any_bytes_can_be_asked_with():
    assert "secret=%FF%00" in AuthQuestion(b"\xff\x00", "", False, "").query_string()


def test_endpoint():
    assert endpoint("127.0.0.1:4181") == "http://127.0.0.1:4181/auth"
    assert endpoint("https://auth.example/a?x=1") == "https://auth.example/a?x=1"


def test_state_of_a_good_answer():
    state = parse_answer(answer(identity="me", identity_url="http://me", authorizations=[rule()]), 5 * SECOND)
    assert (state.identity, state.identity_url, len(state.authorizations)) == ("me", "http://me", 1)
    assert state.expires_at == 15 * SECOND


def test_no_authorizations_is_an_answer():
    assert parse_answer(answer(), 0).authorizations == ()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b"[]",
        answer(ttl=0),
        answer(ttl=-1),
        answer(ttl="10"),
        answer(authorizations=[rule(permissions=("admin",))]),
        answer(authorizations=[rule(topic="(")]),
        answer(authorizations=[rule(channels=("[",))]),
        answer(authorizations="all"),
    ],
)
def test_unusable_answers(body: bytes):
    with pytest.raises(AuthError):
        parse_answer(body, 0)


def test_patterns_are_searched_not_matched():
    state = parse_answer(answer(authorizations=[rule(topic="mid", channels=("x$",))]), 0)
    assert state.allows_subscribe("amidst", "box")
    assert not state.allows_subscribe("amidst", "boxes")
    assert not state.allows_subscribe("other", "box")


@pytest.mark.parametrize(("channels", "allowed"), [((".*",), True), (("",), True), (("^c",), False), ((), False)])
def test_publishing_needs_a_channel_pattern_that_matches_nothing_at_all(channels: tuple[str, ...], allowed: bool):
    assert parse_answer(answer(authorizations=[rule(channels=channels)]), 0).allows_publish("t") is allowed


def test_permissions_are_apart():
    state = parse_answer(answer(authorizations=[rule(permissions=("publish",))]), 0)
    assert state.allows_publish("t")
    assert not state.allows_subscribe("t", "c")
