"""IDENTIFY: what a client asks for, checked in nsqd's order and with its texts, and the answer to it."""

from dataclasses import dataclass
from typing import Final

from pyspark_nsq.broker import json_go
from pyspark_nsq.broker.json_go import Int32
from pyspark_nsq.broker.nsqd_options import NsqdOptions
from pyspark_nsq.broker.topology import NOT_LOOKED_AT, Nearness, nearness
from pyspark_nsq.broker.version import NSQ_VERSION

_NS_PER_MS: Final = 1_000_000
DEFAULT_HEARTBEAT_NS: Final = 30_000 * _NS_PER_MS
DEFAULT_OUTPUT_BUFFER_SIZE: Final = 16 * 1024
_HEARTBEAT_MS_MIN: Final = 1000
_OUTPUT_BUFFER_SIZE_MIN: Final = 64
_MSG_TIMEOUT_MS_MIN: Final = 1000
_SAMPLE_RATE_MAX: Final = 99
_DEFLATE_LEVEL_DEFAULT: Final = 6


class IdentifyError(Exception):
    """A fatal answer: its code and its text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


@dataclass(slots=True)
class Identity:
    """What holds for a client; as constructed, for one that never says IDENTIFY."""

    client_id: str
    hostname: str
    user_agent: str = ""
    heartbeat_interval: int = DEFAULT_HEARTBEAT_NS
    output_buffer_size: int = DEFAULT_OUTPUT_BUFFER_SIZE
    output_buffer_timeout: int = 250 * _NS_PER_MS
    sample_rate: int = 0
    msg_timeout: int = 60_000 * _NS_PER_MS
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = _DEFLATE_LEVEL_DEFAULT
    topology_region: str = ""
    topology_zone: str = ""
    nearness: Nearness = NOT_LOOKED_AT


@dataclass(slots=True)
class _Asked:
    """The fields of IDENTIFY's body that mean anything to nsqd."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    sample_rate: Int32 = 0
    msg_timeout: int = 0
    feature_negotiation: bool = False
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 0
    topology_region: str = ""
    topology_zone: str = ""


def identify(
    body: bytes, current: Identity, options: NsqdOptions, *, tls_available: bool, upgradable: bool
) -> tuple[Identity, bytes]:
    """What holds from now on, and the answer; an IdentifyError where nsqd refuses.

    ``upgradable`` is false for a connection that was upgraded before: layers are not stacked twice.
    """
    asked = _decode(body)
    heartbeat_interval = _heartbeat_interval(asked.heartbeat_interval, current, options)
    output_buffer_size, output_buffer_timeout = _output_buffer(asked, current, options)
    granted = Identity(
        client_id=asked.client_id,
        hostname=asked.hostname,
        user_agent=asked.user_agent,
        heartbeat_interval=heartbeat_interval,
        output_buffer_size=output_buffer_size,
        output_buffer_timeout=output_buffer_timeout,
        sample_rate=_sample_rate(asked.sample_rate),
        msg_timeout=_msg_timeout(asked.msg_timeout, current, options),
        topology_region=asked.topology_region,
        topology_zone=asked.topology_zone,
        nearness=nearness(asked.topology_zone, asked.topology_region, options),
    )
    if not asked.feature_negotiation:
        return granted, b"OK"
    granted.tls = upgradable and tls_available and asked.tls_v1
    granted.deflate = upgradable and options.deflate and asked.deflate
    granted.snappy = upgradable and options.snappy and asked.snappy
    level = asked.deflate_level if granted.deflate else 0
    granted.deflate_level = min(level if level > 0 else _DEFLATE_LEVEL_DEFAULT, options.max_deflate_level)
    if granted.deflate and granted.snappy:
        raise IdentifyError("E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression")
    return granted, _answer(granted, options)


def _decode(body: bytes) -> _Asked:
    try:
        return json_go.decode(_Asked, body)
    except json_go.DecodeError as error:
        raise IdentifyError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from error


def _invalid(what: str, value: int) -> IdentifyError:
    return IdentifyError("E_BAD_BODY", f"IDENTIFY {what} ({value}) is invalid")


def _heartbeat_interval(value: int, current: Identity, options: NsqdOptions) -> int:
    if value == 0:
        return current.heartbeat_interval
    if value == -1:
        return 0
    if not _HEARTBEAT_MS_MIN <= value <= options.max_heartbeat_interval_ns // _NS_PER_MS:
        raise _invalid("heartbeat interval", value)
    return value * _NS_PER_MS


def _output_buffer(asked: _Asked, current: Identity, options: NsqdOptions) -> tuple[int, int]:
    size, timeout = asked.output_buffer_size, asked.output_buffer_timeout
    if timeout == 0:
        timeout_ns = current.output_buffer_timeout
    elif timeout == -1:
        timeout_ns = 0
    elif options.min_output_buffer_timeout_ns <= timeout * _NS_PER_MS <= options.max_output_buffer_timeout_ns:
        timeout_ns = timeout * _NS_PER_MS
    else:
        raise _invalid("output buffer timeout", timeout)
    if size == 0:
        return current.output_buffer_size, timeout_ns
    if size == -1:
        return 1, 0
    if not _OUTPUT_BUFFER_SIZE_MIN <= size <= options.max_output_buffer_size:
        raise _invalid("output buffer size", size)
    return size, timeout_ns


def _sample_rate(value: int) -> int:
    if not 0 <= value <= _SAMPLE_RATE_MAX:
        raise _invalid("sample rate", value)
    return value


def _msg_timeout(value: int, current: Identity, options: NsqdOptions) -> int:
    if value == 0:
        return current.msg_timeout
    if not _MSG_TIMEOUT_MS_MIN <= value <= options.max_msg_timeout_ns // _NS_PER_MS:
        raise _invalid("msg timeout", value)
    return value * _NS_PER_MS


def _answer(granted: Identity, options: NsqdOptions) -> bytes:
    """The keys and their order are a part of the protocol: clients compare whole answers."""
    answer: dict[str, object] = {
        "max_rdy_count": options.max_rdy_count,
        "version": NSQ_VERSION,
        "max_msg_timeout": options.max_msg_timeout_ns // _NS_PER_MS,
        "msg_timeout": granted.msg_timeout // _NS_PER_MS,
        "tls_v1": granted.tls,
        "deflate": granted.deflate,
        "deflate_level": granted.deflate_level,
        "max_deflate_level": options.max_deflate_level,
        "snappy": granted.snappy,
        "sample_rate": granted.sample_rate,
        "auth_required": bool(options.auth_http_addresses),
        "output_buffer_size": granted.output_buffer_size,
        "output_buffer_timeout": granted.output_buffer_timeout // _NS_PER_MS,
    }
    if options.topology_region or options.topology_zone:
        answer |= {"topology_region": options.topology_region, "topology_zone": options.topology_zone}
    return json_go.dumps(answer)
