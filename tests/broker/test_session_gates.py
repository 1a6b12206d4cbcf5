"""What a session lets nobody past without: TLS where it is required, and AUTH; and who may be silent meanwhile."""

import json
from collections.abc import Callable

import pytest
from simulation.session_world import CLOSED, OK, SECOND, World, greeted

from pyspark_nsq.broker.auth import AuthState, parse_answer
from pyspark_nsq.broker.nsqd_options import TlsRequired
from pyspark_nsq.broker.timers import NEVER
from pyspark_nsq.proto.commands import auth, dpub, identify, mpub, pub, sub
from pyspark_nsq.proto.frames import ERROR, RESPONSE


@pytest.mark.parametrize("step", [1, 1 << 20])
@pytest.mark.parametrize(
    ("command", "word"), [(b"NOP\n", "NOP"), (b"WHAT ever\n", "WHAT"), (pub("t", b"x"), "PUB"), (sub("t", "c"), "SUB")]
)
def test_tls_is_demanded_first(make_world: Callable[..., World], command: bytes, word: str, step: int):
    world = make_world(tls_required=TlsRequired.EXCEPT_HTTP)
    client = greeted(world, step)
    assert client.say(identify({})) == [OK]
    assert client.error(command) == f"E_INVALID cannot {word} in current state (TLS required)"


def auth_state(world: World, ttl: int = 10, **rule: object) -> AuthState:
    full = {"topic": "^t$", "channels": [".*"], "permissions": ["subscribe", "publish"]} | rule
    answer = {"ttl": ttl, "identity": "me", "identity_url": "http://me", "authorizations": [full]}
    return parse_answer(json.dumps(answer).encode(), world.now)


@pytest.fixture
def guarded(make_world: Callable[..., World]) -> World:
    return make_world(auth_http_addresses=("127.0.0.1:1",))


@pytest.mark.parametrize(
    ("word", "command"),
    [("PUB", pub("t", b"x")), ("DPUB", dpub("t", 1, b"x")), ("MPUB", mpub("t", [b"x"])), ("SUB", sub("t", "c"))],
)
def test_auth_comes_first(guarded: World, word: str, command: bytes):
    assert greeted(guarded).error(command) == f"E_AUTH_FIRST AUTH required before {word}"
    assert not guarded.engine.topics


def test_mpub_without_auth_is_refused_before_its_body(guarded: World):
    assert greeted(guarded).error(b"MPUB t\n") == "E_AUTH_FIRST AUTH required before MPUB"


def test_commands_wait_for_the_verdict(guarded: World):
    client = greeted(guarded)
    assert client.say(auth(b"secret") + pub("t", b"x") + sub("t", "c")) == []
    question = client.session.auth.question
    assert question is not None
    assert (question.secret, question.remote_ip, question.tls) == (b"secret", "10.0.0.1", False)
    client.session.answer(auth_state(guarded), guarded.now)
    reply = b'{"identity":"me","identity_url":"http://me","permission_count":1}'
    assert client.heard() == [(RESPONSE, reply), OK, OK]


@pytest.mark.parametrize(
    ("rule", "command", "error"),
    [
        ({"permissions": ["subscribe"]}, pub("t", b"x"), 'E_UNAUTHORIZED AUTH failed for PUB on "t" ""'),
        ({"channels": ["^c"]}, mpub("t", [b"x"]), 'E_UNAUTHORIZED AUTH failed for MPUB on "t" ""'),
        ({"topic": "^u$"}, sub("t", "c"), 'E_UNAUTHORIZED AUTH failed for SUB on "t" "c"'),
    ],
)
def test_what_is_not_allowed(guarded: World, rule: dict[str, object], command: bytes, error: str):
    client = greeted(guarded)
    client.say(auth(b"secret"))
    client.session.answer(auth_state(guarded, **rule), guarded.now)
    assert client.error(command) == error
    assert not guarded.engine.topics


def test_an_mpub_that_waits_for_its_body_is_not_read_on_without_the_verdict(guarded: World):
    client = greeted(guarded)
    client.say(auth(b"secret"))
    client.session.answer(auth_state(guarded, ttl=1), guarded.now)
    client.heard()
    guarded.now += 2 * SECOND
    assert client.say(mpub("t", [b"x", b"y"])[:20]) == []
    assert client.session.auth.question is not None
    client.session.answer(auth_state(guarded), guarded.now)
    assert client.heard() == []
    assert client.say(mpub("t", [b"x", b"y"])[20:]) == [OK]
    guarded.now += 11 * SECOND
    assert client.say(b"MPUB t\n\0\0\0\0") == []
    client.session.answer(auth_state(guarded, permissions=["subscribe"]), guarded.now)
    assert client.heard() == [(ERROR, b'E_UNAUTHORIZED AUTH failed for MPUB on "t" ""'), CLOSED]


