"""Certificates for one run of the tests."""

import ssl
from pathlib import Path

import trustme


class Certificates:
    """A broker's certificate, a client's of the same authority, and one of an authority nobody knows."""

    def __init__(self, folder: Path) -> None:
        authority, stranger = trustme.CA(), trustme.CA()
        self.root = folder / "root.pem"
        self.key = folder / "server.key"
        self.cert = folder / "server.pem"
        authority.cert_pem.write_to_path(self.root)
        server = authority.issue_cert("localhost", "127.0.0.1")
        server.private_key_pem.write_to_path(self.key)
        server.cert_chain_pems[0].write_to_path(self.cert)
        self._client = authority.issue_cert("client@example.org", common_name="client")
        self._foreign = stranger.issue_cert("stranger@example.org", common_name="stranger")

    @property
    def flags(self) -> list[str]:
        """What nsqd needs to know."""
        return [f"--tls-cert={self.cert}", f"--tls-key={self.key}", f"--tls-root-ca-file={self.root}"]

    def context(self, client: str = "", *, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2) -> ssl.SSLContext:
        """A client's side: without a certificate, with a "good" one or with a "foreign" one."""
        context = ssl.create_default_context(cafile=str(self.root))
        context.maximum_version = version
        if client:
            (self._client if client == "good" else self._foreign).configure_cert(context)
        return context
