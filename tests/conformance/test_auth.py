"""AUTH and what an auth server's answer allows."""

import json
import time
from collections.abc import Callable, Iterator

import pytest
from blackbox.certs import Certificates
from blackbox.daemons import Nsqd
from blackbox.fakes import FakeHttp, HttpAnswer
from blackbox.http import query_of
from blackbox.wire import ERROR, Conn, Frame, mpub_body, with_length

Connect = Callable[..., Conn]
ModuleNsqd = Callable[..., Nsqd]


def grant(topic: str = ".*", channels: tuple[str, ...] = (".*",), *permissions: str) -> dict[str, object]:
    """One authorization."""
    return {"topic": topic, "channels": list(channels), "permissions": list(permissions or ("subscribe", "publish"))}


def answer(*grants: dict[str, object], ttl: object = 3600) -> HttpAnswer:
    """An auth server's answer."""
    text = {"ttl": ttl, "identity": "me", "identity_url": "http://me", "authorizations": list(grants)}
    return 200, json.dumps(text).encode()


class Guarded:
    """A broker whose auth server is the test, with an answer for every secret."""

    def __init__(self, daemon: Nsqd, server: FakeHttp, answers: dict[str, HttpAnswer]) -> None:
        self.daemon = daemon
        self.server = server
        self._answers = answers

    def asked(self, secret: str) -> int:
        """How often the server was asked for a secret."""
        return sum(dict(query_of(asked.target)).get("secret") == secret for asked in self.server.asked)

    def give(self, secret: str, reply: HttpAnswer) -> None:
        """What the secret brings from now on."""
        self._answers[secret] = reply


@pytest.fixture(scope="module")
def guarded(module_nsqd: ModuleNsqd) -> Iterator[Guarded]:
    """A broker with auth. Its first auth server is gone: the second must be asked."""
    answers: dict[str, HttpAnswer] = {}
    gone = FakeHttp(lambda _: (200, b""))
    with gone:
        pass
    with FakeHttp(lambda target: answers[dict(query_of(target))["secret"]]) as server:
        yield Guarded(
            module_nsqd(f"--auth-http-address={gone.address}", f"--auth-http-address={server.address}"), server, answers
        )


@pytest.fixture
def enter(connect: Connect, guarded: Guarded, topic: str) -> Callable[..., Conn]:
    """Opens a connection that has sent AUTH; the secret is the topic's name."""

    def open_one(reply: HttpAnswer) -> Conn:
        guarded.give(topic, reply)
        conn = connect(guarded.daemon)
        assert conn.identify()["auth_required"] is True
        conn.command("AUTH", topic.encode())
        return conn

    return open_one


# case 48
def test_auth_is_answered_with_identity_and_number_of_permissions(enter: Callable[..., Conn], topic: str) -> None:
    conn = enter(answer(grant(), grant("other")))
    assert conn.reply().data == b'{"identity":"me","identity_url":"http://me","permission_count":2}'
    conn.publish(topic, b"body")
    conn.mpub(topic, b"body")
    conn.command(f"DPUB {topic} 0", b"body")
    conn.ok()
    conn.subscribe(topic, "channel", ready=3)
    conn.messages(3)


COMMANDS = {
    "SUB": ("SUB {topic} channel", None, '"{topic}" "channel"'),
    "PUB": ("PUB {topic}", b"body", '"{topic}" ""'),
    "MPUB": ("MPUB {topic}", mpub_body(b"body"), '"{topic}" ""'),
    "DPUB": ("DPUB {topic} 0", b"body", '"{topic}" ""'),
}


# case 48
@pytest.mark.parametrize("command", COMMANDS)
def test_auth_comes_first(connect: Connect, guarded: Guarded, topic: str, command: str) -> None:
    line, body, _ = COMMANDS[command]
    conn = connect(guarded.daemon)
    conn.command(line.format(topic=topic), body)
    assert conn.error() == f"E_AUTH_FIRST AUTH required before {command}"
    assert topic not in guarded.daemon.topic_names()


# case 48
@pytest.mark.parametrize("command", COMMANDS)
def test_denied_command_creates_nothing(enter: Callable[..., Conn], guarded: Guarded, topic: str, command: str) -> None:
    line, body, names = COMMANDS[command]
    conn = enter(answer(grant("^somewhere-else$")))
    conn.reply()
    conn.command(line.format(topic=topic), body)
    assert conn.error() == f"E_UNAUTHORIZED AUTH failed for {command} on {names.format(topic=topic)}"
    assert topic not in guarded.daemon.topic_names()


# case 48
@pytest.mark.parametrize("command", COMMANDS)
def test_parameters_come_before_auth(connect: Connect, guarded: Guarded, command: str) -> None:
    conn = connect(guarded.daemon)
    conn.command(command)
    assert conn.fatal() == f"E_INVALID {command} insufficient number of parameters"


