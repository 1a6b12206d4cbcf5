"""How a connection to nsqd begins, up to the first command: a machine of frames in, steps out.

The order is nsqd's: IDENTIFY and its answer in clear, TLS, an OK under TLS, compression, an OK under compression,
AUTH and its answer. Each step waits for the one before.
"""

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark_nsq import __version__
from pyspark_nsq.connector.errors import ConnectError, RefusedError, SecurityError
from pyspark_nsq.connector.settings import Address, ConnectionSettings
from pyspark_nsq.proto import commands
from pyspark_nsq.proto.frames import ERROR, HEARTBEAT, OK, RESPONSE, Frame

# Answers are a few hundred bytes; this is what a confused or hostile peer can make us hold.
ANSWER_SIZE_MAX: Final = 64 * 1024
# What nsqd calls a value that it refuses in IDENTIFY, with the option that says it, its field, and nsqd's own limit.
_REFUSABLE: Final = (
    ("msg timeout", "msgTimeout", "msg_timeout_ms", "--max-msg-timeout"),
    ("heartbeat interval", "heartbeatInterval", "heartbeat_interval_ms", "--max-heartbeat-interval"),
    ("sample rate", "sampleRate", "sample_rate", ""),
)


@dataclass(frozen=True)
class Send:
    """Send these bytes, among which may be a secret, then hand in the next frame."""

    data: bytes

    def __repr__(self) -> str:
        return f"Send(<{len(self.data)} bytes>)"


@dataclass(frozen=True)
class StartTls:
    """Start TLS, then hand in the next frame."""


@dataclass(frozen=True)
class StartSnappy:
    """Compress and decompress with Snappy from here on, then hand in the next frame."""


@dataclass(frozen=True)
class StartDeflate:
    """Compress with deflate at this level and decompress from here on, then hand in the next frame."""

    level: int


Step = Send | StartTls | StartSnappy | StartDeflate


@dataclass(frozen=True)
class ServerFacts:
    """What the nsqd said about itself and this connection."""

    version: str
    max_rdy_count: int
    msg_timeout_ms: int
    max_msg_timeout_ms: int


class Handshake:
    """``start`` gives the first step, ``receive`` the next for each frame, None at the end: then ``facts`` is set."""

    def __init__(self, address: Address, settings: ConnectionSettings, auth_secret: bytes | None) -> None:
        self._address = address
        self._settings = settings
        self._auth_secret = auth_secret
        self._answer: dict[str, Any] = {}
        self._frame = Frame(RESPONSE, b"")
        self._steps = self._run()
        self.facts: ServerFacts | None = None

    def start(self) -> Step:
        return next(self._steps)

    def receive(self, frame: Frame) -> Step | None:
        if frame == (RESPONSE, HEARTBEAT):
            return Send(commands.NOP)
        if frame.type == ERROR:
            raise self._named(refused(self._address, frame.data))
        if frame.type != RESPONSE:
            raise self._strange(f"a frame of type {frame.type} came before any command")
        self._frame = frame
        return next(self._steps, None)

    def _run(self) -> Iterator[Step]:
        yield Send(commands.MAGIC_V2 + commands.identify(identify_fields(self._settings)))
        self._answer = self._json_answer("IDENTIFY")
        self.facts = self._read_facts()
        self._check_granted()
        if self._settings.security.tls:
            yield StartTls()
            self._check_ok("TLS")
        if self._settings.snappy:
            yield StartSnappy()
            self._check_ok("snappy")
        elif self._settings.deflate:
            yield StartDeflate(self._number("deflate_level", 1, 9))
            self._check_ok("deflate")
        if self._answer.get("auth_required") is True:
            if self._auth_secret is None:
                raise SecurityError(self._address, "demands AUTH: set option authSecret or authSecretFile")
            yield Send(commands.auth(self._auth_secret))
            self._json_answer("AUTH")

    def _named(self, refusal: ConnectError) -> ConnectError:
        """The same; where it is about a value of an option, one that says so and that another try does not help."""
        if self.facts is None:
            for words, option, field, limit in _REFUSABLE:
                value = getattr(self._settings, field)
                if f"IDENTIFY {words} (" in refusal.reason and value is not None:
                    unit = " ms" if field.endswith("_ms") else ""
                    remedy = f"choose another, or start nsqd with a larger {limit}" if limit else "choose another"
                    return SecurityError(self._address, f"{refusal.reason}: option {option} is {value}{unit}; {remedy}")
        return refusal

    def _json_answer(self, command: str) -> dict[str, Any]:
        try:
            answer = json.loads(self._frame.data)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise self._strange(f"the answer to {command} is no JSON object: {self._frame.data[:60]!r}")
        return answer

    def _read_facts(self) -> ServerFacts:
        return ServerFacts(
            version=str(self._answer.get("version", ""))[:100],
            max_rdy_count=self._number("max_rdy_count", 1, 2**63 - 1),
            msg_timeout_ms=self._number("msg_timeout", 1, 2**63 - 1),
            max_msg_timeout_ms=self._number("max_msg_timeout", 1, 2**63 - 1),
        )

    def _number(self, key: str, low: int, high: int) -> int:
        number = self._answer.get(key)
        if type(number) is not int or not low <= number <= high:
            raise self._strange(f"{key} in the answer to IDENTIFY is {str(number)[:60]}, not in {low}..{high}")
        return number

    def _check_granted(self) -> None:
        """Refuse to go on without what the options require, most of all not in clear text."""
        for key, option, wanted in (
            ("tls_v1", "tls", self._settings.security.tls),
            ("snappy", "snappy", self._settings.snappy),
            ("deflate", "deflate", self._settings.deflate),
        ):
            if wanted and self._answer.get(key) is not True:
                raise SecurityError(
                    self._address, f"does not offer {option}: start nsqd with it, or remove option {option}"
                )

    def _check_ok(self, after: str) -> None:
        if self._frame.data != OK:
            raise self._strange(f"the answer after {after} is {self._frame.data[:60]!r}, not OK")

    def _strange(self, what: str) -> ConnectError:
        return ConnectError(self._address, f"does not behave like nsqd: {what}")


def identify_fields(settings: ConnectionSettings) -> dict[str, object]:
    """What IDENTIFY says; a field that is left out has nsqd's default."""
    host = socket.gethostname()
    optional = {
        "msg_timeout": settings.msg_timeout_ms,
        "sample_rate": settings.sample_rate,
        "output_buffer_size": settings.output_buffer_size,
        "output_buffer_timeout": settings.output_buffer_timeout_ms,
    }
    return {
        "client_id": settings.client_id or host,
        "hostname": host,
        "user_agent": settings.user_agent or f"pyspark-nsq/{__version__}",
        "feature_negotiation": True,
        "heartbeat_interval": settings.heartbeat_interval_ms,
        "tls_v1": settings.security.tls,
        "snappy": settings.snappy,
        "deflate": settings.deflate,
        "deflate_level": settings.deflate_level,
        **{name: value for name, value in optional.items() if value is not None},
    }


def refused(address: Address, error: bytes) -> ConnectError:
    """The error of an error frame, fit to be shown, with what may help."""
    code, _, text = error[:500].decode("ascii", "backslashreplace").partition(" ")
    refusal = RefusedError(address, code, text)
    if "TLS required" in text:
        return SecurityError(address, f"{refusal.reason}: set option tls to true")
    if code in ("E_AUTH_FAILED", "E_UNAUTHORIZED", "E_AUTH_DISABLED"):
        return SecurityError(address, f"{refusal.reason}: see options authSecret and authSecretFile")
    return refusal
