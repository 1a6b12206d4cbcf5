"""Key pairs that sign themselves."""

import ssl
import subprocess
from pathlib import Path

from pyspark_nsq.broker.tls import server_context


class Certificates:
    """Key pairs that sign themselves, made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("server", "client"):
            command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
            paths = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
            subprocess.run([*command, *paths], check=True, capture_output=True)

    def server(self, policy: str = "", root: str = "", minimum: int = ssl.TLSVersion.TLSv1_2) -> ssl.SSLContext:
        root_path = str(self._folder / f"{root}.pem") if root else ""
        return server_context(
            str(self._folder / "server.pem"), str(self._folder / "server.key"), root_path, policy, minimum
        )

    def client(self, certificate: str = "", maximum: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if maximum is not None:
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            context.minimum_version = context.maximum_version = maximum
        if certificate:
            context.load_cert_chain(str(self._folder / f"{certificate}.pem"), str(self._folder / f"{certificate}.key"))
        return context
