"""One HTTP request to an auth server or an nsqlookupd, on gevent, bounded in time and size."""

import http.client
import json
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

import gevent
from gevent import socket as gevent_socket
from gevent import ssl as gevent_ssl

ACCEPT: Final = "application/vnd.nsq; version=1.0"
# No answer that a broker asks for is anywhere near: a list of channels, a set of permissions.
ANSWER_SIZE_MAX: Final = 4 * 1024 * 1024


class HttpClientError(Exception):
    """No usable answer came."""


@dataclass(frozen=True, slots=True)
class HttpClient:
    connect_timeout: float
    request_timeout: float
    ca_file: str = ""

    def get(self, url: str) -> bytes:
        """The body of a 200 answer. A server that answers 403 and names its https port is asked there."""
        return self._ask("GET", url, None, {})

    def post_json(self, url: str, body: bytes) -> bytes:
        return self._ask("POST", url, body, {"Content-Type": "application/json"})

    def _ask(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        status, answer = self._bounded(method, url, body, headers)
        if status == 403 and url.startswith("http://") and (port := _https_port(answer)):
            parts = urlsplit(url)
            url = urlunsplit(parts._replace(scheme="https", netloc=_host_and_port(parts.hostname or "", port)))
            status, answer = self._bounded(method, url, body, headers)
        if status != 200:
            raise HttpClientError(f"got response {status}")  # no more of it: it may repeat the secret
        return answer

    def _bounded(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        try:
            with gevent.Timeout(self.connect_timeout + self.request_timeout):
                return self._request(method, url, body, headers)
        except gevent.Timeout:
            raise HttpClientError("no answer in time") from None
        except OSError as error:
            raise HttpClientError(str(error) or type(error).__name__) from error
        except (http.client.HTTPException, ValueError) as error:
            # Their texts quote what was sent or what came.
            raise HttpClientError(type(error).__name__) from None

    def _request(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise HttpClientError("not a http or https URL with a host")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        connection = http.client.HTTPConnection(parts.hostname, port)
        connection.sock = self._connect(parts.hostname, port, tls=parts.scheme == "https")
        try:
            target = urlunsplit(("", "", parts.path or "/", parts.query, ""))
            connection.request(method, target, body, {"Accept": ACCEPT, **_credentials(parts), **headers})
            response = connection.getresponse()
            answer = response.read(ANSWER_SIZE_MAX + 1)
            if len(answer) > ANSWER_SIZE_MAX:
                raise HttpClientError(f"the answer is larger than {ANSWER_SIZE_MAX} bytes")
            return response.status, answer
        finally:
            connection.close()

    def _connect(self, host: str, port: int, *, tls: bool) -> gevent_socket.socket:
        plain = gevent_socket.create_connection((host, port), timeout=self.connect_timeout)
        plain.settimeout(self.request_timeout)
        if not tls:
            return plain
        context = gevent_ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Python leaves it to OpenSSL's own configuration where a distribution builds it so.
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.ca_file:
            context.load_verify_locations(self.ca_file)
        else:
            context.load_default_certs()
        return context.wrap_socket(plain, server_hostname=host)


def _credentials(parts: SplitResult) -> dict[str, str]:
    """Of a URL's ``user:password@``, sent as Go's clients do."""
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _https_port(answer: bytes) -> int:
    try:
        port = json.loads(answer)["https_port"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0
    return port if isinstance(port, int) and 0 < port < 65536 else 0


def _host_and_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
