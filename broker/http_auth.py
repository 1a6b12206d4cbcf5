"""AUTH for the HTTP API, where --http-require-auth asks for it: the secret comes with each request.

    Authorization: Bearer SECRET            or, as curl -u :SECRET sends it,            Authorization: Basic ...

The auth server is asked as for AUTH over TCP, and its answer kept for as long as it says. What a request needs:

    GET /ping                                   nothing
    /pub, /mpub, /topic/create                  publish on the topic
    /channel/...                                subscribe on the topic's channel
    /topic/delete, empty, pause, unpause        both on the topic
    any other GET but those below /debug/       any authorization at all
    anything else                               is refused: it concerns nsqd itself, of which no authorization speaks
"""

import base64
import binascii
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from pyspark_nsq.broker.auth import AuthQuestion, AuthState
from pyspark_nsq.broker.http_messages import HttpError, Request, Response, error_answer

Ask = Callable[[AuthQuestion], AuthState | None]

# Answers that are kept; whoever has not been heard of for longest is asked about again.
_KEPT_MAX: Final = 1024
_PUBLISHING: Final = frozenset(("/pub", "/mpub", "/topic/create"))
_TOPIC_CHANGES: Final = frozenset(("/topic/delete", "/topic/empty", "/topic/pause", "/topic/unpause"))
_CHANNEL_CHANGES: Final = frozenset(f"/channel/{word}" for word in ("create", "delete", "empty", "pause", "unpause"))
_CHALLENGE: Final = (("WWW-Authenticate", "Bearer"),)


class HttpAuth:
    """``ask`` blocks until an auth server has answered; None where none could be had."""

    def __init__(self, ask: Ask, now: Callable[[], int], *, tls: bool) -> None:
        self._ask = ask
        self._now = now
        self._tls = tls
        self._kept: OrderedDict[AuthQuestion, AuthState] = OrderedDict()

    def gate(self, request: Request) -> Response | None:
        """The answer to a request that is not allowed; None where it is."""
        if request.method == "GET" and request.path == "/ping":
            return None
        secret = _secret(request.headers.get("authorization", ""))
        if secret is None:
            return error_answer(401, "AUTH_REQUIRED", _CHALLENGE)
        state = self._state(AuthQuestion(secret, request.peer.rpartition(":")[0].strip("[]"), self._tls, ""))
        if state is None:
            return error_answer(403, "AUTH_FAILED")
        try:
            return None if _allows(state, request) else error_answer(403, "UNAUTHORIZED")
        except HttpError as error:
            return error_answer(error.status, error.code)

    def _state(self, question: AuthQuestion) -> AuthState | None:
        state = self._kept.pop(question, None)
        if state is None or state.expires_at <= self._now():
            state = self._ask(question)
        if state is not None:
            self._kept[question] = state
            if len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        return state


def _secret(header: str) -> bytes | None:
    """The secret in an Authorization header, whose characters stand for bytes."""
    scheme, _, value = header.partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value.encode("latin-1") or None
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2] or None
    except (binascii.Error, ValueError):
        return None


def _allows(state: AuthState, request: Request) -> bool:
    path = request.path
    if path in _PUBLISHING:
        return state.allows_publish(request.args.get("topic", ""))
    if path in _CHANNEL_CHANGES:
        return state.allows_subscribe(request.args.get("topic", ""), request.args.get("channel", ""))
    if path in _TOPIC_CHANGES:
        topic = request.args.get("topic", "")
        return state.allows_publish(topic) and state.allows_subscribe(topic, "")
    return request.method == "GET" and not path.startswith("/debug/") and bool(state.authorizations)
