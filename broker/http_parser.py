"""HTTP/1.x requests from bytes, without a socket.

    parser = RequestParser()
    parser.feed(data)
    head = parser.next_head()          # None: feed more
    parser.start_body(limit)           # the limit is the route's, so nothing of a body is kept before it is known
    body = parser.next_body()          # None: feed more
    head = parser.next_head()          # what was pipelined is still there

RefusedError says with which status to answer before closing: after it the parser must not be fed any more. Memory is
bounded by HEAD_BYTES_MAX, the body's limit, and one feed.
"""

import re
from dataclasses import dataclass, field
from typing import NoReturn

from pyspark_nsq.broker.http_messages import unescape
from pyspark_nsq.proto.pieces import append_piece

HEAD_BYTES_MAX = 64 * 1024
"""Request line and headers. NSQ's own need a few hundred bytes; proxies and cookies add some thousand."""
_CHUNK_LINE_BYTES_MAX = 256
_TRAILER_BYTES_MAX = 8 * 1024

_HEAD_END = re.compile(rb"\n\r?\n")
_REQUEST_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~\x80-\xff]+) HTTP/([0-9])\.([0-9])")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL_CHAR = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_AUTHORITY = re.compile(r"https?://[^/?]*", re.IGNORECASE)
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?")


class RefusedError(Exception):
    """The request cannot be served; the status says why, and the connection is of no use after the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status


class BodyTooBigError(Exception):
    """The body is, or says it will be, over the route's limit."""


@dataclass(frozen=True, slots=True)
class Head:
    """Request line and headers (names in lower case). ``content_length`` is -1 for a chunked body."""

    method: str
    target: str
    path: str
    query: str
    headers: dict[str, str] = field(repr=False)  # with them come secrets
    http_1_0: bool
    keep_alive: bool
    content_length: int
    expects_continue: bool


class RequestParser:
    """One connection's requests, one after the other."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._content_length = 0
        self._limit = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._chunk_left: int | None = None
        self._in_trailer = False

    def feed(self, data: bytes) -> None:
        if self._content_length > self._body_bytes:  # a counted body is kept in pieces: joined once, not grown
            missing = self._content_length - self._body_bytes
            piece = data[:missing]
            append_piece(self._body, piece)
            self._body_bytes += len(piece)
            data = data[missing:]
        self._buffer += data

    @property
    def has_bytes(self) -> bool:
        """Whether anything has arrived of what is read next, be it a head or a body."""
        return bool(self._buffer) or self._body_bytes > 0

    # Head

    def next_head(self) -> Head | None:
        """The next request's head, or None while it is incomplete."""
        self._skip_blank_lines()
        end = _HEAD_END.search(self._buffer, self._searched)
        head_bytes = end.end() if end else len(self._buffer)
        if head_bytes > HEAD_BYTES_MAX:
            raise RefusedError(431, f"more than {HEAD_BYTES_MAX} bytes of request line and headers")
        if end is None:
            self._searched = max(0, len(self._buffer) - 2)
            return None
        text = self._buffer[: end.start()].decode("latin-1")
        del self._buffer[:head_bytes]
        self._searched = 0
        return parse_head(text)

    def _skip_blank_lines(self) -> None:
        """Some clients end a body with a line break that they do not count."""
        if self._searched == 0 and self._buffer.startswith((b"\r", b"\n")):
            self._buffer = self._buffer.lstrip(b"\r\n")

    # Body

    def start_body(self, head: Head, limit: int) -> None:
        """Say what body follows and how many bytes of it are wanted at most; BodyTooBigError if it says more."""
        self._limit = limit
        self._body, self._body_bytes = [], 0
        self._chunk_left, self._in_trailer = None, False
        if head.content_length > limit:
            raise BodyTooBigError
        self._content_length = head.content_length
        if self._content_length > 0 and self._buffer:
            data = bytes(self._buffer)
            self._buffer.clear()
            self.feed(data)

    def next_body(self) -> bytes | None:
        """The whole body, or None while it is incomplete; BodyTooBigError once a chunked one is over its limit."""
        if self._content_length < 0:
            if not self._read_chunks():
                return None
        elif self._body_bytes < self._content_length:
            return None
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._content_length = self._body_bytes = 0
        self._body = []
        return body

    def _read_chunks(self) -> bool:
        """Move what has arrived from the buffer to the body; True at the end of the last trailer."""
        while not self._in_trailer:
            if self._chunk_left is None:
                line = self._take_line(_CHUNK_LINE_BYTES_MAX)
                if line is None:
                    return False
                found = _CHUNK_LINE.fullmatch(line)
                if found is None:
                    raise RefusedError(400, "a chunk without a size")
                self._chunk_left = int(found[1], 16)
                self._in_trailer = self._chunk_left == 0
                if self._body_bytes + self._chunk_left > self._limit:
                    raise BodyTooBigError
            elif not self._read_chunk_data():
                return False
        return self._skip_trailer()

    def _read_chunk_data(self) -> bool:
        """Take what is there of the current chunk; True once it and its line break are complete."""
        assert self._chunk_left is not None
        piece = bytes(self._buffer[: self._chunk_left])
        if piece:
            del self._buffer[: len(piece)]
            append_piece(self._body, piece)
            self._body_bytes += len(piece)
            self._chunk_left -= len(piece)
        if self._chunk_left:
            return False
        line = self._take_line(2)
        if line is None:
            return False
        if line not in (b"", b"\r"):
            raise RefusedError(400, "a chunk longer than its size")
        self._chunk_left = None
        return True

    def _skip_trailer(self) -> bool:
        while (line := self._take_line(_TRAILER_BYTES_MAX)) is not None:
            if line in (b"", b"\r"):
                return True
            self._limit -= len(line)  # trailers count as body: their number is bounded too
            if self._body_bytes > self._limit + _TRAILER_BYTES_MAX:
                raise RefusedError(431, f"more than {_TRAILER_BYTES_MAX} bytes of trailers")
        return False

    def _take_line(self, bytes_max: int) -> bytes | None:
        """The next line without its line feed, or None while it is incomplete."""
        end = self._buffer.find(b"\n", 0, bytes_max)
        if end < 0:
            if len(self._buffer) >= bytes_max:
                raise RefusedError(400, f"a line of more than {bytes_max} bytes in a chunked body")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line


