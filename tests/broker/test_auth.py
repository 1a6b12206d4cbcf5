"""What an auth server is asked, and what its answers allow."""

import json

import pytest

from pyspark_nsq.broker.auth import AuthError, AuthQuestion, endpoint, is_askable, parse_answer, shown
from pyspark_nsq.broker.logs import Logger
from pyspark_nsq.broker.nsqd import Nsqd
from pyspark_nsq.broker.nsqd_options import NsqdOptions

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
        answer(authorizations=[rule(topic="a{4294967295}")]),
        answer(authorizations=[rule(topic="(" * 5000 + ")" * 5000)]),
        answer(authorizations=[rule(topic="[[:nothing:]]")]),
        answer(authorizations=[rule(topic="[[:^alpha:]]")]),
        answer(authorizations=[rule(topic="[" * 1_000_000)]),
        answer(authorizations=[rule(topic=r"\pL")]),
        answer(authorizations=[rule(topic=r"\Qa\E")]),
        b"[" * 100_000,
    ],
)
def test_unusable_answers(body: bytes):
    with pytest.raises(AuthError):
        parse_answer(body, 0)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("^[[:alpha:]]+$", ["aB"], ["a1", ":", ""]),
        ("^[^[:digit:]x]+$", ["ab", ":"], ["a1", "x"]),
        ("^[_[:alnum:]-]+$", ["a_1-"], ["a.b"]),
        ("^[[:punct:]]+$", ["-._#]["], ["a"]),
        ("^[[:space:][:word:]]+$", ["a\t_\v "], ["-"]),
        ("^[]a[:digit:]]+$", ["]a1"], [":"]),
        (r"^[\][:digit:]]+$", ["]1"], [":"]),
        (r"^\[:alpha:]$", ["[:alpha:]"], ["[a"]),
        ("^[:alph]+$", ["alpha:"], ["b"]),
        ("^[[a]+$", ["[a"], ["b"]),
        (r"^a\z", ["a"], ["ab"]),
        (r"^a\\z", ["a\\z"], ["a"]),
    ],
)
def test_patterns_are_gos(pattern: str, matching: list[str], other: list[str]):
    state = parse_answer(answer(authorizations=[rule(topic=pattern)]), 0)
    assert [name for name in matching + other if state.allows_publish(name)] == matching


@pytest.mark.parametrize(
    "address", ["127.0.0.1:4181", "auth", "[::1]:4181", "https://auth.example/a?x=1", "http://user:pass@auth:80/"]
)
def test_addresses_that_can_be_asked(address: str):
    assert is_askable(address)
    assert NsqdOptions(auth_http_addresses=(address,)).problem() is None


@pytest.mark.parametrize(
    "address",
    [
        "",
        ":4181",
        "auth:99999",
        "auth:port",
        "ftp://auth/",
        "http://auth/?x=a b",
        "http://auth/\n",
        "http://[::1/",
        "http:///x",
    ],
)
def test_addresses_that_cannot_be_asked_end_the_start(address: str):
    assert not is_askable(address)
    assert "--auth-http-address" in str(NsqdOptions(auth_http_addresses=(address,)).problem())


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("127.0.0.1:4181", "127.0.0.1:4181"),
        ("https://auth.example/a", "https://auth.example/a"),
        ("https://user:hush@auth.example/a?token=hush", "auth.example/a"),
        ("user:hush@auth:4181", "auth:4181"),
        ("http://user:hu?h/ush@auth:port", "auth:port"),
    ],
)
def test_secrets_of_an_address_are_not_shown(address: str, text: str):
    assert shown(address) == text
    assert "hush" not in str(NsqdOptions(auth_http_addresses=(address,)).problem())


def test_a_fault_of_ours_is_an_answer_too_and_its_text_is_not_logged():
    """It may be about the URL, with the secret in it."""
    lines: list[str] = []
    question = AuthQuestion(b"hush", "", False, "")

    class Daemon:
        options = NsqdOptions(auth_http_addresses=("a:1", "user:hush@b:1"))
        log = Logger("", write=lines.append)

        def _client(self) -> None:
            raise RuntimeError(question.secret)

    assert Nsqd._authorize(Daemon(), question) is None  # type: ignore[arg-type]
    assert len(lines) == 2
    assert all("RuntimeError" in line and "hush" not in line for line in lines)


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
