"""The options that say where receivers are, checked for what contradicts itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark_nsq.connector.errors import OptionError
from pyspark_nsq.connector.receiver_tls import ReceiverTls, check_receiver_tls
from pyspark_nsq.connector.settings import Address

_ANY_PORT: Final = range(1)
_TOKEN_SIZE_MIN: Final = 16
_TOKEN_SIZE_MAX: Final = 4096
_TLS_FILES: Final = ("receiverTlsCaFile", "receiverTlsCertFile", "receiverTlsKeyFile")
_SECRETS: Final = ("authSecret", "tlsKeyPassword")


@dataclass(frozen=True)
class ReceiverOptions:
    """``count`` processes beside the driver; if that is 0 those at ``addresses``, or one on each executor's host."""

    count: int
    addresses: tuple[Address, ...]
    token_file: str | None
    host: str | None
    # The first that is free; 0 is any.
    ports: range
    lease_s: float
    tls: ReceiverTls | None

    @property
    def on_executors(self) -> bool:
        return not self.count and not self.addresses


def receiver_options(values: Mapping[str, Any]) -> ReceiverOptions:
    """The options of this name among all values; ``OptionError`` for what cannot be."""
    place = values["receivers"]
    options = ReceiverOptions(
        count=place if isinstance(place, int) else 0,
        addresses=place if isinstance(place, tuple) else (),
        token_file=values["receiverTokenFile"],
        host=values["receiverHost"],
        ports=values["receiverPorts"] or _ANY_PORT,
        lease_s=values["receiverLease"] / 1000,
        tls=_tls(values),
    )
    _check_place(options, values)
    return options


def _check_place(options: ReceiverOptions, values: Mapping[str, Any]) -> None:
    if options.addresses and not options.token_file:
        raise OptionError("option receiverTokenFile: it is not set, and the receivers at addresses ask for their token")
    if options.token_file:
        if not options.addresses:
            raise OptionError(
                "option receiverTokenFile: only receivers at addresses (host:port) have a token of a file"
            )
        read_token(options.token_file, "option receiverTokenFile")
    count, ports = options.count, values["receiverPorts"]
    if ports and len(ports) < count:
        raise OptionError(
            f"option receiverPorts: its ports, {len(ports)}, are fewer than receivers, {count}, each of which listens "
            f"on one of its own. Name {count} or more, as in 7000-{6999 + count}, or use fewer receivers"
        )
    for name in _SECRETS:
        if values[name] and not options.count and not options.tls:
            raise OptionError(
                f"option {name}: it would go to the receivers in clear. Set receiverTls, or use "
                + ("authSecretFile" if name == "authSecret" else "a key without a password")
            )


def _tls(values: Mapping[str, Any]) -> ReceiverTls | None:
    named = [name for name in (*_TLS_FILES, "receiverTlsServerName") if values[name]]
    if not values["receiverTls"]:
        if named:
            raise OptionError(f"option {named[0]}: it is set, but receiverTls is not true")
        return None
    for name in _TLS_FILES:
        if not values[name]:
            raise OptionError(f"option {name}: it is not set, and receiverTls needs it")
    ca_file, cert_file, key_file = (values[name] for name in _TLS_FILES)
    tls = ReceiverTls(ca_file, cert_file, key_file, values["receiverTlsServerName"])
    check_receiver_tls(tls)
    return tls


def read_token(path: str, what: str) -> str:
    """The token that a file holds."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise OptionError(f"{what}: {path!r} cannot be read: {error}") from error
    token = content.strip()
    if not _TOKEN_SIZE_MIN <= len(token) <= _TOKEN_SIZE_MAX or not all(0x21 <= byte < 0x7F for byte in token):
        raise OptionError(
            f"{what}: {path!r} holds no token: one line of {_TOKEN_SIZE_MIN} to {_TOKEN_SIZE_MAX} letters, digits "
            "or punctuation, such as `openssl rand -hex 32` prints"
        )
    return token.decode()
