"""Requests and answers over HTTP without a socket: what stands around the parser and the router of both daemons."""

from collections.abc import Iterator
from contextlib import suppress

from fuzz.target import pieces
from pyspark_nsq.broker.http_messages import HttpError, Request, Response, answer, error_answer, render
from pyspark_nsq.broker.http_parser import BodyTooBigError, RefusedError, RequestParser
from pyspark_nsq.broker.http_router import UNUSED_BODY_BYTES_MAX, Match, Route, Router

HTTP_WORDS = [
    *(b"HTTP/1.1\r\n", b"Host: a\r\n", b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"\r\n\r\n"),
    *(b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"topic=", b"channel=", b"/channel/", b"/topic/"),
    *(b"/config/", b"PUT ", b"GET ", b"POST ", b"OPTIONS ", b"%00", b"%23ephemeral", b"defer=", b"binary=true"),
]


def request(line: str, *headers: str, body: bytes = b"", rest: bytes = b"", version: str = "1.1") -> bytes:
    """One request; ``rest`` is a body whose length no header tells."""
    length = [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([f"{line} HTTP/{version}", "Host: a", *headers, *length, "", ""]).encode() + body + rest


def serve(data: bytes, routes: tuple[Route, ...], piece_size: int) -> Iterator[bytes]:
    """The answers to the requests in the data, which comes in pieces."""
    # A profile takes its time, and tells of the fuzzer.
    router = Router(route for route in routes if not route.path.startswith("/debug/pprof"))
    with suppress(RefusedError, BodyTooBigError, EOFError):
        yield from _answers(_Input(data, piece_size), router)


class _Input:
    def __init__(self, data: bytes, piece_size: int) -> None:
        self.parser = RequestParser()
        self._pieces = pieces(data, piece_size)

    def feed(self) -> None:
        piece = next(self._pieces, None)
        if piece is None:
            raise EOFError
        self.parser.feed(piece)


def _answers(source: _Input, router: Router) -> Iterator[bytes]:
    parser = source.parser
    while True:
        while (head := parser.next_head()) is None:
            source.feed()
        found = router.find(head.method, head.path, head.query)
        parser.start_body(head, found.route.body_bytes_max if isinstance(found, Match) else UNUSED_BODY_BYTES_MAX)
        body: bytes | None = b""
        while head.content_length and (body := parser.next_body()) is None:
            source.feed()
        asked = Request(head.method, head.target, head.path, head.query, head.headers, body or b"", "127.0.0.1:1")
        response = found if isinstance(found, Response) else _handled(found, asked)
        yield render(response, date="now", keep_alive=head.keep_alive, head=head.method == "HEAD")


def _handled(found: Match, asked: Request) -> Response:
    asked.params = found.params
    try:
        return answer(found.route.handler(asked))
    except HttpError as error:
        return error_answer(error.status, error.code)
