"""Routes, redirects and the answers where there is no route, as observed on Go's nsqd."""

import pytest

from pyspark_nsq.broker.http_messages import (
    HttpError,
    Request,
    Response,
    answer,
    error_answer,
    http_date,
    render,
    text_answer,
)
from pyspark_nsq.broker.http_router import Match, Route, Router

ROUTER = Router(
    Route(method, path, lambda _: None)
    for method, path in [
        ("GET", "/ping"),
        ("POST", "/pub"),
        ("POST", "/topic/create"),
        ("GET", "/config/:opt"),
        ("PUT", "/config/:opt"),
        ("GET", "/debug/pprof/"),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "route", "params"),
    [
        ("GET", "/ping", "/ping", {}),
        ("GET", "/config/log_level", "/config/:opt", {"opt": "log_level"}),
        ("PUT", "/config/log_level", "/config/:opt", {"opt": "log_level"}),
        ("GET", "/debug/pprof/", "/debug/pprof/", {}),
    ],
)
def test_routes(method: str, path: str, route: str, params: dict[str, str]) -> None:
    found = ROUTER.find(method, path)
    assert isinstance(found, Match)
    assert (found.route.path, found.params) == (route, params)


@pytest.mark.parametrize(
    ("method", "path", "query", "status", "location"),
    [
        ("GET", "/ping/", "", 301, "/ping"),
        ("GET", "/PING", "a=b", 301, "/ping?a=b"),
        ("GET", "//ping", "", 301, "/ping"),
        ("GET", "/x/../Ping/", "", 301, "/ping"),
        ("GET", "/debug/pprof", "", 301, "/debug/pprof/"),
        ("GET", "/config/log_level/", "", 301, "/config/log_level"),
        ("GET", "/Config/log_level", "", 301, "/config/log_level"),
        ("GET", "/Config/a\r\nb%", "", 301, "/config/a%0D%0Ab%25"),
        ("POST", "/topic/create/", "topic=x", 307, "/topic/create?topic=x"),
        ("POST", "/Pub", "", 307, "/pub"),
    ],
)
def test_redirects(method: str, path: str, query: str, status: int, location: str) -> None:
    found = ROUTER.find(method, path, query)
    assert isinstance(found, Response)
    assert found.status == status
    assert found.headers == (("Location", location),)
    assert bool(found.body) == (method == "GET")


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/", 404, None),
        ("GET", "/nope", 404, None),
        ("GET", "/config", 404, None),
        ("GET", "/config/", 404, None),
        ("HEAD", "/nope", 404, None),
        ("OPTIONS", "/nope", 404, None),
        ("HEAD", "/ping/", 404, None),
        ("POST", "/ping", 405, "GET, OPTIONS"),
        ("HEAD", "/ping", 405, "GET, OPTIONS"),
        ("BREW", "/ping", 405, "GET, OPTIONS"),
        ("GET", "/topic/create", 405, "OPTIONS, POST"),
        ("POST", "/config/x", 405, "GET, OPTIONS, PUT"),
        ("OPTIONS", "/ping", 200, "GET, OPTIONS"),
        ("OPTIONS", "/config/x", 200, "GET, OPTIONS, PUT"),
        ("OPTIONS", "*", 200, None),
    ],
)
def test_no_route(method: str, path: str, status: int, allow: str | None) -> None:
    found = ROUTER.find(method, path)
    assert isinstance(found, Response)
    assert found.status == status
    assert dict(found.headers).get("Allow") == allow


def request(query: str) -> Request:
    return Request("GET", "/x", "/x", query, {})


@pytest.mark.parametrize(
    ("query", "args"),
    [
        ("", {}),
        ("a=1&a=2&b", {"a": "1", "b": ""}),
        ("a+b=c%20d&&e==", {"a b": "c d", "e": "="}),
        ("t=%23x%ff", {"t": "#x\udcff"}),
        ("=x", {"": "x"}),
    ],
)
def test_arguments(query: str, args: dict[str, str]) -> None:
    assert request(query).args == args


@pytest.mark.parametrize("query", ["a=%zz", "a=%", "a=%4", "a;b", "a=1;b=2", "%=1"])
def test_malformed_arguments(query: str) -> None:
    with pytest.raises(HttpError) as caught:
        request(query).required("topic")
    assert (caught.value.status, caught.value.code) == (400, "INVALID_REQUEST")


def test_required_arguments() -> None:
    assert request("topic=").required("topic") == ""
    with pytest.raises(HttpError) as caught:
        request("a=b").required("topic")
    assert (caught.value.status, caught.value.code) == (400, "MISSING_ARG_TOPIC")


NSQ = b"X-Nsq-Content-Type: nsq; version=1.0\r\n"
JSON = b"Content-Type: application/json; charset=utf-8\r\n"
TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (answer("OK"), b"200 OK\r\n" + NSQ + b"Date: D\r\nContent-Length: 2\r\n" + TEXT + b"\r\nOK"),
        (answer(b"OK"), b"200 OK\r\n" + NSQ + b"Date: D\r\nContent-Length: 2\r\n" + TEXT + b"\r\nOK"),
        (answer(None), b"200 OK\r\n" + NSQ + b"Date: D\r\nContent-Length: 0\r\n\r\n"),
        (answer(""), b"200 OK\r\n" + NSQ + b"Date: D\r\nContent-Length: 0\r\n\r\n"),
        (answer({"a": [1]}), b"200 OK\r\n" + JSON + NSQ + b'Date: D\r\nContent-Length: 9\r\n\r\n{"a":[1]}'),
        (answer(5), b"200 OK\r\n" + JSON + NSQ + b"Date: D\r\nContent-Length: 1\r\n\r\n5"),
        (text_answer("OK"), b"200 OK\r\nDate: D\r\nContent-Length: 2\r\n" + TEXT + b"\r\nOK"),
        (
            error_answer(404, "NO", (("Allow", "GET"),)),
            b"404 Not Found\r\nAllow: GET\r\n" + JSON + NSQ + b'Date: D\r\nContent-Length: 16\r\n\r\n{"message":"NO"}',
        ),
    ],
)
def test_answers_to_the_byte(response: Response, expected: bytes) -> None:
    assert render(response, date="D", keep_alive=True) == b"HTTP/1.1 " + expected


def test_connection_header_says_only_what_the_version_does_not() -> None:
    def said(keep_alive: bool, http_1_0: bool) -> bytes:
        lines = render(text_answer("x"), date="D", keep_alive=keep_alive, http_1_0=http_1_0).split(b"\r\n")
        return b"".join(line for line in lines if line.startswith(b"Connection"))

    assert said(True, False) == said(False, True) == b""
    assert said(False, False) == b"Connection: close"
    assert said(True, True) == b"Connection: keep-alive"


def test_a_head_request_gets_no_body() -> None:
    assert render(text_answer("abc"), date="D", keep_alive=True, head=True).endswith(b"\r\n\r\n")


def test_dates() -> None:
    assert http_date(1795005728) == "Wed, 18 Nov 2026 12:42:08 GMT"
