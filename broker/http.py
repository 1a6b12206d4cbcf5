"""An HTTP/1.1 server on gevent, for the APIs of nsqd and nsqlookupd.

    server = HttpServer(bind("127.0.0.1:0"), Router(ROUTES), log)
    server.start()                       # logs "HTTP: listening on 127.0.0.1:41233"
    ...
    server.stop()                        # idle connections end at once, running handlers get a moment

``HttpServer(..., name="HTTPS", tls=context)`` speaks TLS; the context has to be one of ``gevent.ssl``, as any other
would make everybody wait for each client. ``gate`` is asked first for every request and may answer in place of the
route.

What a client can cost is bounded: the head in bytes, the body by its route, both in time, and an answer that nobody
reads. Errors before a route is known are answered in plain text and close the connection, as Go's server does.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent
from gevent import socket

from pyspark_nsq.broker.durations import format_duration
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
from pyspark_nsq.broker.http_parser import BodyTooBigError, Head, RefusedError, RequestParser
from pyspark_nsq.broker.http_router import UNUSED_BODY_BYTES_MAX, Match, Route, Router
from pyspark_nsq.broker.listener import Acceptor, local_text
from pyspark_nsq.broker.logs import Logger

__all__ = ["HttpError", "HttpServer", "Request", "Response", "Route", "Router", "answer", "error_answer", "text_answer"]

Gate = Callable[[Request], Response | None]

_IDLE_TIMEOUT_S = 120.0  # longer than the 90 s after which Go's HTTP clients drop an idle connection themselves
_HEAD_TIMEOUT_S = 10.0
_BODY_TIMEOUT_S = 30.0  # plus what the body needs at the slowest rate that is still served:
_BODY_BYTES_PER_S_MIN = 16 * 1024
_WRITE_TIMEOUT_S = 30.0
_HANDSHAKE_TIMEOUT_S = 10.0
_HEAD_RECV_BYTES = 16 * 1024
_BODY_RECV_BYTES = 256 * 1024
_DRAIN_BYTES_MAX = 64 * 1024 * 1024  # of a refused body: unread bytes would turn our answer into a reset
_DRAIN_TIMEOUT_S = 2.0
_STOP_GRACE_S = 1.0
_REQUESTS_BEFORE_YIELD = 16  # pipelined requests must not keep other clients waiting


class HttpServer:
    """Serves one listening socket."""

    def __init__(
        self,
        listener: socket.socket,
        router: Router,
        log: Logger,
        *,
        name: str = "HTTP",
        tls: Any = None,
        gate: Gate | None = None,
    ) -> None:
        self.router = router
        self.log = log
        self.gate = gate
        self.busy: set[gevent.Greenlet] = set()
        self._name = name
        self._tls = tls
        self._acceptor = Acceptor(listener, self._serve, log)
        self._date = (0, "")

    def start(self) -> None:
        self.log.info("%s: listening on %s", self._name, local_text(self._acceptor.listener))
        self._acceptor.start()

    def stop(self) -> None:
        """Stop accepting, end the idle connections, give running handlers a moment, end them too."""
        if not self._acceptor.listener.closed:
            self.log.info("%s: closing %s", self._name, local_text(self._acceptor.listener))
        self._acceptor.stop_accepting()
        gevent.killall(list(self._acceptor.connections - self.busy))
        gevent.joinall(list(self.busy), timeout=_STOP_GRACE_S)
        self._acceptor.kill_connections()

    def date(self) -> str:
        """The Date header, worked out once a second."""
        now = int(time.time())
        if self._date[0] != now:
            self._date = (now, http_date(now))
        return self._date[1]

    def _serve(self, connection: socket.socket, peer: str) -> None:
        if self._tls is not None:
            try:
                with _at_most(_HANDSHAKE_TIMEOUT_S):
                    connection = self._tls.wrap_socket(connection, server_side=True)
            except OSError as error:
                self.log.warning("%s: TLS handshake error from %s: %s", self._name, peer, error)
                return
        try:
            _Connection(self, connection, peer).run()
        finally:
            connection.close()


class _Connection:
    """One client: its requests one after the other, on its own greenlet."""

    def __init__(self, server: HttpServer, connection: socket.socket, peer: str) -> None:
        self._server = server
        self._socket = connection
        self._peer = peer
        self._parser = RequestParser()
        self._greenlet = gevent.getcurrent()

    def run(self) -> None:
        served = 0
        try:
            while (head := self._read_head()) is not None:
                self._server.busy.add(self._greenlet)
                keep_alive = self._serve(head)
                self._server.busy.discard(self._greenlet)
                served += 1
                if not keep_alive:
                    break
                if served % _REQUESTS_BEFORE_YIELD == 0:
                    gevent.sleep(0)
        except RefusedError as refused:
            self._refuse(refused)
        except TimeoutError:
            self._server.log.debug("[%s] HTTP connection timed out", self._peer)
        finally:
            self._server.busy.discard(self._greenlet)

    # Reading

    def _read_head(self) -> Head | None:
        """The next request, None at the end of the connection."""
        deadline = time.monotonic() + (_HEAD_TIMEOUT_S if self._parser.has_bytes else _IDLE_TIMEOUT_S)
        while (head := self._parser.next_head()) is None:
            if not self._receive(deadline, _HEAD_RECV_BYTES):
                return None
            deadline = min(deadline, time.monotonic() + _HEAD_TIMEOUT_S)
        return head

    def _read_body(self, head: Head, bytes_max: int) -> bytes | None:
        """The body, None if the client leaves in the middle of it."""
        parser = self._parser
        parser.start_body(head, bytes_max)
        if head.content_length == 0:
            return b""
        if head.expects_continue and not parser.has_bytes:
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        bytes_expected = head.content_length if head.content_length > 0 else bytes_max
        deadline = time.monotonic() + _BODY_TIMEOUT_S + bytes_expected / _BODY_BYTES_PER_S_MIN
        while (body := parser.next_body()) is None:
            if not self._receive(deadline, _BODY_RECV_BYTES):
                return None
        return body

    def _receive(self, deadline: float, bytes_max: int) -> bool:
        """Feed the parser once; False at the end of the stream."""
        with _at_most(deadline - time.monotonic()):
            data = self._socket.recv(bytes_max)
        self._parser.feed(data)
        return bool(data)

    # Answering

    def _serve(self, head: Head) -> bool:
        """Answer one request; False if the connection is to end."""
        started = time.monotonic_ns()
        request = Request(head.method, head.target, head.path, head.query, head.headers, b"", self._peer)
        response = self._server.gate(request) if self._server.gate else None
        found = response or self._server.router.find(head.method, head.path, head.query)
        if isinstance(found, Match):
            logged = found.route.logged
            request.params = found.params
        else:
            logged = found.status in (404, 405)
        bytes_max = found.route.body_bytes_max if isinstance(found, Match) else UNUSED_BODY_BYTES_MAX
        keep_alive = head.keep_alive
        try:
            body = self._read_body(head, bytes_max)
            if body is None:
                return False
            request.body = body
            response = self._handle(found.route, request) if isinstance(found, Match) else found
        except BodyTooBigError:
            keep_alive = False
            response = error_answer(413, found.route.too_big) if isinstance(found, Match) else found
        self._send(self._render(response, head, keep_alive))
        if logged:
            took = format_duration(time.monotonic_ns() - started)
            self._server.log.info("%d %s %s (%s) %s", response.status, head.method, head.target, self._peer, took)
        if not keep_alive and head.content_length:
            self._drain()
        return keep_alive

    def _handle(self, route: Route, request: Request) -> Response:
        try:
            return answer(route.handler(request))
        except HttpError as error:
            return error_answer(error.status, error.code)
        except Exception:
            import traceback

            self._server.log.error("panic in HTTP handler - %s", traceback.format_exc())
            return error_answer(500, "INTERNAL_ERROR")

    def _render(self, response: Response, head: Head, keep_alive: bool) -> bytes:
        return render(
            response,
            date=self._server.date(),
            keep_alive=keep_alive,
            http_1_0=head.http_1_0,
            head=head.method == "HEAD",
        )

    def _refuse(self, refused: RefusedError) -> None:
        """Answer what is no sound HTTP, and leave."""
        self._server.log.debug("[%s] bad HTTP request - %s", self._peer, refused)
        response = text_answer(str(refused), refused.status)
        self._send(render(response, date=self._server.date(), keep_alive=False))
        self._drain()

    def _send(self, data: bytes) -> None:
        with _at_most(_WRITE_TIMEOUT_S):
            self._socket.sendall(data)

    def _drain(self) -> None:
        """Read what the client still sends, so that it gets to read our answer."""
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        drained = 0
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while drained < _DRAIN_BYTES_MAX and time.monotonic() < deadline:
                with _at_most(deadline - time.monotonic()):
                    data = self._socket.recv(_BODY_RECV_BYTES)
                if not data:
                    return
                drained += len(data)


def _at_most(seconds: float) -> gevent.Timeout:
    """For the whole of an operation: the time-out of a socket with TLS begins anew with every piece that comes."""
    return gevent.Timeout(max(0.001, seconds), TimeoutError("timed out"))