# case 48
@pytest.mark.parametrize("command", ["PUB", "DPUB"])
def test_a_message_comes_before_auth(connect: Connect, guarded: Guarded, topic: str, command: str) -> None:
    conn = connect(guarded.daemon)
    conn.command(COMMANDS[command][0].format(topic=topic), b"")
    assert conn.error() == f"E_BAD_MESSAGE {command} invalid message body size 0"


BAD_BODIES = {"to come": None, "empty": b"", "cut off": b"\0\0", "without messages": mpub_body(), "bad": mpub_body(b"")}


# case 48
@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
def test_auth_comes_before_the_body_of_mpub(connect: Connect, guarded: Guarded, topic: str, body: bytes | None) -> None:
    conn = connect(guarded.daemon)
    conn.command(f"MPUB {topic}", body)
    assert conn.error() == "E_AUTH_FIRST AUTH required before MPUB"


# case 48
@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
def test_mpub_is_denied_before_its_body_is_looked_at(
    enter: Callable[..., Conn], topic: str, body: bytes | None
) -> None:
    conn = enter(answer(grant(".*", (".*",), "subscribe")))
    conn.reply()
    conn.command(f"MPUB {topic}", body)
    assert conn.error() == f'E_UNAUTHORIZED AUTH failed for MPUB on "{topic}" ""'


# case 48
@pytest.mark.parametrize(("permission", "denied"), [("subscribe", ["PUB", "MPUB", "DPUB"]), ("publish", ["SUB"])])
def test_permissions_are_told_apart(enter: Callable[..., Conn], topic: str, permission: str, denied: list[str]) -> None:
    for command, (line, body, _) in COMMANDS.items():
        conn = enter(answer(grant(".*", (".*",), permission)))
        conn.reply()
        conn.command(line.format(topic=topic), body)
        frame = conn.reply()
        assert (frame.kind == ERROR) == (command in denied), frame


# case 48
def test_auth_twice_is_fatal(enter: Callable[..., Conn], topic: str) -> None:
    conn = enter(answer(grant()))
    conn.reply()
    conn.command("AUTH", topic.encode())
    assert conn.fatal() == "E_INVALID AUTH already set"


# case 48
def test_auth_where_it_is_disabled(connect: Connect) -> None:
    conn = connect()
    assert conn.identify()["auth_required"] is False
    conn.command("AUTH", b"secret")
    assert conn.fatal() == "E_AUTH_DISABLED AUTH disabled"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "invalid body size 0"), (-1, "invalid body size -1"), (5242881, "body too big 5242881 > 5242880")],
)
def test_size_of_the_secret(connect: Connect, guarded: Guarded, size: int, text: str) -> None:
    conn = connect(guarded.daemon)
    conn.send(b"AUTH\n" + size.to_bytes(4, "big", signed=True))
    assert conn.fatal() == f"E_BAD_BODY AUTH {text}"


# case 49
@pytest.mark.parametrize("channels", [("^c",), ()])
def test_publishing_needs_a_channel_expression_that_matches_nothing(
    enter: Callable[..., Conn], topic: str, channels: tuple[str, ...]
) -> None:
    conn = enter(answer(grant(".*", channels)))
    conn.reply()
    conn.command(f"PUB {topic}", b"body")
    assert conn.error() == f'E_UNAUTHORIZED AUTH failed for PUB on "{topic}" ""'


# case 50
def test_expressions_match_anywhere_in_the_name(enter: Callable[..., Conn], topic: str) -> None:
    conn = enter(answer(grant(topic[2:5], ("hann",))))
    conn.reply()
    conn.subscribe(topic, "channel")


def expire(reply: Frame) -> None:
    """Until an answer that holds for 1 s has expired. The broker had it before it replied."""
    time.sleep(max(0, reply.arrived + 1.1 - time.monotonic()))


# case 51
def test_expired_answer_is_asked_for_again_once(enter: Callable[..., Conn], guarded: Guarded, topic: str) -> None:
    conn = enter(answer(grant(), ttl=1))
    reply = conn.reply()
    assert guarded.asked(topic) == 1
    guarded.give(topic, answer(grant()))
    expire(reply)
    conn.publish(topic, b"one", b"two", b"three")
    assert guarded.asked(topic) == 2
    conn.subscribe(topic, "channel")
    assert guarded.asked(topic) == 2


# case 51
@pytest.mark.parametrize("later", [(500, b""), (200, b"nonsense")])
def test_failure_to_ask_again_is_fatal(
    enter: Callable[..., Conn], guarded: Guarded, topic: str, later: HttpAnswer
) -> None:
    conn = enter(answer(grant(), ttl=1))
    reply = conn.reply()
    guarded.give(topic, later)
    expire(reply)
    conn.command(f"PUB {topic}", b"body")
    assert conn.error() == "E_AUTH_FAILED AUTH failed"


