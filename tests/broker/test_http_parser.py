"""HTTP requests from bytes: whole, byte by byte, with something behind them, and against a plain twin."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.broker.http_messages import Request
from pyspark_nsq.broker.http_parser import (
    HEAD_BYTES_MAX,
    BodyTooBigError,
    Head,
    RefusedError,
    RequestParser,
    parse_head,
)

HOST = b"Host: x\r\n"
GET = b"GET /ping HTTP/1.1\r\n" + HOST + b"\r\n"
PUB = b"POST /pub?topic=t HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nhello"
CHUNKED_HEAD = b"POST /pub HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNKED = CHUNKED_HEAD + b"3\r\nhel\r\n2;name=value\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"

Seen = tuple[str, str, str, bytes]


def requests(pieces: Iterable[bytes], limit: int = 1000) -> list[Seen]:
    """The requests that these pieces make up, as a server would take them."""
    parser, seen = RequestParser(), []
    head: Head | None = None
    for piece in pieces:
        parser.feed(piece)
        while True:
            if head is None:
                head = parser.next_head()
                if head is None:
                    break
                parser.start_body(head, limit)
            body = parser.next_body()
            if body is None:
                break
            seen.append((head.method, head.path, head.query, body))
            head = None
    return seen


SOUND: list[tuple[bytes, list[Seen]]] = [
    (GET, [("GET", "/ping", "", b"")]),
    (PUB, [("POST", "/pub", "topic=t", b"hello")]),
    (CHUNKED, [("POST", "/pub", "", b"hello")]),
    (
        GET + PUB + CHUNKED + GET,
        [
            ("GET", "/ping", "", b""),
            ("POST", "/pub", "topic=t", b"hello"),
            ("POST", "/pub", "", b"hello"),
            ("GET", "/ping", "", b""),
        ],
    ),
    (PUB + b"\r\n\r\n" + GET, [("POST", "/pub", "topic=t", b"hello"), ("GET", "/ping", "", b"")]),
    (GET.replace(b"\r\n", b"\n"), [("GET", "/ping", "", b"")]),
    (CHUNKED.replace(b"\r\n", b"\n"), [("POST", "/pub", "", b"hello")]),
    (CHUNKED_HEAD + b"0\r\n\r\n", [("POST", "/pub", "", b"")]),
    (b"GET /sta%74s HTTP/1.0\r\n\r\n", [("GET", "/stats", "", b"")]),
    (b"GET http://host:80/ping?a=b HTTP/1.1\r\n" + HOST + b"\r\n", [("GET", "/ping", "a=b", b"")]),
    (b"GET http://host HTTP/1.1\r\n" + HOST + b"\r\n", [("GET", "/", "", b"")]),
    (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", [("OPTIONS", "*", "", b"")]),
]


@pytest.mark.parametrize(("data", "expected"), SOUND)
def test_whole_byte_by_byte_and_with_half_a_request_behind(data: bytes, expected: list[Seen]) -> None:
    assert requests([data]) == expected
    assert requests(data[at : at + 1] for at in range(len(data))) == expected
    assert requests([data + b"GET /next"]) == expected


REFUSED = [
    (400, b"garbage\r\n\r\n"),
    (400, b"GET /ping\r\n\r\n"),
    (400, b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n"),
    (400, b"GET  /ping HTTP/1.1\r\n" + HOST + b"\r\n"),
    (400, b"G(T /ping HTTP/1.1\r\n" + HOST + b"\r\n"),
    (400, b"GET ping HTTP/1.1\r\n" + HOST + b"\r\n"),
    (400, b"GET * HTTP/1.1\r\n" + HOST + b"\r\n"),
    (400, b"GET /%zz HTTP/1.1\r\n" + HOST + b"\r\n"),
    (400, b"GET /\x00 HTTP/1.1\r\n" + HOST + b"\r\n"),
    (400, b"GET /ping HTTP/1.1\r\n\r\n"),
    (400, b"GET /ping HTTP/1.1\r\n" + HOST + HOST + b"\r\n"),
    (400, b"GET /ping HTTP/1.1\r\nHost x\r\n\r\n"),
    (400, b"GET /ping HTTP/1.1\r\nHost : x\r\n\r\n"),
    (400, b"GET /ping HTTP/1.1\r\n" + HOST + b" folded\r\n\r\n"),
    (400, b"GET /ping HTTP/1.1\r\n" + HOST + b"A: b\x00c\r\n\r\n"),
    (400, b"GET /ping HTTP/1.1\r\n" + HOST + b"A: b\rc\r\n\r\n"),
    (400, PUB.replace(b": 5", b": -5")),
    (400, PUB.replace(b": 5", b": +5")),
    (400, PUB.replace(b": 5", b": 5, 5")),
    (400, PUB.replace(b": 5", b": " + b"9" * 30)),
    (400, PUB.replace(b": 5\r\n", b": 5\r\nContent-Length: 6\r\n")),
    (400, PUB.replace(b": 5\r\n", b": 5\r\nTransfer-Encoding: chunked\r\n")),
    (400, CHUNKED_HEAD + b"x\r\n"),
    (400, CHUNKED_HEAD + b"-3\r\nabc\r\n"),
    (400, CHUNKED_HEAD + b"\r\n"),
    (400, CHUNKED_HEAD + b"3\r\nabcd\r\n"),
    (400, CHUNKED_HEAD + b"3" * 300),
    (417, b"GET /ping HTTP/1.1\r\n" + HOST + b"Expect: miracles\r\n\r\n"),
    (431, b"GET /ping HTTP/1.1\r\n" + HOST + b"A: " + b"b" * HEAD_BYTES_MAX + b"\r\n\r\n"),
    (431, b"G" * (HEAD_BYTES_MAX + 1)),
    (431, CHUNKED_HEAD + b"0\r\n" + b"A: bcdefgh\r\n" * 2000),
    (501, b"POST /pub HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n"),
    (505, b"GET /ping HTTP/2.0\r\n\r\n"),
]


@pytest.mark.parametrize(("status", "data"), REFUSED)
def test_refuses(status: int, data: bytes) -> None:
    for pieces in ([data], [data[at : at + 7] for at in range(0, len(data), 7)]):
        with pytest.raises(RefusedError) as caught:
            requests(pieces)
        assert caught.value.status == status


@pytest.mark.parametrize("limit", [0, 4])
@pytest.mark.parametrize("data", [PUB, CHUNKED, CHUNKED_HEAD + b"fffffffffffffff\r\n"])
def test_a_body_over_its_limit_is_not_kept(data: bytes, limit: int) -> None:
    with pytest.raises(BodyTooBigError):
        requests([data], limit)


def test_a_body_at_its_limit_is_fine() -> None:
    assert requests([PUB, CHUNKED], limit=5) == [("POST", "/pub", "topic=t", b"hello"), ("POST", "/pub", "", b"hello")]


def test_a_claimed_length_costs_nothing_before_it_arrives() -> None:
    parser = RequestParser()
    parser.feed(PUB.replace(b": 5", b": 5000000"))
    head = parser.next_head()
    assert head is not None
    parser.start_body(head, 5_000_000)
    assert parser.next_body() is None
    parser.feed(b"x" * (5_000_000 - 5))
    assert parser.next_body() == b"hello" + b"x" * (5_000_000 - 5)
    assert not parser.has_bytes


@pytest.mark.parametrize(
    ("line", "header", "keep_alive"),
    [
        ("GET / HTTP/1.1", "", True),
        ("GET / HTTP/1.1", "Connection: close", False),
        ("GET / HTTP/1.1", "connection: Foo, CLOSE", False),
        ("GET / HTTP/1.0", "", False),
        ("GET / HTTP/1.0", "Connection: keep-alive", True),
    ],
)
def test_who_closes(line: str, header: str, keep_alive: bool) -> None:
    text = "\r\n".join(part for part in (line, "Host: x", header) if part)
    assert parse_head(text).keep_alive is keep_alive


def test_headers_are_lower_case_stripped_and_joined() -> None:
    head = parse_head("GET / HTTP/1.1\r\nHOST: x \t\r\nA:1\r\na: \t2")
    assert head.headers == {"host": "x", "a": "1, 2"}


def test_spaces_in_a_header_do_not_cost_their_square() -> None:
    value = " " * (HEAD_BYTES_MAX - 200)
    assert parse_head(f"GET / HTTP/1.1\r\nHost: x\r\nA: b{value}b").headers["a"].startswith("b ")
    with pytest.raises(RefusedError):
        parse_head(f"GET / HTTP/1.1\r\nHost: x\r\nA: {value}\x01")


BODIES = st.binary(max_size=40)


@st.composite
def written_requests(draw: st.DrawFn) -> tuple[bytes, Seen]:
    """A sound request and what must be seen of it: the plain twin of the parser is this writer."""
    method = draw(st.sampled_from(["GET", "POST", "PUT"]))
    query = draw(st.sampled_from(["", "a=b", "topic=%41&x"]))
    body = draw(BODIES)
    lines = [f"{method} /p{'?' + query if query else ''} HTTP/1.1", "Host: h"]
    if not draw(st.booleans()):
        data = body
        lines.append(f"Content-Length: {len(body)}")
    else:
        cut = draw(st.integers(0, len(body)))
        parts = [part for part in (body[:cut], body[cut:]) if part]
        data = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        lines.append("Transfer-Encoding: chunked")
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + data, (method, "/p", query, body)


@given(st.lists(written_requests(), max_size=4), st.lists(st.integers(1, 60)))
def test_what_is_written_is_read_however_it_is_cut(written: list[tuple[bytes, Seen]], cuts: list[int]) -> None:
    data = b"".join(request for request, _ in written)
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(data[at : at + cut])
        at += cut
    assert requests([*pieces, data[at:]]) == [seen for _, seen in written]


@given(
    st.lists(
        st.sampled_from(
            [
                b"GET ",
                b"/x",
                b" HTTP/1.1",
                b"\r\n",
                b"\n",
                b"Host: x",
                b"Content-Length: ",
                b"3",
                b"Transfer-Encoding: chunked",
                b"0",
                b"abc",
                b"\x00",
                b"%",
                b"?",
                b":",
            ]
        )
        | st.binary(max_size=4)
    )
)
def test_nothing_but_a_refusal_escapes(pieces: list[bytes]) -> None:
    try:
        seen = requests(pieces, limit=3)
    except (RefusedError, BodyTooBigError):
        return
    assert all(len(body) <= 3 for *_, body in seen)


def test_secrets_are_not_shown() -> None:
    head = parse_head("GET /info HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer hush")
    assert head.headers["authorization"] == "Bearer hush"
    assert "hush" not in repr(head)
    request = Request(head.method, head.target, head.path, head.query, head.headers)
    assert "hush" not in repr(request)
