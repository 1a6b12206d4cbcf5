"""How coordinator, receivers and Spark's tasks speak with each other where that is to be protected: files, by name.

Every process reads its own, so they have to be at the same path on every host. Nothing heavy is imported: the options
are checked in processes that do nothing else.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from pyspark_nsq.connector.errors import OptionError


@dataclass(frozen=True)
class ReceiverTls:
    """A client needs the authorities, a server its certificate and key."""

    ca_file: str
    cert_file: str | None = None
    key_file: str | None = None
    # What certificates have to bear, where it is not the address.
    server_name: str | None = None


def check_receiver_tls(tls: ReceiverTls) -> None:
    """Raise ``OptionError`` for a file that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"option receiverTlsCaFile: {tls.ca_file!r} cannot be used: {error}") from error
    if tls.cert_file:
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(tls.cert_file, tls.key_file, "")
        except (OSError, ssl.SSLError) as error:
            raise OptionError(
                f"option receiverTlsCertFile: {tls.cert_file!r} with receiverTlsKeyFile {tls.key_file!r} "
                f"cannot be used: {error}"
            ) from error


def read_file(path: str) -> bytes:
    """A file with certificates or a key."""
    return Path(path).read_bytes()
