"""Certificates of one authority, an auth server that knows one secret, and a search for it."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, urlsplit

import trustme

_PROGRAMS = Path(__file__).parents[1]


class Certificates:
    """Files: the authority's certificate, a client's, and those of an nsqd at 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        authority = trustme.CA()
        self.authority, self.client = folder / "ca.pem", folder / "client.pem"
        self._server_key, self._server = folder / "server-key.pem", folder / "server.pem"
        authority.cert_pem.write_to_path(self.authority)
        authority.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(self.client)
        server = authority.issue_cert("127.0.0.1")
        server.private_key_pem.write_to_path(self._server_key)
        server.cert_chain_pems[0].write_to_path(self._server)

    def nsqd_flags(self, *, ask_client: bool, required: bool = True) -> list[str]:
        """For an nsqd with HTTP both in clear and under TLS; where it is required there is nothing but TLS over TCP."""
        flags = [f"-tls-cert={self._server}", f"-tls-key={self._server_key}", "-https-address=127.0.0.1:0"]
        if required:
            flags.append("-tls-required=tcp-https")
        if ask_client:
            flags += [f"-tls-root-ca-file={self.authority}", "-tls-client-auth-policy=require-verify"]
        return flags


class AuthServer:
    """Allows everything with these topics to whoever knows the secret. Use it in ``with``."""

    def __init__(self, secret: str, topic: str = ".*") -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_known = parse_qs(urlsplit(self.path).query).get("secret") == [secret]
                grants = [{"topic": topic, "channels": [".*"], "permissions": ["subscribe", "publish"]}]
                answer = {"ttl": 3600, "identity": "test", "identity_url": "", "authorizations": grants}
                content = json.dumps(answer if is_known else {}).encode()
                self.send_response(200 if is_known else 403)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def shown_without(secret: str, program: str, checkpoint: Path, row_count: int, options: dict[str, str]) -> str:
    """All that a program with such options prints. Neither it nor what Spark keeps has the secret in it."""
    ran = subprocess.run(
        [sys.executable, _PROGRAMS / program, checkpoint, str(row_count)],
        input=json.dumps(options),
        env=os.environ | {"PYTHONPATH": str(_PROGRAMS)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    shown = ran.stdout + ran.stderr
    # Spark's log is long, and says much after the error of a program.
    assert ran.returncode == 0, "".join(shown.rpartition("Traceback")[1:])[:4000] or shown[-4000:]
    assert secret not in shown
    for file in checkpoint.rglob("*"):
        assert file.is_dir() or secret.encode() not in file.read_bytes(), file
    return shown
