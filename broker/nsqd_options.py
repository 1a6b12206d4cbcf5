"""The options of nsqd.

Field names are the flags' names with ``_``, plus the unit where one is needed: ``--msg-timeout`` is
``msg_timeout_ns``, in nanoseconds. :meth:`NsqdOptions.problem` checks what no single flag can.
"""

# ruff: noqa: RUF009 (flag() declares a field, as dataclasses.field() does)

import os
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from pyspark_nsq.broker.auth import is_askable, shown
from pyspark_nsq.broker.durations import HOUR, MILLISECOND, MINUTE, SECOND
from pyspark_nsq.broker.flag_kinds import (
    BOOL,
    DURATION,
    FLOATS,
    INT,
    LOG_LEVEL,
    STRING,
    STRINGS,
    Kind,
    parse_bool,
    quoted,
)
from pyspark_nsq.broker.flags import flag
from pyspark_nsq.broker.logs import Level

HOSTNAME = os.uname().nodename


class TlsRequired(IntEnum):
    """The numbers are those that GET /config/tls_required answers."""

    NO = 0
    EXCEPT_HTTP = 1
    YES = 2


TLS_VERSIONS = {"tls1.0": 0x0301, "tls1.1": 0x0302, "tls1.2": 0x0303, "tls1.3": 0x0304}
"""Names to the numbers of the TLS record layer, which are also those of ssl.TLSVersion."""
_DEFAULT_TLS_MIN_VERSION = TLS_VERSIONS["tls1.2"]


def _default_node_id() -> int:
    import hashlib

    return zlib.crc32(hashlib.md5(HOSTNAME.encode(), usedforsecurity=False).digest()) % 1024


def _parse_tls_required(text: str, _: Any = None) -> TlsRequired:
    word = text.lower()
    if word == "tcp-https":
        return TlsRequired.EXCEPT_HTTP
    return TlsRequired.YES if parse_bool(word) else TlsRequired.NO


def _parse_tls_version(text: str, _: Any = None) -> int:
    word = text.lower()
    if not word:
        return _DEFAULT_TLS_MIN_VERSION
    if word not in TLS_VERSIONS:
        raise ValueError(f"unknown TLS version {quoted(text)} ({', '.join(TLS_VERSIONS)})")
    return TLS_VERSIONS[word]


def _show_tls_version(value: int) -> str:
    return next(name for name, number in TLS_VERSIONS.items() if number == value)


_TLS_REQUIRED = Kind("", _parse_tls_required, lambda value: _parse_tls_required(str(value)), lambda _: "", True)
_TLS_VERSION = Kind("value", _parse_tls_version, lambda value: _parse_tls_version(str(value)), _show_tls_version)

DEPRECATED_FLAGS = {"worker-id": "[deprecated] use --node-id"}
"""Flags that old scripts pass and nothing reads."""