def parse_head(text: str) -> Head:
    """Request line and headers, whose characters stand for bytes; RefusedError if they are not sound."""
    first, *rest = text.split("\n")
    line = _REQUEST_LINE.fullmatch(first.removesuffix("\r"))
    if line is None:
        _bad("a malformed request line")
    method, target, major, minor = line.groups()
    if major != "1":
        raise RefusedError(505, f"HTTP/{major}.{minor}")
    http_1_0 = minor == "0"
    path, query = _split_target(method, target)
    headers = _parse_headers(rest)
    if "host" not in headers and not http_1_0:
        _bad("no Host header")
    if headers.get("expect", "100-continue").lower() != "100-continue":
        raise RefusedError(417, f"Expect: {headers['expect'][:100]!r}")
    wishes = {wish.strip().lower() for wish in headers.get("connection", "").split(",")}
    return Head(
        method,
        target,
        path,
        query,
        headers,
        http_1_0,
        keep_alive="keep-alive" in wishes if http_1_0 else "close" not in wishes,
        content_length=_body_length(headers),
        expects_continue="expect" in headers and not http_1_0,
    )


def _split_target(method: str, target: str) -> tuple[str, str]:
    if target == "*" and method == "OPTIONS":
        return "*", ""
    if authority := _AUTHORITY.match(target):
        target = target[authority.end() :] or "/"
    if not target.startswith("/"):
        _bad("a malformed target")
    path, _, query = target.partition("?")
    try:
        return unescape(path), query
    except ValueError:
        _bad("a malformed target")


def _parse_headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.removesuffix("\r").partition(":")
        if not colon or not _HEADER_NAME.fullmatch(name) or _CONTROL_CHAR.search(value):
            _bad("a malformed header")
        name, value = name.lower(), value.strip(" \t")
        if name not in headers:
            headers[name] = value
        elif name in ("content-length", "host", "transfer-encoding"):
            if value != headers[name] or name != "content-length":
                _bad(f"more than one {name}")
        else:
            headers[name] += ", " + value
    return headers


def _body_length(headers: dict[str, str]) -> int:
    """Bytes, or -1 for chunks. A request that says both is how requests are smuggled past proxies."""
    length = headers.get("content-length")
    encoding = headers.get("transfer-encoding")
    if encoding is not None:
        if encoding.lower() != "chunked":
            raise RefusedError(501, f"Transfer-Encoding: {encoding[:100]!r}")
        if length is not None:
            _bad("both Content-Length and Transfer-Encoding")
        return -1
    if length is None:
        return 0
    if not (length.isascii() and length.isdigit() and len(length) <= 18):
        _bad(f"Content-Length: {length[:100]!r}")
    return int(length)


def _bad(what: str) -> NoReturn:
    raise RefusedError(400, what)
