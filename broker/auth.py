"""What an auth server may be asked, what its answer allows, and when that has to be asked again.

Bytes and times in, values out: the question itself travels through ``http_client``.
"""

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlencode

from pyspark_nsq.broker import json_go

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
_NS_PER_SECOND: Final = 1_000_000_000
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
        return re.compile(text)
    except re.error as error:
        raise AuthError(f"unable to compile {what} {text!r}: {error}") from error