def test_no_verdict_no_authorizations_and_auth_twice(guarded: World):
    refused, empty, twice = (greeted(guarded) for _ in range(3))
    for client in (refused, empty, twice):
        client.say(auth(b"secret"))
    refused.session.answer(None, guarded.now)
    assert refused.heard() == [(ERROR, b"E_AUTH_FAILED AUTH failed"), CLOSED]
    empty.session.answer(parse_answer(b'{"ttl":5}', guarded.now), guarded.now)
    assert empty.heard() == [(ERROR, b"E_UNAUTHORIZED AUTH no authorizations found"), CLOSED]
    twice.session.answer(auth_state(guarded), guarded.now)
    assert twice.error(auth(b"again")) == "E_INVALID AUTH already set"


def test_authorizations_are_asked_for_again_when_they_expire(guarded: World):
    client = greeted(guarded)
    client.say(auth(b"secret"))
    client.session.answer(auth_state(guarded, ttl=1), guarded.now)
    assert client.say(pub("t", b"x"))[-1] == OK
    guarded.sleep(2 * SECOND, client)
    assert client.say(pub("t", b"y")) == []
    assert client.session.auth.question is not None
    client.session.answer(auth_state(guarded), guarded.now)
    assert client.heard() == [OK]
    guarded.sleep(11 * SECOND, client)
    client.say(pub("t", b"z"))
    client.session.answer(None, guarded.now)
    assert client.heard() == [(ERROR, b"E_AUTH_FAILED AUTH failed"), CLOSED]


def test_who_waits_for_an_auth_server_is_not_late(guarded: World):
    client = greeted(guarded)
    client.say(auth(b"secret"))
    guarded.sleep(200 * SECOND, client)
    assert not client.session.finished
    assert client.session.deadline > guarded.now, "a timer that is due again and again"
    client.session.answer(auth_state(guarded, ttl=1000), guarded.now)
    assert client.heard()[-1][0] == RESPONSE
    guarded.sleep(61 * SECOND, client)
    assert client.heard()[-1] == CLOSED


def test_what_waited_for_a_verdict_is_not_executed_once_the_client_has_failed(make_world: Callable[..., World]):
    """Nobody would ever take the consumer out of its channel."""
    world = make_world(auth_http_addresses=("127.0.0.1:1",), sync_every=1)
    client = greeted(world)
    client.say(auth(b"secret"))
    client.session.answer(auth_state(world, ttl=1), world.now)
    client.say(pub("t", b"x"))
    (fsync,) = world.sync_jobs
    world.now += 2 * SECOND
    client.say(sub("t", "c"))
    assert client.session.auth.question is not None
    fsync.error = OSError(5, "Input/output error")
    world.turn.synced(fsync)
    assert client.heard()[-1] == CLOSED
    client.session.answer(auth_state(world), world.now)
    assert not world.engine.topics["t"].channels


def test_who_waits_for_the_disk_is_not_late(make_world: Callable[..., World]):
    world = make_world(sync_every=1)
    client = greeted(world)
    client.say(pub("t", b"x"))
    (fsync,) = world.sync_jobs
    world.sleep(200 * SECOND, client)
    assert not client.session.finished
    assert client.session.deadline > world.now
    fsync.run()
    world.turn.synced(fsync)
    assert OK in client.heard()
    world.sleep(59 * SECOND, client)
    assert client.heard()[-1] != CLOSED
    world.sleep(2 * SECOND, client)
    assert client.heard()[-1] == CLOSED


def test_who_is_not_heard_is_not_late(world: World):
    client = greeted(world)
    client.session.stop_hearing()
    world.sleep(200 * SECOND, client)
    assert not client.session.finished
    client.session.hear_again(world.now)
    world.sleep(59 * SECOND, client)
    assert not client.session.finished
    world.sleep(2 * SECOND, client)
    assert client.heard()[-1] == CLOSED


def test_who_has_finished_is_due_no_more(world: World):
    client = greeted(world)
    client.session.end_of_input(world.now)
    assert client.session.deadline == NEVER


def test_who_wants_no_heartbeats_is_never_due(world: World):
    client = greeted(world)
    client.say(identify({"heartbeat_interval": -1}))
    assert client.session.deadline >= NEVER
