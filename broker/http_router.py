"""Which handler a request goes to: a table of routes, with the redirects, 404, 405 and OPTIONS answers of Go's nsqd.

    router = Router((
        Route("GET", "/ping", lambda request: text_answer("OK")),
        Route("POST", "/pub", self.pub, body_bytes_max=options.max_msg_size, too_big="MSG_TOO_BIG", logged=False),
        Route("GET", "/config/:opt", lambda request: options[request.params["opt"]]),
    ))

A handler gets a :class:`Request` and returns what :func:`answer` takes, or raises :class:`HttpError`.
"""

import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pyspark_nsq.broker.http_messages import Request, Response, error_answer

Handler = Callable[[Request], Any]

UNUSED_BODY_BYTES_MAX = 1024 * 1024
"""Bodies nobody asked for are read and dropped, so that the connection can be used again; no more than this."""

_PATH_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/-._~$&+,:;=@")
_ANCHOR_TYPE = "text/html; charset=utf-8"
_ANCHOR_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})


@dataclass(frozen=True, slots=True)
class Route:
    """``too_big`` is the code of the 413 answer to a body over ``body_bytes_max``."""

    method: str
    path: str
    handler: Handler
    body_bytes_max: int = UNUSED_BODY_BYTES_MAX
    too_big: str = "BODY_TOO_BIG"
    logged: bool = True


@dataclass(frozen=True, slots=True)
class Match:
    """The route of a request and what its ``:name`` part stands for."""

    route: Route
    params: dict[str, str]


class Router:
    """Exact paths, and paths whose last part is a ``:name``."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._by_folder: dict[str, dict[str, Route]] = {}
        for route in routes:
            folder, _, last = route.path.rpartition("/")
            if last.startswith(":"):
                self._by_folder.setdefault(route.method, {})[folder] = route
            else:
                self._exact.setdefault(route.method, {})[route.path] = route
        self._methods = sorted(self._exact.keys() | self._by_folder.keys())

    def find(self, method: str, path: str, query: str = "") -> Match | Response:
        """The route, or the answer where there is none."""
        match = self._match(method, path)
        if match is not None:
            return match
        if path == "*":
            return Response(200)
        if method in self._methods and (fixed := self._fixed_path(method, path)):
            return _redirect(method, _escaped_path(fixed) + (f"?{query}" if query else ""))
        allowed = [other for other in self._methods if self._match(other, path)]
        if not allowed:
            return error_answer(404, "NOT_FOUND")
        allow = ("Allow", ", ".join(sorted([*allowed, "OPTIONS"])))
        return Response(200, headers=(allow,)) if method == "OPTIONS" else _method_not_allowed(allow)

    def _match(self, method: str, path: str) -> Match | None:
        route = self._exact.get(method, {}).get(path)
        if route is not None:
            return Match(route, {})
        folder, _, last = path.rpartition("/")
        route = self._by_folder.get(method, {}).get(folder)
        return Match(route, {route.path.rpartition(":")[2]: last}) if route and last else None

    def _fixed_path(self, method: str, path: str) -> str | None:
        """The path that was meant: with or without the last slash, without double ones, in the right case."""
        if path == "/":
            return None
        for meant in (_toggled_slash(path), *_case_fixes(path, self._exact.get(method, {}))):
            if self._match(method, meant):
                return meant
        clean = _clean(path)
        folder, _, last = clean.rstrip("/").rpartition("/")
        for known in self._by_folder.get(method, {}):
            if last and folder.lower() == known.lower():
                return f"{known}/{last}"
        return None


def _toggled_slash(path: str) -> str:
    return path[:-1] if path.endswith("/") else path + "/"


def _clean(path: str) -> str:
    """Without double slashes and dots; a slash at the end stays."""
    clean = posixpath.normpath("/" + path.lstrip("/"))
    return clean + "/" if path.endswith("/") and clean != "/" else clean


def _case_fixes(path: str, known: Iterable[str]) -> list[str]:
    wanted = _clean(path).lower()
    wanted_toggled = _toggled_slash(wanted)
    return [other for other in known if other.lower() in (wanted, wanted_toggled)]


def _redirect(method: str, location: str) -> Response:
    """301 for GET, 307 for others, which keeps method and body."""
    if method != "GET":
        return Response(307, headers=(("Location", location),))
    body = f'<a href="{location.translate(_ANCHOR_ESCAPES)}">Moved Permanently</a>.\n\n'
    return Response(301, body.encode("latin-1"), _ANCHOR_TYPE, (("Location", location),))


def _escaped_path(path: str) -> str:
    return "".join(char if char in _PATH_CHARS else _escaped(char) for char in path)


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogateescape"))


def _method_not_allowed(allow: tuple[str, str]) -> Response:
    return error_answer(405, "METHOD_NOT_ALLOWED", (allow,))
