"""The HTTP server over real sockets."""

import ssl as std_ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent
import pytest
import trustme
from gevent import socket, ssl
from gevent.event import Event

from pyspark_nsq.broker import http as http_module
from pyspark_nsq.broker.http import HttpError, HttpServer, Request, Response, Route, Router, text_answer
from pyspark_nsq.broker.listener import bind
from pyspark_nsq.broker.logs import Level, Logger
from pyspark_nsq.broker.tls import server_context

GET = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"


class Site:
    """A server with a few routes, its log, and clients that are closed with it."""

    trusting: ssl.SSLContext  # for clients of one with TLS

    def __init__(self, **options: Any) -> None:
        self.lines: list[str] = []
        self.entered, self.release = Event(), Event()
        routes = (
            Route("GET", "/ping", lambda _: text_answer("OK")),
            Route(
                "POST",
                "/echo",
                lambda request: request.body,
                body_bytes_max=300_000,
                too_big="MSG_TOO_BIG",
                logged=False,
            ),
            Route("GET", "/wrong", self._wrong),
            Route("GET", "/error", self._error),
            Route("GET", "/slow", self._slow),
            Route("GET", "/peer", lambda request: request.peer),
        )
        listener = bind(options.pop("address", "127.0.0.1:0"), unix_allowed=True)
        self.where = listener.getsockname()
        self.family = listener.family
        log = Logger("", Level.DEBUG, write=self.lines.append)
        self.server = HttpServer(listener, Router(routes), log, **options)
        self.server.start()

    def _wrong(self, _: Request) -> None:
        raise HttpError(400, "WRONG")

    def _error(self, _: Request) -> None:
        raise RuntimeError("a bug")

    def _slow(self, _: Request) -> str:
        self.entered.set()
        self.release.wait()
        return "done"

    def connect(self) -> socket.socket:
        client = socket.socket(self.family)
        client.connect(self.where)
        client.settimeout(30)
        return client

    def ask(self, data: bytes) -> bytes:
        """Everything the server says to these bytes before it closes; the client's side is half closed."""
        client = self.connect()
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        return read_all(client)


def read_all(client: socket.socket) -> bytes:
    said = b""
    while data := client.recv(65536):
        said += data
    client.close()
    return said


def read_until(client: socket.socket, end: bytes) -> bytes:
    said = b""
    while not said.endswith(end):
        data = client.recv(65536)
        assert data, f"closed after {said!r}"
        said += data
    return said


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.release.set()
    site.server.stop()


def test_keep_alive_and_pipelining(site: Site) -> None:
    answers = site.ask(GET % b"/ping" * 40 + GET % b"/wrong")
    assert answers.count(b"200 OK") == 40
    assert answers.endswith(b'{"message":"WRONG"}')


def test_large_bodies_by_length_and_in_chunks(site: Site) -> None:
    body = b"0123456789" * 30_000
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\n"
    assert site.ask(head + b"Content-Length: 300000\r\n\r\n" + body).endswith(b"\r\n\r\n" + body)
    chunk = b"%x\r\n%b\r\n" % (100_000, body[:100_000])
    assert site.ask(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 3 + b"0\r\n\r\n").endswith(
        b"\r\n\r\n" + body
    )


