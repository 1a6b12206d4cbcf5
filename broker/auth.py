"""What an auth server may be asked, what its answer allows, and when that has to be asked again.

Bytes and times in, values out: the question itself travels through ``http_client``.
"""

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode, urlsplit

from pyspark_nsq.broker import json_go

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
_NS_PER_SECOND: Final = 1_000_000_000
_SOUND_URL: Final = re.compile("[!-~]+")
# Beyond this a time to live means "for ever"; the bound keeps the sum of two times within 64 bits.
_TTL_SECONDS_MAX: Final = 10 * 365 * 86_400


class AuthError(Exception):
    """The auth server's answer cannot be used."""


@dataclass(frozen=True, slots=True)
class AuthQuestion:
    """Who asks. The secret stays out of logs: repr leaves it out."""

    secret: bytes
    remote_ip: str
    tls: bool
    common_name: str

    def __repr__(self) -> str:
        return f"AuthQuestion(remote_ip={self.remote_ip!r}, tls={self.tls}, common_name={self.common_name!r})"

    def _fields(self) -> list[tuple[str, str]]:
        secret = self.secret.decode("utf-8", "surrogateescape")
        tls = "true" if self.tls else "false"
        return [("common_name", self.common_name), ("remote_ip", self.remote_ip), ("secret", secret), ("tls", tls)]

    def query_string(self) -> str:
        return urlencode(self._fields(), errors="surrogateescape")

    def json_body(self) -> bytes:
        return json_go.dumps({name: [value] for name, value in self._fields()})


def endpoint(address: str) -> str:
    """The URL behind an ``--auth-http-address``, which is host:port or a whole URL."""
    return address if "://" in address else f"http://{address}/auth"


def is_askable(address: str) -> bool:
    """Whether a request can be made of an ``--auth-http-address``."""
    url = endpoint(address)
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and has_port
        and _SOUND_URL.fullmatch(url) is not None
    )


def shown(address: str) -> str:
    """An ``--auth-http-address`` for logs: without a password, and without a query, which may hold a secret too."""
    return address.rpartition("@")[2].partition("?")[0]


@dataclass(frozen=True, slots=True)
class Authorization:
    topic: re.Pattern[str]
    channels: tuple[re.Pattern[str], ...]
    permissions: frozenset[str]

    def allows(self, permission: str, topic: str, channel: str) -> bool:
        return (
            permission in self.permissions
            and self.topic.search(topic) is not None
            and any(pattern.search(channel) is not None for pattern in self.channels)
        )


@dataclass(frozen=True, slots=True)
class AuthState:
    """What one client may do until ``expires_at``, in nanoseconds of the clock its parser was given."""

    identity: str
    identity_url: str
    authorizations: tuple[Authorization, ...]
    expires_at: int

    def allows_publish(self, topic: str) -> bool:
        """Publishing names no channel, so some channel pattern must match the empty string."""
        return any(rule.allows(PUBLISH, topic, "") for rule in self.authorizations)

    def allows_subscribe(self, topic: str, channel: str) -> bool:
        return any(rule.allows(SUBSCRIBE, topic, channel) for rule in self.authorizations)


@dataclass(slots=True)
class _Rule:
    topic: str = ""
    channels: list[str] = field(default_factory=list)
    permissions: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Answer:
    ttl: int = 0
    identity: str = ""
    identity_url: str = ""
    authorizations: list[_Rule] = field(default_factory=list)


def parse_answer(body: bytes, now: int) -> AuthState:
    """The state that an auth server granted, or an ``AuthError`` that says what is wrong with its answer."""
    try:
        answer = json_go.decode(_Answer, body)
    except json_go.DecodeError as error:
        raise AuthError(f"the answer: {error}") from error
    rules = tuple(_authorization(rule) for rule in answer.authorizations)
    if answer.ttl <= 0:
        raise AuthError(f"invalid TTL {answer.ttl} (must be >0)")
    expires_at = now + min(answer.ttl, _TTL_SECONDS_MAX) * _NS_PER_SECOND
    return AuthState(answer.identity, answer.identity_url, rules, expires_at)


def _authorization(rule: _Rule) -> Authorization:
    permissions = frozenset(rule.permissions)
    for permission in sorted(permissions - {PUBLISH, SUBSCRIBE}):
        raise AuthError(f"unknown permission {permission}")
    channels = tuple(_pattern("channel", text) for text in rule.channels)
    return Authorization(_pattern("topic", rule.topic), channels, permissions)


def _pattern(what: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(_PIECE.sub(_as_python, text))
    except (re.error, OverflowError, RecursionError, KeyError) as error:
        raise AuthError(f"unable to compile {what} {text[:200]!r}: {type(error).__name__} {error}") from None


# What Go writes in another way than Python: an escape, or a set in brackets, in which classes have names.
_PIECE: Final = re.compile(r"\\.|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]?", re.DOTALL)
_PIECE_OF_SET: Final = re.compile(r"\\.|\[:(\^?\w+):\]|\[", re.DOTALL)
_CLASSES: Final = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t-\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}


def _as_python(piece: re.Match[str]) -> str:
    text = piece[0]
    if text[0] == "[":
        return "[" + _PIECE_OF_SET.sub(_in_set, text[1:])
    return r"\Z" if text == r"\z" else text


def _in_set(piece: re.Match[str]) -> str:
    if piece[1]:
        return _CLASSES[piece[1]]
    return r"\[" if piece[0] == "[" else piece[0]
