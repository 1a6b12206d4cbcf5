"""One request to an auth server or an nsqlookupd: what counts as an answer, and how long and large it may be."""

from base64 import b64encode
from collections.abc import Callable, Iterator

import gevent
import pytest
from gevent import socket
from gevent.server import StreamServer

from pyspark_nsq.broker import http_client
from pyspark_nsq.broker.http_client import HttpClient, HttpClientError

CLIENT = HttpClient(connect_timeout=2.0, request_timeout=5.0)


class Server:
    """Answers every request with the same bytes, and keeps what it was asked."""

    def __init__(self, answer: bytes, then_silent: bool = False) -> None:
        self.asked = b""
        self._answer = answer
        self._then_silent = then_silent
        self._server = StreamServer(("127.0.0.1", 0), self._serve)
        self._server.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _serve(self, connection: socket.socket, _: object) -> None:
        self.asked += connection.recv(65536)
        connection.sendall(self._answer)
        if self._then_silent:
            gevent.sleep(3600)

    def stop(self) -> None:
        self._server.stop(timeout=0)


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def serve(status: str, body: bytes, then_silent: bool = False, length: int | None = None) -> Server:
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode()
        servers.append(Server(head + body, then_silent))
        return servers[-1]

    yield serve
    for server in servers:
        server.stop()


def test_get_says_what_it_accepts(serve: Callable[..., Server]):
    server = serve("200 OK", b"body")
    assert CLIENT.get(f"{server.url}/auth?x=1") == b"body"
    assert server.asked.startswith(b"GET /auth?x=1 HTTP/1.1\r\n")
    assert b"Accept: application/vnd.nsq; version=1.0\r\n" in server.asked


def test_post_sends_json(serve: Callable[..., Server]):
    server = serve("200 OK", b"body")
    assert CLIENT.post_json(f"{server.url}/auth", b"{}") == b"body"
    assert server.asked.startswith(b"POST /auth HTTP/1.1\r\n")
    assert b"Content-Type: application/json\r\n" in server.asked
    assert server.asked.endswith(b"\r\n\r\n{}")


@pytest.mark.parametrize("status", ["403 Forbidden", "404 Not Found", "500 Internal Server Error"])
def test_anything_but_200_is_no_answer(serve: Callable[..., Server], status: str):
    with pytest.raises(HttpClientError, match=status[:3]):
        CLIENT.get(serve(status, b"no").url)


def test_403_with_an_https_port_is_asked_there(serve: Callable[..., Server]):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        server = serve("403 Forbidden", b'{"https_port":%d}' % closed.getsockname()[1])
        with pytest.raises(HttpClientError, match="refused"):
            CLIENT.get(server.url)


def test_an_answer_that_does_not_end_is_not_waited_for_for_ever(serve: Callable[..., Server]):
    server = serve("200 OK", b"begun", then_silent=True, length=100)
    with pytest.raises(HttpClientError, match=r"time"):
        HttpClient(connect_timeout=0.1, request_timeout=0.2).get(server.url)


def test_an_answer_without_end_is_not_read_whole(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_client, "ANSWER_SIZE_MAX", 10)
    with pytest.raises(HttpClientError, match="larger than 10"):
        CLIENT.get(serve("200 OK", b"x" * 11).url)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "http:///path", "http://127.0.0.1:99999/", "nonsense"])
def test_urls_that_cannot_be_asked(url: str):
    with pytest.raises(HttpClientError):
        CLIENT.get(url)


def test_nobody_listens():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(HttpClientError):
            CLIENT.get(f"http://127.0.0.1:{closed.getsockname()[1]}/")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\nhush",
        b"HTTP/1.1 500 hush\r\nContent-Length: 0\r\n\r\n",
        b"hush\r\n\r\n",
        b"HTTP/1.1 2hush OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhush\r\n",
    ],
)
def test_errors_repeat_neither_what_was_asked_nor_what_was_answered(answer: bytes):
    """An answer may hold the question, and so the secret."""
    server = Server(answer)
    try:
        for url in (f"{server.url}/?secret=hush", f"{server.url}/?secret=hush hush", "http://hush:hush@ho st/"):
            with pytest.raises(HttpClientError) as error:
                CLIENT.get(url)
            assert "hush" not in str(error.value)
    finally:
        server.stop()


def test_a_password_in_the_url_is_sent_as_gos_clients_do(serve: Callable[..., Server]):
    server = serve("200 OK", b"body")
    CLIENT.get(server.url.replace("http://", "http://me:p%40ss@"))
    assert b"Authorization: Basic %b\r\n" % b64encode(b"me:p@ss") in server.asked