@pytest.mark.parametrize("header", [b"Content-Length: 300001\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_a_body_over_its_limit_is_answered_even_while_it_is_being_sent(site: Site, header: bytes) -> None:
    body = b"4\r\nabcd\r\n493e1\r\n" if b"chunked" in header else b""
    answer = site.ask(b"POST /echo HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n" + body + b"x" * 300_001)
    assert answer.startswith(b"HTTP/1.1 413 Request Entity Too Large\r\n")
    assert b"\r\nConnection: close\r\n" in answer
    assert answer.endswith(b'{"message":"MSG_TOO_BIG"}')


def test_expect_100_continue(site: Site) -> None:
    client = site.connect()
    client.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert read_until(client, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.sendall(b"ab")
    assert read_until(client, b"ab").startswith(b"HTTP/1.1 200 OK\r\n")
    client.close()
    refused = site.ask(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\nExpect: 100-continue\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 413 ")


def test_bodies_nobody_asked_for_leave_the_connection_usable(site: Site) -> None:
    body = b"Content-Length: 3\r\n\r\nabc"
    asked = [b"GET /ping HTTP/1.1", b"POST /nope HTTP/1.1", b"POST /echo/ HTTP/1.1"]
    answers = site.ask(b"".join(line + b"\r\nHost: x\r\n" + body for line in asked) + GET % b"/ping")
    assert [answers.count(status) for status in (b"200 OK", b"404 Not", b"307 Temp")] == [2, 1, 1]


def test_a_handlers_bug_is_logged_and_answered(site: Site) -> None:
    answers = site.ask(GET % b"/error" + GET % b"/ping")
    assert b"500 Internal Server Error" in answers
    assert answers.endswith(b'{"message":"INTERNAL_ERROR"}' + answers[answers.rindex(b"HTTP/1.1 200") :])
    assert any("a bug" in line for line in site.lines)


def test_what_is_no_http_is_answered_and_closed(site: Site) -> None:
    client = site.connect()
    client.sendall(b"\x16\x03\x01\x02\x00\x01\n\n")
    assert read_all(client).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_requests_are_logged_but_for_the_routes_that_say_no(site: Site) -> None:
    site.ask(GET % b"/ping?a=b" + GET % b"/nope" + b"POST /echo HTTP/1.1\r\nHost: x\r\n\r\n")
    logged = [line.split("INFO: ")[1] for line in site.lines if " (127.0.0.1:" in line]
    assert [line.split(" (")[0] for line in logged] == ["200 GET /ping?a=b", "404 GET /nope"]


def test_the_gate_answers_first() -> None:
    site = Site(gate=lambda request: Response(403, b"no") if request.path != "/ping" else None)
    answers = site.ask(GET % b"/ping" + GET % b"/nope")
    assert b"403 Forbidden" in answers
    assert answers.startswith(b"HTTP/1.1 200 OK")
    site.server.stop()


def test_stop_ends_idle_connections_and_lets_a_running_handler_finish(site: Site) -> None:
    idle, silent, busy = site.connect(), site.connect(), site.connect()
    idle.sendall(GET % b"/ping")
    read_until(idle, b"OK")
    busy.sendall(GET % b"/slow")
    assert site.entered.wait(30)
    stopped = gevent.spawn(site.server.stop)
    assert read_all(idle) == read_all(silent) == b""
    site.release.set()
    assert read_all(busy).endswith(b"done")
    stopped.join(30)
    assert stopped.successful()
    with pytest.raises(OSError, match=r"[Rr]efused"):
        site.connect()


def test_a_handler_that_does_not_end_does_not_block_stopping(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "_STOP_GRACE_S", 0.01)
    busy = site.connect()
    busy.sendall(GET % b"/slow")
    assert site.entered.wait(30)
    site.server.stop()
    assert read_all(busy) == b""


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("_IDLE_TIMEOUT_S", b""),
        ("_HEAD_TIMEOUT_S", b"GET /ping"),
        ("_BODY_TIMEOUT_S", b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na"),
    ],
)
def test_who_does_not_go_on_is_closed(site: Site, monkeypatch: pytest.MonkeyPatch, limit: str, said: bytes) -> None:
    monkeypatch.setattr(http_module, limit, 0.01)
    client = site.connect()
    client.sendall(said)
    assert read_all(client) == b""


def test_who_does_not_read_is_closed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "_WRITE_TIMEOUT_S", 0.01)
    client = site.connect()
    echo = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000
    with pytest.raises(OSError, match=r"reset|[Bb]roken"):
        client.sendall(echo * 100)


def test_unix_sockets(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    site = Site(address=str(path))
    assert site.ask(GET % b"/peer").endswith(b"\r\n\r\n@")
    assert f"HTTP: listening on {path}" in site.lines[0]
    with pytest.raises(OSError, match="in use"):
        bind(str(path), unix_allowed=True)
    site.server.stop()
    assert not path.exists()


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Site]:
    """A server with the context that nsqd makes."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "root.pem")
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    tls_1_2 = int(std_ssl.TLSVersion.TLSv1_2)
    site = Site(tls=server_context(f"{tmp_path}/cert.pem", f"{tmp_path}/key.pem", "", "", tls_1_2), name="HTTPS")
    site.trusting = ssl.SSLContext(std_ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(site.trusting)
    yield site
    site.server.stop()


def shake_hands(site: Site) -> ssl.SSLSocket:
    return site.trusting.wrap_socket(site.connect(), server_hostname="localhost")


def test_tls(secure: Site) -> None:
    assert "HTTPS: listening on" in secure.lines[0]
    client = shake_hands(secure)
    client.sendall(GET % b"/ping")
    assert read_until(client, b"OK").startswith(b"HTTP/1.1 200 OK")
    client.close()
    with suppress(ConnectionResetError):
        secure.ask(b"no TLS at all")
    assert any("TLS handshake error" in line for line in secure.lines)


def test_tls_clients_that_say_nothing_keep_nobody_waiting(secure: Site) -> None:
    silent, idle = secure.connect(), shake_hands(secure)
    client = shake_hands(secure)
    client.sendall(GET % b"/ping")
    assert read_until(client, b"OK").startswith(b"HTTP/1.1 200 OK")
    secure.server.stop()
    assert read_all(silent) == read_all(idle) == b""


def ends_before_all_is_said(client: socket.socket, data: bytes) -> bool:
    """Whether the server closes while bytes still come, one by one, each long before a limit."""

    all_said = []

    def trickle() -> None:
        with suppress(OSError):  # who sends may hear of the end before who reads
            for at in range(len(data)):
                client.sendall(data[at : at + 1])
                gevent.sleep(0.01)
            all_said.append(True)

    sending = gevent.spawn(trickle)
    with suppress(ConnectionResetError):
        read_all(client)
    sending.kill()
    return not all_said


def test_a_slow_tls_handshake_is_given_up_however_steadily_it_goes_on(
    secure: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_module, "_HANDSHAKE_TIMEOUT_S", 0.2)
    record_of_16_kib = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc" + b"\0" * 16_000
    assert ends_before_all_is_said(secure.connect(), record_of_16_kib)
    assert any("TLS handshake error" in line and "timed out" in line for line in secure.lines)


def test_a_slow_request_over_tls_is_given_up_too(secure: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    client, incoming, outgoing = secure.connect(), ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = secure.trusting.wrap_bio(incoming, outgoing, server_hostname="localhost")
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            client.sendall(outgoing.read())
            incoming.write(client.recv(65536))
    client.sendall(outgoing.read())
    tls.write(GET % (b"/ping?" + b"x" * 10_000))
    monkeypatch.setattr(http_module, "_HEAD_TIMEOUT_S", 0.2)
    monkeypatch.setattr(http_module, "_IDLE_TIMEOUT_S", 0.2)
    assert ends_before_all_is_said(client, outgoing.read())
