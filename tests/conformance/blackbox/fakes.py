"""Peers of a broker, played by the test: an auth server, a directory, a statsd, and HTTP answers as told."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from blackbox.wire import PATIENCE_SECONDS, wait_until

HttpAnswer = tuple[int, bytes]


class Asked(NamedTuple):
    """One request that a fake HTTP server got."""

    target: str
    headers: dict[str, str]


class FakeHttp:
    """An HTTP server that answers as the test says, and remembers what it was asked."""

    def __init__(self, answer: Callable[[str], HttpAnswer]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.asked.append(Asked(self.path, {name.lower(): value for name, value in self.headers.items()}))
                status, body = fake.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class LookupdCommand(NamedTuple):
    """What a broker told its directory: the line, the body of IDENTIFY, when (monotonic), on which connection."""

    line: str
    body: bytes
    at: float
    connection: int


class FakeLookupd:
    """The TCP side of a directory, which writes down every command and answers OK, and optionally its HTTP side."""

    def __init__(self, http_port: int = 0, identify_answer: bytes | None = None) -> None:
        self.commands: list[LookupdCommand] = []
        self.magic: list[bytes] = []
        self.connections: list[socket.socket] = []
        self._identify_answer = identify_answer
        self._http_port = http_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        self._thread.join(PATIENCE_SECONDS)

    def drop(self) -> None:
        """End every connection."""
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def lines(self, connection: int | None = None) -> list[str]:
        """All command lines so far."""
        return [command.line for command in self.commands if connection in {None, command.connection}]

    def await_lines(self, *lines: str, patience: float = PATIENCE_SECONDS) -> None:
        """Until each line came at least once."""
        wait_until(lambda: set(lines) <= set(self.lines()), patience)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection, len(self.connections) - 1), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with connection, connection.makefile("rb") as stream:
            try:
                self.magic.append(stream.read(4))
                while line := stream.readline():
                    self._command(connection, stream.read, line, number)
            except (OSError, ValueError):
                return

    def _command(self, connection: socket.socket, read: Callable[[int], bytes], line: bytes, number: int) -> None:
        text, body, answer = line.decode().rstrip("\n"), b"", b"OK"
        if text == "IDENTIFY":
            body = read(struct.unpack(">i", read(4))[0])
            answer = self._identify_answer or json.dumps(self._self_description()).encode()
        self.commands.append(LookupdCommand(text, body, time.monotonic(), number))
        connection.sendall(struct.pack(">i", len(answer)) + answer)

    def _self_description(self) -> dict[str, Any]:
        return {
            "broadcast_address": "127.0.0.1",
            "hostname": "fake",
            "http_port": self._http_port,
            "tcp_port": self._listener.getsockname()[1],
            "version": "1.3.0",
        }


class FakeStatsd:
    """A UDP socket that collects packets."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # An empty packet wakes the thread, which ends on it.
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join(PATIENCE_SECONDS)
        self._socket.close()

    @property
    def lines(self) -> list[str]:
        """Every line so far."""
        return b"".join(self.packets).decode().splitlines()

    def _collect(self) -> None:
        while packet := self._socket.recv(65536):
            self.packets.append(packet)
