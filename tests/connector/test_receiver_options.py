"""Where receivers are: what users write, what contradicts itself, and what would tell a secret."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import trustme

from pyspark_nsq.connector.errors import OptionError
from pyspark_nsq.connector.options import parse_source_options
from pyspark_nsq.connector.receiver_options import ReceiverOptions, read_token
from pyspark_nsq.connector.receiver_tls import ReceiverTls
from pyspark_nsq.connector.settings import Address

SOURCE = {"topic": "t", "channel": "c", "nsqdTcpAddresses": "127.0.0.1:4150"}
ELSEWHERE = {"receivers": "10.1.0.7:7000", "receiverTokenFile": "{folder}/token"}
EXECUTORS = {"receivers": "executors"}
TLS = {
    "receiverTls": "true",
    "receiverTlsCaFile": "{folder}/ca.pem",
    "receiverTlsCertFile": "{folder}/cert.pem",
    "receiverTlsKeyFile": "{folder}/key.pem",
}
PASSWORD = {"tls": "true", "tlsCertFile": "{folder}/cert.pem", "tlsKeyFile": "{folder}/key.pem", "tlsKeyPassword": "p"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every file that the options name."""
    made = tmp_path_factory.mktemp("options")
    authority = trustme.CA()
    pair = authority.issue_cert("receivers.example.org")
    authority.cert_pem.write_to_path(made / "ca.pem")
    pair.cert_chain_pems[0].write_to_path(made / "cert.pem")
    pair.private_key_pem.write_to_path(made / "key.pem")
    (made / "token").write_text("0123456789abcdef\n")
    (made / "short").write_text("0123456789")
    (made / "two-lines").write_text("0123456789abcdef\n0123456789abcdef\n")
    (made / "no-pem").write_text("nothing of the kind")
    return made


