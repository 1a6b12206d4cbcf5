"""Nsqds that follow a script, and certificates for them."""

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trustme

from pyspark_nsq.connector.settings import Address
from pyspark_nsq.proto.frames import RESPONSE, encode_frame

Script = Callable[["Peer"], None]

# What nsqd v1.3.0 answers to IDENTIFY.
FACTS = {
    "max_rdy_count": 2500,
    "version": "1.3.0",
    "max_msg_timeout": 900000,
    "msg_timeout": 60000,
    "tls_v1": False,
    "deflate": False,
    "deflate_level": 6,
    "max_deflate_level": 6,
    "snappy": False,
    "sample_rate": 0,
    "auth_required": False,
    "output_buffer_size": 16384,
    "output_buffer_timeout": 250,
}


class Peer:
    """One connection as an nsqd sees it."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.identified: dict[str, Any] = {}

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def read_line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            line += self.read(1)
        return line[:-1]

    def read_body(self) -> bytes:
        return self.read(int.from_bytes(self.read(4), "big"))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, data: bytes = b"OK", kind: int = RESPONSE) -> None:
        self.send(encode_frame(kind, data))

    def identify(self, **facts: object) -> None:
        """Take the magic and IDENTIFY, and answer with these facts in place of the usual ones."""
        assert self.read(4) == b"  V2"
        assert self.read_line() == b"IDENTIFY"
        self.identified = json.loads(self.read_body())
        self.answer(json.dumps(FACTS | facts).encode())

    def start_tls(self, context: ssl.SSLContext) -> None:
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.answer()

    def read_mpub(self) -> tuple[str, bytes]:
        """A command and its body."""
        line = self.read_line().decode()
        return line, self.read_body()


class ScriptedNsqd:
    """Listens, and lets one script after the other have a connection; the last one has all that follow."""

    def __init__(self, scripts: tuple[Script, ...]) -> None:
        self._scripts = list(scripts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self.connection_count = 0
        self.failures: list[BaseException] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                sock.settimeout(20)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connection_count += 1
                self._sockets.append(sock)
                script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
                threading.Thread(target=self._run, args=(script, sock), daemon=True).start()

    def _run(self, script: Script, sock: socket.socket) -> None:
        peer = Peer(sock)
        try:
            script(peer)
        except (EOFError, OSError):
            pass
        except BaseException as error:
            self.failures.append(error)
        with contextlib.suppress(OSError):
            peer.socket.shutdown(socket.SHUT_RDWR)
        peer.socket.close()

    def close(self) -> None:
        for sock in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


class Certificates:
    """A server's certificate for 127.0.0.1 and a client's, of one authority."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.authority = folder / "ca.pem"
        self.client = folder / "client.pem"
        authority.cert_pem.write_to_path(self.authority)
        authority.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(self.client)
        self._server = authority.issue_cert("127.0.0.1", "nsqd.example.org")
        self._trust = authority

    def server_context(self, *, ask_client: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.configure_cert(context)
        if ask_client:
            context.verify_mode = ssl.CERT_REQUIRED
            self._trust.configure_trust(context)
        return context