@dataclass(frozen=True, kw_only=True)
class NsqdOptions:
    """What nsqd was started with; sizes are bytes, fields in ``_ns`` nanoseconds."""

    node_id: int = flag(
        "node-id",
        INT,
        _default_node_id(),
        "unique part for message IDs, (int) in range [0,1024) (default is hash of hostname)",
        key="id",
    )
    log_level: Level = flag("log-level", LOG_LEVEL, Level.INFO, "set log verbosity: debug, info, warn, error, or fatal")
    log_prefix: str = flag("log-prefix", STRING, "[nsqd] ", "log message prefix")

    tcp_address: str = flag(
        "tcp-address",
        STRING,
        "0.0.0.0:4150",
        "address to listen on for TCP clients (<addr>:<port> for TCP/IP or <path> for unix socket)",
    )
    http_address: str = flag(
        "http-address",
        STRING,
        "0.0.0.0:4151",
        "address to listen on for HTTP clients (<addr>:<port> for TCP/IP or <path> for unix socket)",
    )
    https_address: str = flag("https-address", STRING, "0.0.0.0:4152", "<addr>:<port> to listen on for HTTPS clients")
    broadcast_address: str = flag(
        "broadcast-address",
        STRING,
        HOSTNAME,
        "address that will be registered with lookupd (defaults to the OS hostname)",
    )
    broadcast_tcp_port: int = flag(
        "broadcast-tcp-port",
        INT,
        0,
        "TCP port that will be registered with lookupd (defaults to the TCP port that this nsqd is listening on)",
    )
    broadcast_http_port: int = flag(
        "broadcast-http-port",
        INT,
        0,
        "HTTP port that will be registered with lookupd (defaults to the HTTP port that this nsqd is listening on)",
    )
    lookupd_tcp_addresses: tuple[str, ...] | None = flag(
        "lookupd-tcp-address",
        STRINGS,
        (),
        "lookupd TCP address (may be given multiple times)",
        key="nsqlookupd_tcp_addresses",
    )
    auth_http_addresses: tuple[str, ...] = flag(
        "auth-http-address",
        STRINGS,
        (),
        "<addr>:<port> or a full url to query auth server (may be given multiple times)",
        key="auth_http_addresses",
    )
    auth_http_request_method: str = flag(
        "auth-http-request-method", STRING, "get", "HTTP method to use for auth server requests (get or post)"
    )
    http_require_auth: bool = flag(
        "http-require-auth",
        BOOL,
        False,
        "demand a secret with each HTTP request, in an Authorization header (needs --auth-http-address)",
    )
    http_client_connect_timeout_ns: int = flag(
        "http-client-connect-timeout", DURATION, 2 * SECOND, "timeout for HTTP connect"
    )
    http_client_request_timeout_ns: int = flag(
        "http-client-request-timeout", DURATION, 5 * SECOND, "timeout for HTTP request"
    )
    topology_region: str = flag("topology-region", STRING, "", "A region represents a larger domain of zones")
    topology_zone: str = flag("topology-zone", STRING, "", "A zone represents a logical failure domain")
    enable_experiments: tuple[str, ...] = flag(
        "enable-experiment",
        STRINGS,
        (),
        "enable an experimental feature (may be given multiple times): topology-aware-consumption",
    )

    data_path: str = flag("data-path", STRING, "", "path to store disk-backed messages")
    mem_queue_size: int = flag("mem-queue-size", INT, 10000, "number of messages to keep in memory (per topic/channel)")
    max_bytes_per_file: int = flag(
        "max-bytes-per-file", INT, 100 * 1024 * 1024, "number of bytes per diskqueue file before rolling"
    )
    sync_every: int = flag("sync-every", INT, 2500, "number of messages per diskqueue fsync")
    sync_timeout_ns: int = flag("sync-timeout", DURATION, 2 * SECOND, "duration of time per diskqueue fsync")
    queue_scan_worker_pool_max: int = flag(
        "queue-scan-worker-pool-max",
        INT,
        4,
        "max concurrency for checking in-flight and deferred message timeouts",
    )
    queue_scan_selection_count: int = flag(
        "queue-scan-selection-count",
        INT,
        20,
        "number of channels to check per cycle (every 100ms) for in-flight and deferred timeouts",
    )

    msg_timeout_ns: int = flag(
        "msg-timeout", DURATION, MINUTE, "default duration to wait before auto-requeing a message"
    )
    max_msg_timeout_ns: int = flag(
        "max-msg-timeout", DURATION, 15 * MINUTE, "maximum duration before a message will timeout"
    )
    max_msg_size: int = flag("max-msg-size", INT, 1024 * 1024, "maximum size of a single message in bytes")
    max_req_timeout_ns: int = flag("max-req-timeout", DURATION, HOUR, "maximum requeuing timeout for a message")
    max_body_size: int = flag("max-body-size", INT, 5 * 1024 * 1024, "maximum size of a single command body")

    max_heartbeat_interval_ns: int = flag(
        "max-heartbeat-interval",
        DURATION,
        MINUTE,
        "maximum client configurable duration of time between client heartbeats",
    )
    max_rdy_count: int = flag("max-rdy-count", INT, 2500, "maximum RDY count for a client")
    max_output_buffer_size: int = flag(
        "max-output-buffer-size",
        INT,
        64 * 1024,
        "maximum client configurable size (in bytes) for a client output buffer",
    )
    max_output_buffer_timeout_ns: int = flag(
        "max-output-buffer-timeout",
        DURATION,
        30 * SECOND,
        "maximum client configurable duration of time between flushing to a client",
    )
    min_output_buffer_timeout_ns: int = flag(
        "min-output-buffer-timeout",
        DURATION,
        25 * MILLISECOND,
        "minimum client configurable duration of time between flushing to a client",
    )
    output_buffer_timeout_ns: int = flag(
        "output-buffer-timeout",
        DURATION,
        250 * MILLISECOND,
        "default duration of time between flushing data to clients",
    )
    max_channel_consumers: int = flag(
        "max-channel-consumers",
        INT,
        0,
        "maximum channel consumer connection count per nsqd instance (default 0, i.e., unlimited)",
    )

    statsd_address: str = flag("statsd-address", STRING, "", "UDP <addr>:<port> of a statsd daemon for pushing stats")
    statsd_interval_ns: int = flag("statsd-interval", DURATION, MINUTE, "duration between pushing to statsd")
    statsd_mem_stats: bool = flag("statsd-mem-stats", BOOL, True, "toggle sending memory and GC stats to statsd")
    statsd_prefix: str = flag(
        "statsd-prefix", STRING, "nsq.%s", "prefix used for keys sent to statsd (%s for host replacement)"
    )
    statsd_udp_packet_size: int = flag("statsd-udp-packet-size", INT, 508, "the size in bytes of statsd UDP packets")
    statsd_exclude_ephemeral: bool = flag(
        "statsd-exclude-ephemeral",
        BOOL,
        False,
        "Skip ephemeral topics and channels when sending stats to statsd",
    )

    e2e_processing_latency_percentiles: tuple[float, ...] = flag(
        "e2e-processing-latency-percentile",
        FLOATS,
        (),
        "message processing time percentiles (as float (0, 1.0]) to track (can be specified multiple times or comma"
        " separated '1.0,0.99,0.95', default none)",
        key="e2e_processing_latency_percentiles",
    )
    e2e_processing_latency_window_time_ns: int = flag(
        "e2e-processing-latency-window-time",
        DURATION,
        10 * MINUTE,
        "calculate end to end latency quantiles for this duration of time (ie: 60s would only show quantile"
        " calculations from the past 60 seconds)",
    )

    tls_cert: str = flag("tls-cert", STRING, "", "path to certificate file")
    tls_key: str = flag("tls-key", STRING, "", "path to key file")
    tls_client_auth_policy: str = flag(
        "tls-client-auth-policy", STRING, "", "client certificate auth policy ('require' or 'require-verify')"
    )
    tls_root_ca_file: str = flag("tls-root-ca-file", STRING, "", "path to certificate authority file")
    tls_required: TlsRequired = flag(
        "tls-required",
        _TLS_REQUIRED,
        TlsRequired.NO,
        "require TLS for client connections (true, false, tcp-https)",
    )
    tls_min_version: int = flag(
        "tls-min-version",
        _TLS_VERSION,
        _DEFAULT_TLS_MIN_VERSION,
        "minimum TLS version acceptable ('tls1.0', 'tls1.1', 'tls1.2' or 'tls1.3')",
    )

    deflate: bool = flag("deflate", BOOL, True, "enable deflate feature negotiation (client compression)")
    max_deflate_level: int = flag(
        "max-deflate-level",
        INT,
        6,
        "max deflate compression level a client can negotiate (> values == > nsqd CPU usage)",
    )
    snappy: bool = flag("snappy", BOOL, True, "enable snappy feature negotiation (client compression)")

    def problem(self) -> str | None:
        """Why nsqd cannot start with these options, or None. Files and addresses are tried where they are used."""
        if not 1 <= self.max_deflate_level <= 9:
            return f"--max-deflate-level must be [1,9], not {self.max_deflate_level}"
        if not 0 <= self.node_id < 1024:
            return f"--node-id must be [0,1024), not {self.node_id}"
        for name in ("sync_timeout_ns", "statsd_interval_ns"):
            if getattr(self, name) <= 0:
                return f"--{name.removesuffix('_ns').replace('_', '-')} must be positive"
        for percentile in self.e2e_processing_latency_percentiles:
            if not 0 < percentile <= 1:
                return f"invalid E2E processing latency percentile: {percentile}"
        return self._security_problem()

    def _security_problem(self) -> str | None:
        if self.auth_http_request_method not in ("get", "post"):
            return f"--auth-http-request-method must be get or post, not {quoted(self.auth_http_request_method)}"
        for address in self.auth_http_addresses:
            if not is_askable(address):
                return (
                    f"--auth-http-address must be <addr>:<port> or a http or https URL: {shown(address)!r} is neither"
                )
        if self.http_require_auth and not self.auth_http_addresses:
            return "--http-require-auth needs --auth-http-address: who else could know the secrets"
        if bool(self.tls_cert) != bool(self.tls_key):
            return "--tls-cert and --tls-key must be given together"
        if self.tls_demanded != TlsRequired.NO and not self.tls_cert:
            return "cannot require TLS client connections without TLS key and cert"
        return None

    @property
    def tls_demanded(self) -> TlsRequired:
        """``--tls-required``, which a policy for client certificates implies."""
        if self.tls_client_auth_policy and self.tls_required == TlsRequired.NO:
            return TlsRequired.YES
        return self.tls_required
