"""HTTP as a test needs it: a request as it is, a response as it came."""

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from blackbox.wire import PATIENCE_SECONDS, Address, open_socket


class Response(NamedTuple):
    """Status, headers (names in lower case) and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class _Connection(http.client.HTTPConnection):
    """http.client over a TCP, unix or TLS socket."""

    def __init__(self, address: Address, context: ssl.SSLContext | None) -> None:
        super().__init__("localhost", timeout=PATIENCE_SECONDS)
        self.address = address
        self.context = context

    def connect(self) -> None:
        sock: socket.socket = open_socket(self.address)
        self.sock = self.context.wrap_socket(sock, server_hostname="localhost") if self.context else sock


def request(
    address: Address,
    method: str,
    target: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> Response:
    """One request on a connection of its own; the target goes out as it is."""
    connection = _Connection(address, context)
    try:
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in (headers or {}).items():
            connection.putheader(name.replace("_", "-"), value)
        if body is not None or method in {"POST", "PUT"}:
            connection.putheader("Content-Length", str(len(body or b"")))
        connection.endheaders(body)
        return _read(connection.getresponse())
    finally:
        connection.close()


def raw_request(address: Address, data: bytes) -> Response:
    """Bytes as they are, for what http.client would not send."""
    with open_socket(address) as sock:
        sock.sendall(data)
        answer = http.client.HTTPResponse(sock)
        answer.begin()
        return _read(answer)


def _read(answer: http.client.HTTPResponse) -> Response:
    headers = {name.lower(): value for name, value in answer.getheaders()}
    return Response(answer.status, headers, answer.read())


def query_of(target: str) -> list[tuple[str, str]]:
    """The parameters of a request's target in their order."""
    pairs = (pair.partition("=") for pair in urlsplit(target).query.split("&") if pair)
    return [(unquote(name), unquote(value.replace("+", " "))) for name, _, value in pairs]
