"""Each option of the source is read, changes what is done, and gets to those who act on it."""

from pathlib import Path

import pytest
import trustme

from pyspark_nsq.connector import crews
from pyspark_nsq.connector.beginning import Beginning, from_message, to_message
from pyspark_nsq.connector.coordinator import Coordinator
from pyspark_nsq.connector.errors import OptionError
from pyspark_nsq.connector.handshake import identify_fields
from pyspark_nsq.connector.option_table import Side, options_of
from pyspark_nsq.connector.options import SourceOptions, parse_source_options

Texts = dict[str, str | None]

SOURCE: Texts = {"topic": "events", "channel": "spark", "nsqdTcpAddresses": "a:4150,b:4150"}
RECEIVER_TLS: Texts = {
    "receiverTls": "true",
    "receiverTlsCaFile": "ca.pem",
    "receiverTlsCertFile": "cert.pem",
    "receiverTlsKeyFile": "key.pem",
}
ELSEWHERE: Texts = {"receivers": "h:7000", "receiverTokenFile": "token"}
# For each option a value that is not its default, and what else has to be set with it; None unsets.
CHANGES: dict[str, tuple[str, Texts]] = {
    "topic": ("others", {}),
    "topicPattern": ("ev.*", {"topic": None, "lookupdHttpAddresses": "h:4161"}),
    "channel": ("other", {}),
    "lookupdHttpAddresses": ("h:4161", {}),
    "nsqdTcpAddresses": ("c:4150,d:4150", {}),
    "nsqdHttpAddresses": ("a:4151,b:4151", {}),
    "lookupdPollInterval": ("10s", {}),
    "lookupdPollJitter": ("0.1", {}),
    "numPartitions": ("5", {}),
    "receivers": ("2", {}),
    "receiverHost": ("10.0.0.1", {}),
    "receiverPorts": ("7000-7010", {}),
    "receiverTokenFile": ("other-token", ELSEWHERE),
    "receiverLease": ("5s", {}),
    "receiverTls": ("true", RECEIVER_TLS),
    "receiverTlsCaFile": ("client.pem", RECEIVER_TLS),
    "receiverTlsCertFile": ("client.pem", RECEIVER_TLS),
    "receiverTlsKeyFile": ("client.pem", RECEIVER_TLS),
    "receiverTlsServerName": ("receiver.example", RECEIVER_TLS),
    "maxInFlight": ("70000", {}),
    "maxInFlightBytes": ("64m", {}),
    "maxMessagesPerTrigger": ("500", {}),
    "minMessagesPerTrigger": ("500", {}),
    "maxTriggerDelay": ("1m", {}),
    "msgTimeout": ("30s", {}),
    "maxAttempts": ("5", {}),
    "deadLetterTopic": ("dead", {"maxAttempts": "5"}),
    "sampleRate": ("10", {}),
    "invalidUtf8": ("null", {}),
    "connectTimeout": ("2s", {}),
    "retryDelay": ("1s", {}),
    "retryDelayMax": ("20s", {}),
    "heartbeatInterval": ("5s", {}),
    "clientId": ("me", {}),
    "userAgent": ("mine/1", {}),
    "tls": ("true", {}),
    "tlsCaFile": ("ca.pem", {"tls": "true"}),
    "tlsCertFile": ("client.pem", {"tls": "true"}),
    "tlsKeyFile": ("key.pem", {"tls": "true", "tlsCertFile": "cert.pem"}),
    "tlsKeyPassword": ("secret", {"tls": "true", "tlsCertFile": "cert.pem", "tlsKeyFile": "key.pem"}),
    "tlsServerName": ("nsqd.example", {"tls": "true"}),
    "tlsInsecureSkipVerify": ("true", {"tls": "true"}),
    "snappy": ("true", {}),
    "deflate": ("true", {}),
    "deflateLevel": ("9", {}),
    "authSecret": ("sesame", {}),
    "authSecretFile": ("secret", {}),
}
# What replaces, in the comparison, those needed that need the option themselves.
INSTEAD: dict[str, Texts] = {
    "topicPattern": {"topic": "events"},
    "receiverTls": dict.fromkeys(RECEIVER_TLS),
    "receiverTlsKeyFile": {"receiverTlsCertFile": "cert.pem"},
    "tlsKeyFile": {"tlsCertFile": "client.pem"},
}
# What nsqd is told of them.
IDENTIFIED = {
    "msgTimeout": ("msg_timeout", 30_000),
    "sampleRate": ("sample_rate", 10),
    "heartbeatInterval": ("heartbeat_interval", 5000),
    "clientId": ("client_id", "me"),
    "userAgent": ("user_agent", "mine/1"),
    "tls": ("tls_v1", True),
    "snappy": ("snappy", True),
    "deflate": ("deflate", True),
    "deflateLevel": ("deflate_level", 9),
}
# What a receiver is told when it begins.
BEGUN = {
    *IDENTIFIED,
    *("channel", "maxInFlightBytes", "maxAttempts", "deadLetterTopic", "connectTimeout", "retryDelay", "retryDelayMax"),
    *("tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsKeyPassword", "tlsServerName", "tlsInsecureSkipVerify"),
    *("authSecret", "authSecretFile", "receiverLease"),
    # Where lookupds may know that a topic was deleted, failed connections are tried again later.
    "lookupdHttpAddresses",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the files that options name."""
    folder = tmp_path_factory.mktemp("files")
    authority = trustme.CA()
    client = authority.issue_cert("client@example.org")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    client.private_key_and_cert_chain_pem.write_to_path(folder / "client.pem")
    client.private_key_pem.write_to_path(folder / "key.pem")
    client.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    for name in ("secret", "token", "other-token"):
        (folder / name).write_text(f"{name}: sesame, sesame\n".replace(" ", ""))
    return folder


@pytest.fixture(autouse=True)
def in_that_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative names are short."""
    monkeypatch.chdir(folder)


def parse(*texts: Texts) -> SourceOptions:
    merged: Texts = {}
    for each in texts:
        merged |= each
    return parse_source_options({name: text for name, text in merged.items() if text is not None})


def without_and_with(name: str) -> tuple[SourceOptions, SourceOptions]:
    value, needed = CHANGES[name]
    return parse(SOURCE, needed, INSTEAD.get(name, {})), parse(SOURCE, needed, {name: value})


def beginning(options: SourceOptions, monkeypatch: pytest.MonkeyPatch) -> Beginning:
    """What the receivers of a query are told, but for what is made up anew for each."""
    monkeypatch.setattr(crews, "ReceiverProcess", lambda *_: None)
    monkeypatch.setattr(Coordinator, "_count", lambda _: None)
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    crew = Coordinator(options, available_now=False)._crew
    return crew._query  # type: ignore[attr-defined,no-any-return]


def test_no_option_was_forgotten_here() -> None:
    assert list(CHANGES) == [option.name for option in options_of(Side.SOURCE)]


@pytest.mark.parametrize("name", CHANGES)
def test_each_option_changes_what_is_done(name: str) -> None:
    before, after = without_and_with(name)
    assert before != after


@pytest.mark.parametrize("name", IDENTIFIED)
def test_each_option_that_is_nsqds_affair_is_told_to_it(name: str) -> None:
    before, after = without_and_with(name)
    field, value = IDENTIFIED[name]
    assert identify_fields(after.connection)[field] == value
    assert identify_fields(before.connection).get(field) != value


@pytest.mark.parametrize("name", CHANGES)
def test_each_option_gets_to_receivers_wherever_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (beginning(options, monkeypatch) for options in without_and_with(name))
    assert (before != after) == (name in BEGUN)
    assert from_message(to_message(after)) == after


@pytest.mark.parametrize("name", CHANGES)
def test_each_option_is_found_by_a_misspelling(name: str) -> None:
    misspelt = name[:-1] + name[-1] * 2 + "q"
    with pytest.raises(OptionError, match=f"option {misspelt.lower()} is unknown to the source: did you mean {name}"):
        parse(SOURCE, {misspelt.lower(): "1"})


@pytest.mark.parametrize("name", CHANGES)
def test_an_empty_value_is_refused_by_name(name: str) -> None:
    with pytest.raises(OptionError, match=f"option {name}: "):
        parse(SOURCE, CHANGES[name][1], {name: ""})
