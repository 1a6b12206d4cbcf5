"""gRPC connections between coordinator, receivers and tasks, in clear or under TLS."""

import hmac
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc

from pyspark_nsq.connector.errors import NsqError
from pyspark_nsq.connector.receiver_tls import ReceiverTls, read_file
from pyspark_nsq.connector.settings import Address

TOKEN_KEY: Final = "authorization"  # noqa: S105 (the key, not the token)

# So long the processes of a query that was just stopped may keep the ports which the next one is to have: as long as it
# takes them to give everything back.
PORTS_S: Final = 6.0
_RETRY_S: Final = 0.2
_PING_MS: Final = 5000
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    # Who was away may be back in a moment.
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # A host that was cut off does not say so: a call to it has to end all the same.
    ("grpc.keepalive_time_ms", _PING_MS),
    ("grpc.keepalive_timeout_ms", _PING_MS),
    # That holds where packets are not acknowledged. Somebody between may do that for a peer that is gone: what does not
    # come then is the answer to a ping, for which gRPC waits a minute, longer than tasks try to reach a receiver.
    ("grpc.http2.ping_timeout_ms", 2 * _PING_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # Loopback and cluster addresses; a proxy of the environment is for neither.
    ("grpc.enable_http_proxy", 0),
)


def token_in(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The token that a call brings; empty without one."""
    found = next((value for key, value in metadata if key == TOKEN_KEY), "")
    return found if isinstance(found, str) else ""


class Guard(grpc.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses every call without the query's token."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._refuse = grpc.unary_unary_rpc_method_handler(_refuse)

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        if hmac.compare_digest(token_in(details.invocation_metadata).encode(), self._token):
            return continuation(details)
        return self._refuse


def _refuse(_request: bytes, context: grpc.ServicerContext) -> None:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token of this query is missing or wrong")


class ListenError(NsqError):
    """No address to listen at."""


def open_channel(address: str, tls: ReceiverTls | None) -> grpc.Channel:
    """A connection to be closed, or used in ``with``. Unix sockets are in private folders, and need no TLS."""
    options: list[tuple[str, Any]] = list(_CHANNEL_OPTIONS)
    if tls is None or address.startswith("unix:"):
        return grpc.insecure_channel(address, options)
    if tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(read_file(tls.ca_file)), options)


def call_once(
    make_stub: Callable[[grpc.Channel], Any],
    address: str,
    tls: ReceiverTls | None,
    token: str,
    method: str,
    request: Any,
    timeout_s: float,
) -> Any:
    """The answer to a question, over a connection for it alone."""
    with open_channel(address, tls) as channel:
        return getattr(make_stub(channel), method)(request, timeout=timeout_s, metadata=[(TOKEN_KEY, token)])


def make_server(threads_max: int, interceptors: Iterable[Any] = ()) -> grpc.Server:
    return grpc.server(
        ThreadPoolExecutor(threads_max, "serve"),
        interceptors=list(interceptors),
        options=[
            ("grpc.max_send_message_length", -1),
            # Two processes on one port would share its calls.
            ("grpc.so_reuseport", 0),
            # Clients may ask whether the way to it is open, as often as they do.
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_MS // 2),
            # Who connects and says nothing, or asks nothing, does not stay.
            ("grpc.server_handshake_timeout_ms", 10_000),
            ("grpc.max_connection_idle_ms", 300_000),
        ],
    )


def listen(
    server: grpc.Server,
    host: str,
    ports: Iterable[int],
    tls: ReceiverTls | None,
    named: str = "options receiverPorts and receiverHost",
    patience_s: float = 0.0,
) -> int:
    """Have the server listen on the first of these ports that is free, and say which; 0 is any.

    ``ListenError`` where none is within so long; it names what has said so.
    """
    addresses = [str(Address(host, port)) for port in ports]
    deadline = time.monotonic() + patience_s
    while True:
        for address in addresses:
            if bound := _listen(server, address, tls):
                return bound
        if time.monotonic() >= deadline:
            break
        time.sleep(_RETRY_S)
    others = f", nor at the {len(addresses) - 1} ports after it" if len(addresses) > 1 else ""
    raise ListenError(
        f"{named}: cannot listen at {addresses[0]}{others}: others do, or the address is not one of this host"
    )


def _listen(server: grpc.Server, address: str, tls: ReceiverTls | None) -> int:
    """The port, or 0 where it cannot be had."""
    try:
        if tls is None:
            return server.add_insecure_port(address)
        assert tls.cert_file
        assert tls.key_file
        pair = (read_file(tls.key_file), read_file(tls.cert_file))
        return server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    except RuntimeError:
        return 0