def parsed(folder: Path, options: Mapping[str, str]) -> ReceiverOptions:
    texts = {name: text.format(folder=folder) for name, text in options.items()}
    return parse_source_options(SOURCE | texts).receivers


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"receivers": "10.1.0.7:7000"}, "receiverTokenFile: it is not set"),
        ({"receiverTokenFile": "{folder}/token"}, "receiverTokenFile: only receivers at addresses"),
        (EXECUTORS | {"receiverTokenFile": "{folder}/token"}, "receiverTokenFile: only receivers at addresses"),
        (ELSEWHERE | {"receiverTokenFile": "{folder}/nowhere"}, "receiverTokenFile: .* cannot be read"),
        (ELSEWHERE | {"receiverTokenFile": "{folder}/short"}, "receiverTokenFile: .* holds no token"),
        (ELSEWHERE | {"receiverTokenFile": "{folder}/two-lines"}, "receiverTokenFile: .* holds no token"),
        # Secrets stay on the driver's host, or go under TLS.
        (ELSEWHERE | {"authSecret": "s"}, "authSecret: it would go to the receivers in clear"),
        (EXECUTORS | {"authSecret": "s"}, "authSecret: it would go to the receivers in clear"),
        (EXECUTORS | PASSWORD, "tlsKeyPassword: it would go to the receivers in clear"),
        (TLS | {"receiverTlsCaFile": ""}, "receiverTlsCaFile: it is not set, and receiverTls needs it"),
        (TLS | {"receiverTlsCertFile": ""}, "receiverTlsCertFile: it is not set, and receiverTls needs it"),
        (TLS | {"receiverTlsKeyFile": ""}, "receiverTlsKeyFile: it is not set, and receiverTls needs it"),
        (TLS | {"receiverTlsCaFile": "{folder}/no-pem"}, "receiverTlsCaFile: .* cannot be used"),
        (TLS | {"receiverTlsCertFile": "{folder}/nowhere"}, "receiverTlsCertFile: .* cannot be used"),
        (TLS | {"receiverTlsKeyFile": "{folder}/no-pem"}, "receiverTlsCertFile: .* cannot be used"),
        (TLS | {"receiverTls": "false"}, "receiverTlsCaFile: it is set, but receiverTls is not true"),
        ({"receiverTlsServerName": "n"}, "receiverTlsServerName: it is set, but receiverTls is not true"),
        ({"receivers": "0"}, "receivers: '0' is not a whole number from 1 to 64, executors, or host:port"),
        ({"receivers": "65"}, "receivers: '65' is not"),
        ({"receivers": "driver"}, "receivers: 'driver' is not"),
        ({"receivers": "10.1.0.7:0"}, "receivers: '10.1.0.7:0' is not"),
        ({"receiverPorts": "0"}, "receiverPorts: '0' is not a port, or a range of ports"),
        ({"receiverPorts": "7000-6999"}, "receiverPorts: '7000-6999' is not"),
        ({"receiverPorts": "7000-65536"}, "receiverPorts: '7000-65536' is not"),
        ({"receiverPorts": "7000,7001"}, "receiverPorts: '7000,7001' is not"),
        (
            {"receivers": "4", "receiverPorts": "7000"},
            "receiverPorts: its ports, 1, are fewer than receivers, 4, .* Name 4 or more, as in 7000-7003",
        ),
        (
            {"receivers": "9", "receiverPorts": "65530-65535"},
            "receiverPorts: its ports, 6, are fewer than receivers, 9",
        ),
        ({"receiverHost": "10.1.0.7/16"}, "receiverHost: '10.1.0.7/16' is not an address"),
        ({"receiverHost": "a b"}, "receiverHost: 'a b' is not an address"),
    ],
)
def test_what_contradicts_itself_is_refused(folder: Path, options: Mapping[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=f"^option {words}"):
        parsed(folder, {name: text for name, text in options.items() if text})


@pytest.mark.parametrize(
    "options",
    [
        # A pipe that nobody else has, files of each host's own, TLS.
        {"authSecret": "s"},
        PASSWORD,
        EXECUTORS | {"authSecretFile": "{folder}/token"},
        EXECUTORS | TLS | {"authSecret": "s"},
        EXECUTORS | TLS | PASSWORD,
        ELSEWHERE | TLS | {"authSecret": "s"},
    ],
)
def test_secrets_go_where_nobody_reads_them(folder: Path, options: Mapping[str, str]) -> None:
    assert parsed(folder, options)


def test_where_receivers_are(folder: Path) -> None:
    plain = parsed(folder, {})
    assert (plain.count, plain.addresses, plain.on_executors, plain.tls) == (1, (), False, None)
    assert (plain.host, plain.ports) == (None, range(1))
    assert parsed(folder, {"receivers": "64"}).count == 64
    assert parsed(folder, {"receivers": "Executors"}).on_executors
    elsewhere = parsed(folder, ELSEWHERE | {"receivers": "h:1, [::1]:2"})
    assert (elsewhere.count, elsewhere.on_executors) == (0, False)
    assert elsewhere.addresses == (Address("h", 1), Address("::1", 2))
    assert read_token(elsewhere.token_file or "", "") == "0123456789abcdef"
    with_tls = parsed(folder, TLS | {"receiverTlsServerName": "n"}).tls
    assert with_tls == ReceiverTls(*(str(folder / f"{name}.pem") for name in ("ca", "cert", "key")), "n")


@pytest.mark.parametrize(
    ("text", "ports"), [("7000", range(7000, 7001)), ("1024-65535", range(1024, 65536)), ("1 - 2", range(1, 3))]
)
def test_ports(folder: Path, text: str, ports: range) -> None:
    assert parsed(folder, {"receiverPorts": text, "receivers": str(min(64, len(ports)))}).ports == ports
    assert parsed(folder, {"receiverPorts": text} | EXECUTORS).ports == ports


@pytest.mark.parametrize("text", ["10.1.0.7", "driver-1.example.org", "::1", "10.0.0.0/8", "fd00::/8"])
def test_hosts(folder: Path, text: str) -> None:
    assert parsed(folder, {"receiverHost": text}).host == text
