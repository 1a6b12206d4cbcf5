"""Certificates and secrets: checked with the options, read where a connection is made."""

import ssl
from pathlib import Path
from typing import Final

from pyspark_nsq.connector.errors import OptionError
from pyspark_nsq.connector.settings import Security

# More than this is some other file.
_SECRET_FILE_SIZE_MAX: Final = 64 * 1024


def check_security(security: Security, has_https: bool) -> None:
    """Raise ``OptionError`` for what contradicts itself, or names a file that cannot be used."""
    _check_consistent(security, has_https)
    if security.tls or has_https:
        tls_context(security)
    auth_secret(security)


def _check_consistent(security: Security, has_https: bool) -> None:
    if security.auth_secret and security.auth_secret_file:
        raise OptionError("options authSecret and authSecretFile: both are set, one of them gives the secret")
    if security.tls_key_file and not security.tls_cert_file:
        raise OptionError("option tlsKeyFile: it is the key of tlsCertFile, which is not set")
    if security.tls_key_password and not security.tls_cert_file:
        raise OptionError("option tlsKeyPassword: it opens the key of tlsCertFile, which is not set")
    if security.tls_insecure_skip_verify and (security.tls_ca_file or security.tls_server_name):
        raise OptionError("option tlsInsecureSkipVerify: with it tlsCaFile and tlsServerName have no meaning")
    used = {
        "tlsCaFile": security.tls_ca_file,
        "tlsCertFile": security.tls_cert_file,
        "tlsServerName": security.tls_server_name,
        "tlsInsecureSkipVerify": security.tls_insecure_skip_verify,
    }
    without_use = [name for name, value in used.items() if value]
    if without_use and not security.tls and not has_https:
        raise OptionError(f"option {without_use[0]}: it is set, but TLS is not used; set tls to true")


def tls_context(security: Security) -> ssl.SSLContext:
    """How a client of this security speaks TLS."""
    try:
        context = ssl.create_default_context(cafile=security.tls_ca_file)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"option tlsCaFile: {security.tls_ca_file!r} cannot be used: {error}") from error
    # Python leaves it to OpenSSL's own configuration where a distribution builds it so.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if security.tls_insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if security.tls_cert_file:
        _load_certificate(context, security, security.tls_cert_file)
    return context


def _load_certificate(context: ssl.SSLContext, security: Security, cert_file: str) -> None:
    # Without a password OpenSSL would ask for one on the terminal.
    password = security.tls_key_password.reveal if security.tls_key_password else ""
    try:
        context.load_cert_chain(cert_file, security.tls_key_file, password)
    except (OSError, ssl.SSLError) as error:
        files = " with tlsKeyFile ".join(repr(name) for name in (cert_file, security.tls_key_file) if name)
        hint = "; is tlsKeyPassword right?" if isinstance(error, ssl.SSLError) else ""
        raise OptionError(f"option tlsCertFile: {files} cannot be used: {error}{hint}") from error


def auth_secret(security: Security) -> bytes | None:
    """The secret for AUTH, read anew where a file holds it."""
    if security.auth_secret:
        return security.auth_secret.reveal.encode()
    if not security.auth_secret_file:
        return None
    try:
        with Path(security.auth_secret_file).open("rb") as file:
            content = file.read(_SECRET_FILE_SIZE_MAX + 1)
    except OSError as error:
        raise OptionError(f"option authSecretFile: {security.auth_secret_file!r} cannot be read: {error}") from error
    secret = content.rstrip(b"\r\n")
    if not secret or len(content) > _SECRET_FILE_SIZE_MAX:
        raise OptionError(
            f"option authSecretFile: {security.auth_secret_file!r} has {len(content)} bytes, "
            f"a secret has 1 to {_SECRET_FILE_SIZE_MAX}"
        )
    return secret
