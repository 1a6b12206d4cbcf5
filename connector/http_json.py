"""Questions over HTTP whose answers are JSON, asked of several at once, every answer bounded in time and size."""

import http.client
import io
import json
import queue
import socket
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark_nsq.connector.errors import DiscoveryError, OptionError
from pyspark_nsq.connector.security import auth_secret, tls_context
from pyspark_nsq.connector.settings import HttpAddress, Security

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer as Buffer

# A cluster of 1,000 nsqds with 100 topics each answers /nodes with about 10 MB.
ANSWER_SIZE_MAX: Final = 64 * 2**20
_PIECE_SIZE: Final = 64 * 1024
_HEADERS: Final = {"Accept": "application/vnd.nsq; version=1.0", "Connection": "close"}

Question = tuple[HttpAddress, str]
_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


def fetch_json(
    address: HttpAddress, path: str, timeout_s: float, security: Security, *, with_secret: bool = False
) -> Any:
    """The answer to a GET, None where there is no such thing (404); ``DiscoveryError`` for any failure.

    ``with_secret`` shows the secret for AUTH: to nsqds, which may demand it, and not in clear where TLS is required.
    """
    sock = None
    try:
        headers = _HEADERS | _authorization(security) if with_secret and address.tls >= security.tls else _HEADERS
        connection = _connection(address, timeout_s, security)
        deadline = time.monotonic() + timeout_s
        connection.connect()
        sock = connection.sock
        connection.sock = _PatientSocket(sock, deadline)
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        content = _read(response)
    except (OSError, http.client.HTTPException, OptionError, UnicodeError) as error:
        raise DiscoveryError(address, f"GET {path} failed: {str(error) or type(error).__name__}") from error
    finally:
        if sock:
            sock.close()
    if response.status == http.HTTPStatus.NOT_FOUND:
        return None
    if response.status != http.HTTPStatus.OK:
        raise DiscoveryError(address, f"GET {path} was answered with status {response.status}: {content[:100]!r}")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DiscoveryError(address, f"the answer to GET {path} is not JSON: {content[:60]!r}") from error


def _authorization(security: Security) -> dict[str, str]:
    """The secret as the password of nobody, which holds any bytes."""
    secret = auth_secret(security)
    return {"Authorization": f"Basic {b64encode(b':' + secret).decode()}"} if secret else {}


def _connection(address: HttpAddress, timeout_s: float, security: Security) -> http.client.HTTPConnection:
    host, port = address.address
    if address.tls:
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls_context(security))
    return http.client.HTTPConnection(host, port, timeout=timeout_s)


class _PatientSocket:
    """A socket until a deadline: its own time-out would start anew with each byte that a slow peer sends."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._socket = sock
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self._socket.settimeout(self._left())
        self._socket.sendall(data)

    def recv_into(self, buffer: "Buffer") -> int:
        try:
            self._socket.settimeout(self._left())
            return self._socket.recv_into(buffer)
        except TimeoutError:
            raise TimeoutError("the answer takes too long") from None

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_SocketReader(self))

    def close(self) -> None:
        """The file is still to be read: whoever opened the socket closes it."""


class _SocketReader(io.RawIOBase):
    def __init__(self, sock: _PatientSocket) -> None:
        self._socket = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "Buffer") -> int:
        return self._socket.recv_into(buffer)


def _read(response: http.client.HTTPResponse) -> bytes:
    content = bytearray()
    while piece := response.read1(_PIECE_SIZE):
        content += piece
        if len(content) > ANSWER_SIZE_MAX:
            raise OSError(f"the answer is larger than {ANSWER_SIZE_MAX} bytes")
    return bytes(content)


def fetch_all(
    questions: Iterable[Question], timeout_s: float, security: Security, *, with_secret: bool = False
) -> dict[Question, Any]:
    """The answers, or in place of an answer the ``DiscoveryError`` that came of it, after ``timeout_s`` at most."""
    waiting = list(dict.fromkeys(questions))

    def ask(question: Question) -> Any:
        try:
            return fetch_json(*question, timeout_s, security, with_secret=with_secret)
        except DiscoveryError as error:
            return error

    late = {question: DiscoveryError(question[0], f"no answer within {timeout_s:g} s") for question in waiting}
    return late | ask_all(waiting, ask, timeout_s, len(waiting))


def ask_all(
    waiting: Collection[_Asked], ask: Callable[[_Asked], _Answer], timeout_s: float, at_once_max: int
) -> dict[_Asked, _Answer]:
    """The answers of those that answer in time. One that is slow or gone does not hold up the others.

    ``ask`` is to end by itself, and not to raise: its thread is not waited for.
    """
    answers: queue.SimpleQueue[tuple[_Asked, _Answer]] = queue.SimpleQueue()
    left = deque(waiting)
    deadline = time.monotonic() + timeout_s

    def work() -> None:
        with suppress(IndexError):
            while time.monotonic() < deadline:
                asked = left.popleft()
                answers.put((asked, ask(asked)))

    for number in range(min(len(waiting), at_once_max)):
        # A daemon, as the look-up of a host's name can take longer than any time-out of ours.
        threading.Thread(target=work, daemon=True, name=f"nsq-ask-{number}").start()
    found: dict[_Asked, _Answer] = {}
    while len(found) < len(waiting):
        try:
            asked, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        found[asked] = answer
    return found