# case 50
@pytest.mark.parametrize(
    "expression", [r"^t[[:digit:]]+\z", "^t[^[:alpha:]]+$", "^[[:word:]]+$", "^[t[:digit:]]{2,64}$", r"^\w[\d]+$"]
)
def test_expressions_are_gos(enter: Callable[..., Conn], topic: str, expression: str) -> None:
    conn = enter(answer(grant(expression)))
    conn.reply()
    conn.publish(topic, b"body")


# case 52
@pytest.mark.parametrize(
    "reply",
    [
        (403, b""),
        (500, b""),
        (200, b"nonsense"),
        (200, b""),
        answer(grant(), ttl=0),
        answer(grant(), ttl=-1),
        answer(grant(), ttl="60"),
        answer(grant(".*", (".*",), "subscribe", "own")),
        answer(grant("(")),
        answer(grant(".*", ("[",))),
        answer(grant("a{4294967295}")),
        answer(grant("(" * 5000 + ")" * 5000)),
        answer(grant("[[:letter:]]")),
    ],
    ids=[
        *("403", "500", "text", "empty", "ttl 0", "ttl -1", "ttl text", "permission", "topic re", "channel re"),
        *("repetition", "nesting", "class"),
    ],
)
def test_bad_answer_of_the_auth_server(enter: Callable[..., Conn], reply: HttpAnswer) -> None:
    assert enter(reply).fatal() == "E_AUTH_FAILED AUTH failed"


# case 52
def test_answer_without_authorizations(enter: Callable[..., Conn]) -> None:
    assert enter(answer()).fatal() == "E_UNAUTHORIZED AUTH no authorizations found"


# case 53
def test_request_to_the_auth_server(connect: Connect, guarded: Guarded, topic: str) -> None:
    secret = topic + " &=/ü"
    guarded.give(secret, answer(grant()))
    conn = connect(guarded.daemon)
    conn.command("AUTH", secret.encode())
    assert conn.reply().data.startswith(b'{"identity"')
    (asked,) = [asked for asked in guarded.server.asked if secret in dict(query_of(asked.target)).values()]
    assert asked.target.startswith("/auth?")
    expected = [("common_name", ""), ("remote_ip", "127.0.0.1"), ("secret", secret), ("tls", "false")]
    assert query_of(asked.target) == expected
    assert asked.headers["accept"] == "application/vnd.nsq; version=1.0"


def test_secret_is_not_logged(enter: Callable[..., Conn], guarded: Guarded, topic: str) -> None:
    enter(answer(grant())).reply()
    assert f"secret={topic}" not in guarded.daemon.log


@pytest.mark.known_defect("D22")
@pytest.mark.parametrize("status", [200, 403, 500])
def test_secret_that_the_auth_server_repeats_is_not_logged(
    enter: Callable[..., Conn], guarded: Guarded, topic: str, status: int
) -> None:
    assert enter((status, f"no access with /auth?secret={topic}".encode())).fatal() == "E_AUTH_FAILED AUTH failed"
    assert f"failed to auth against {guarded.server.address}" in guarded.daemon.log
    assert topic not in guarded.daemon.log


# case 53
def test_request_to_the_auth_server_under_tls(
    connect: Connect, module_nsqd: ModuleNsqd, certificates: Certificates
) -> None:
    with FakeHttp(lambda _: answer(grant())) as server:
        address = f"--auth-http-address=http://{server.address}/who"
        conn = connect(module_nsqd(address, "--tls-client-auth-policy=require-verify", *certificates.flags))
        conn.identify(tls_v1=True)
        conn.start_tls(certificates.context("good"))
        conn.command("AUTH", b"secret")
        assert conn.reply().data.startswith(b'{"identity"')
        (asked,) = server.asked
    assert asked.target.startswith("/who?")
    assert dict(query_of(asked.target))["tls"] == "true"
    assert dict(query_of(asked.target))["common_name"] == "client"


def test_publishing_over_http_asks_nobody(guarded: Guarded, topic: str) -> None:
    guarded.daemon.post(f"/pub?topic={topic}", b"body")
    assert guarded.daemon.topic(topic)["depth"] == 1


def test_identity_is_shown_in_stats(enter: Callable[..., Conn], guarded: Guarded, topic: str) -> None:
    conn = enter(answer(grant()))
    conn.reply()
    conn.send(b"PUB %b\n%b" % (topic.encode(), with_length(b"body")))
    conn.ok()
    conn.subscribe(topic, "channel")
    client = guarded.daemon.channel(topic, "channel")["clients"][0]
    assert (client["authed"], client["auth_identity"], client["auth_identity_url"]) == (True, "me", "http://me")
