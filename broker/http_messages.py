"""Requests, answers and their bytes: what handlers see of HTTP, and how an answer is written."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark_nsq.broker import json_go

JSON_TYPE = "application/json; charset=utf-8"
TEXT_TYPE = "text/plain; charset=utf-8"
NSQ_HEADER = ("X-Nsq-Content-Type", "nsq; version=1.0")

_REASONS = {
    200: "OK",
    301: "Moved Permanently",
    307: "Temporary Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Request Entity Too Large",
    417: "Expectation Failed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})?")


class HttpError(Exception):
    """Raised by a handler: answered as ``{"message":"CODE"}`` with this status."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Response:
    """An answer in full. Handlers need it only for what :func:`answer` cannot say. A body without a type is sent as
    plain text."""

    status: int
    body: bytes = b""
    content_type: str = ""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass
class Request:
    """A request with its whole body; ``params`` are the ``:name`` parts of the route, ``peer`` is ``host:port``."""

    method: str
    target: str
    path: str
    query: str
    headers: Mapping[str, str] = field(repr=False)  # with them come secrets
    body: bytes = b""
    peer: str = ""
    params: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def args(self) -> dict[str, str]:
        """The query string's arguments, the first value of each; HttpError 400 INVALID_REQUEST if it is malformed.
        Form bodies are not read."""
        found: dict[str, str] = {}
        try:
            for part in self.query.split("&"):
                if ";" in part:
                    raise ValueError("a semicolon is no separator")
                if part:
                    name, _, value = part.partition("=")
                    found.setdefault(unescape(name.replace("+", " ")), unescape(value.replace("+", " ")))
        except ValueError:
            raise HttpError(400, "INVALID_REQUEST") from None
        return found

    def required(self, name: str) -> str:
        """The argument, or HttpError 400 MISSING_ARG_NAME. An empty value is a value."""
        value = self.args.get(name)
        if value is None:
            raise HttpError(400, f"MISSING_ARG_{name.upper()}")
        return value


def unescape(text: str) -> str:
    """Percent escapes decoded, in text whose characters stand for bytes; ValueError at a bad escape. Bytes that are
    no UTF-8 become surrogates, which no valid name contains."""
    raw = text.encode("latin-1")
    if b"%" in raw:
        raw = _ESCAPE.sub(_unescape_one, raw)
    return raw.decode("utf-8", "surrogateescape")


def _unescape_one(found: re.Match[bytes]) -> bytes:
    if found[1] is None:
        raise ValueError("a percent sign without two hex digits")
    return bytes((int(found[1], 16),))


def answer(value: Any) -> Response:
    """What a handler returned, as an answer: None is empty, str and bytes are sent as they are, a Response is
    itself, anything else is JSON."""
    if isinstance(value, Response):
        return value
    if value is None:
        return Response(200, headers=(NSQ_HEADER,))
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        return Response(200, value, headers=(NSQ_HEADER,))
    return Response(200, json_go.dumps(value), JSON_TYPE, (NSQ_HEADER,))


def error_answer(status: int, code: str, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    return Response(status, json_go.dumps({"message": code}), JSON_TYPE, (*headers, NSQ_HEADER))


def text_answer(text: str, status: int = 200) -> Response:
    """Plain text without the header that marks NSQ's API, as /ping and /debug answer."""
    return Response(status, text.encode("utf-8", "backslashreplace"))


def render(response: Response, *, date: str, keep_alive: bool, http_1_0: bool = False, head: bool = False) -> bytes:
    """The bytes of an answer; ``head``: of a HEAD request, which has no body."""
    status, body = response.status, response.body
    chosen = list(response.headers)
    if response.content_type:
        chosen.append(("Content-Type", response.content_type))
    lines = [f"HTTP/1.{0 if http_1_0 else 1} {status} {_REASONS[status]}"]
    lines.extend(f"{name}: {value}" for name, value in sorted(chosen))  # the order of Go's server, to the byte
    lines.append(f"Date: {date}\r\nContent-Length: {len(body)}")
    if body and not response.content_type:
        lines.append(f"Content-Type: {TEXT_TYPE}")
    if keep_alive == http_1_0:  # the version's own rule is the other way
        lines.append("Connection: keep-alive" if keep_alive else "Connection: close")
    start = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
    return start if head else start + body


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def http_date(now: float) -> str:
    """The Date header's value; spelled out here because strftime would use the locale's names."""
    at = time.gmtime(now)
    clock = f"{at.tm_hour:02d}:{at.tm_min:02d}:{at.tm_sec:02d}"
    return f"{_DAYS[at.tm_wday]}, {at.tm_mday:02d} {_MONTHS[at.tm_mon - 1]} {at.tm_year} {clock} GMT"
