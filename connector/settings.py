"""What is known about a peer before a connection: plain values, which compare, hash and pickle."""

from dataclasses import dataclass, field
from typing import NamedTuple


class Address(NamedTuple):
    """Where a process listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HttpAddress(NamedTuple):
    """Where a process answers HTTP, and whether under TLS."""

    address: Address
    tls: bool = False

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.address}"


@dataclass(frozen=True)
class Secret:
    """A value that no text shows by accident."""

    reveal: str = field(repr=False)

    def __str__(self) -> str:
        return "(hidden)"


@dataclass(frozen=True)
class Security:
    """How connections are protected, and how the client proves who it is.

    Files are named, not read: each process reads its own, so that new certificates and secrets take effect.
    """

    tls: bool = False
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_key_password: Secret | None = None
    tls_server_name: str | None = None
    tls_insecure_skip_verify: bool = False
    auth_secret: Secret | None = None
    auth_secret_file: str | None = None


@dataclass(frozen=True)
class ConnectionSettings:
    """All that decides whether two connections to an nsqd are alike. Where a field is None, nsqd's default holds."""

    security: Security = Security()
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 6
    client_id: str | None = None
    user_agent: str | None = None
    connect_timeout_s: float = 5.0
    heartbeat_interval_ms: int = 30_000
    msg_timeout_ms: int | None = None
    sample_rate: int | None = None
    output_buffer_size: int | None = None
    output_buffer_timeout_ms: int | None = None
