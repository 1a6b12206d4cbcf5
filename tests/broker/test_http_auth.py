"""Who may ask what over HTTP where secrets are demanded."""

import base64

import pytest

from pyspark_nsq.broker.auth import AuthQuestion, AuthState, parse_answer
from pyspark_nsq.broker.http_auth import HttpAuth
from pyspark_nsq.broker.http_messages import Request
from pyspark_nsq.broker.http_router import Router
from pyspark_nsq.broker.nsqd_http import NsqdApi
from pyspark_nsq.broker.nsqd_options import NsqdOptions

GRANTS = {
    b"publisher": ["publish"],
    b"subscriber": ["subscribe"],
    b"both": ["publish", "subscribe"],
}


class AuthServer:
    def __init__(self) -> None:
        self.asked: list[AuthQuestion] = []
        self.now = 0

    def ask(self, question: AuthQuestion) -> AuthState | None:
        self.asked.append(question)
        permissions = GRANTS.get(question.secret)
        if permissions is None:
            return None
        rule = f'{{"topic":"^t$","channels":["^c?$"],"permissions":{permissions}}}'.replace("'", '"')
        return parse_answer(b'{"ttl":60,"authorizations":[%b]}' % rule.encode(), self.now)


@pytest.fixture
def server() -> AuthServer:
    return AuthServer()


def status(server: AuthServer, method: str, target: str, secret: str | None, auth: HttpAuth | None = None) -> int:
    """With what a request is refused; 200 if it is not."""
    path, _, query = target.partition("?")
    headers = {} if secret is None else {"authorization": secret}
    request = Request(method, target, path, query, headers, peer="10.0.0.1:5000")
    response = (auth or HttpAuth(server.ask, lambda: server.now, tls=True)).gate(request)
    return 200 if response is None else response.status


ALL = {"publisher", "subscriber", "both"}


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("POST", "/pub?topic=t", {"publisher", "both"}),
        ("POST", "/mpub?topic=t&binary=true", {"publisher", "both"}),
        ("POST", "/pub?topic=u", set()),
        ("POST", "/pub", set()),
        ("POST", "/topic/create?topic=t", {"publisher", "both"}),
        ("POST", "/channel/create?topic=t&channel=c", {"subscriber", "both"}),
        ("POST", "/channel/empty?topic=t&channel=d", set()),
        ("POST", "/topic/delete?topic=t", {"both"}),
        ("POST", "/topic/pause?topic=u", set()),
        ("GET", "/stats?format=json", ALL),
        ("GET", "/metrics", ALL),
        ("GET", "/info", ALL),
        ("GET", "/config/log_level", ALL),
        ("PUT", "/config/log_level", set()),
        ("GET", "/debug/pprof/heap", set()),
        ("POST", "/debug/freememory", set()),
        ("PUT", "/debug/setblockrate", set()),
        ("GET", "/nothing", ALL),
        ("POST", "/nothing", set()),
    ],
)
def test_what_a_secret_opens(server: AuthServer, method: str, target: str, allowed: set[str]) -> None:
    found = {name for name in ALL if status(server, method, target, f"Bearer {name}") == 200}
    assert found == allowed
    assert status(server, method, target, None) == 401
    assert status(server, method, target, "Bearer another") == 403


def test_everything_that_changes_something_is_guarded(server: AuthServer) -> None:
    """Also what will be added: only what is known to be harmless is open to any secret."""

    class Daemon:
        options = NsqdOptions()

    routes = NsqdApi(Daemon()).routes()  # type: ignore[arg-type]
    assert Router(routes)
    for route in routes:
        expected = 200 if route.path == "/ping" else 401
        assert status(server, route.method, route.path, None) == expected, route.path
        if route.method != "GET" or route.path.startswith("/debug/"):
            assert status(server, route.method, route.path + "?topic=other&channel=c", "Bearer both") == 403, route.path


def test_a_secret_comes_as_curl_sends_it(server: AuthServer) -> None:
    basic = base64.b64encode(b"anybody:both").decode()
    assert status(server, "GET", "/info", f"Basic {basic}") == 200
    assert server.asked[0] == AuthQuestion(b"both", "10.0.0.1", True, "")
    for malformed in ("Basic ???", "Basic", "Bearer ", "Bearer", "Digest both", "both"):
        assert status(server, "GET", "/info", malformed) == 401, malformed


def test_the_probe_of_health_needs_no_secret(server: AuthServer) -> None:
    assert status(server, "GET", "/ping", None) == 200
    assert status(server, "POST", "/ping", None) == 401
    assert server.asked == []


def test_a_malformed_query_is_refused_as_ever(server: AuthServer) -> None:
    assert status(server, "POST", "/pub?topic=%zz", "Bearer both") == 400


def test_an_answer_is_kept_for_as_long_as_it_says(server: AuthServer) -> None:
    auth = HttpAuth(server.ask, lambda: server.now, tls=False)
    for _ in range(3):
        assert status(server, "GET", "/info", "Bearer both", auth) == 200
    assert len(server.asked) == 1
    server.now = 61 * 10**9
    assert status(server, "GET", "/info", "Bearer both", auth) == 200
    assert len(server.asked) == 2


def test_refusals_are_not_kept_and_answers_not_without_end(server: AuthServer) -> None:
    auth = HttpAuth(server.ask, lambda: server.now, tls=False)
    for _ in range(2):
        assert status(server, "GET", "/info", "Bearer another", auth) == 403
    assert len(server.asked) == 2
    GRANTS.update({b"s%d" % number: [] for number in range(1100)})
    for number in range(1100):
        status(server, "GET", "/info", f"Bearer s{number}", auth)
    before = len(server.asked)
    status(server, "GET", "/info", "Bearer s1099", auth)
    assert len(server.asked) == before
    status(server, "GET", "/info", "Bearer s0", auth)
    assert len(server.asked) == before + 1


def test_the_option_needs_somebody_who_knows_the_secrets() -> None:
    assert "--auth-http-address" in str(NsqdOptions(http_require_auth=True).problem())
    assert NsqdOptions(http_require_auth=True, auth_http_addresses=("a:1",)).problem() is None
