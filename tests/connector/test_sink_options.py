"""Each option of the sink is read, changes what is done, and is refused where it is wrong."""

from pathlib import Path

import pytest
import trustme

from pyspark_nsq.connector.errors import OptionError
from pyspark_nsq.connector.handshake import identify_fields
from pyspark_nsq.connector.option_table import Side, options_of
from pyspark_nsq.connector.options import parse_sink_options

SINK = {"topic": "events", "nsqdTcpAddresses": "a:4150,b:4150"}
# For each option a value that is not its default, and what else has to be set with it.
CHANGES: dict[str, tuple[str, dict[str, str]]] = {
    "topic": ("others", {}),
    "lookupdHttpAddresses": ("h:4161", {}),
    "nsqdTcpAddresses": ("c:4150,d:4150", {}),
    "lookupdPollInterval": ("10s", {}),
    "lookupdPollJitter": ("0.1", {}),
    "onInvalid": ("skip", {}),
    "deadLetterTopic": ("dead", {"onInvalid": "deadLetterTopic"}),
    "ignoreUnknownColumns": ("true", {}),
    "publishQuorum": ("2", {}),
    "maxMsgSize": ("2m", {}),
    "maxBodySize": ("8m", {"batchBytes": "6m"}),
    "maxReqTimeout": ("2h", {}),
    "batchBytes": ("2m", {}),
    "batchMessages": ("500", {}),
    "maxOutstanding": ("9", {}),
    "connectionIdleTimeout": ("7s", {}),
    "connectTimeout": ("2s", {}),
    "requestTimeout": ("3s", {}),
    "retries": ("3", {}),
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
# What nsqd is told of them.
IDENTIFIED = {
    "heartbeatInterval": ("heartbeat_interval", 5000),
    "clientId": ("client_id", "me"),
    "userAgent": ("user_agent", "mine/1"),
    "tls": ("tls_v1", True),
    "snappy": ("snappy", True),
    "deflate": ("deflate", True),
    "deflateLevel": ("deflate_level", 9),
}
# What replaces, in the comparison, those needed that need the option themselves.
INSTEAD = {"deadLetterTopic": {"onInvalid": "skip"}, "tlsKeyFile": {"tlsCertFile": "client.pem"}}


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
    (folder / "secret").write_text("sesame\n")
    return folder


@pytest.fixture(autouse=True)
def in_that_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative names are short."""
    monkeypatch.chdir(folder)


def test_no_option_was_forgotten_here() -> None:
    assert list(CHANGES) == [option.name for option in options_of(Side.SINK)]


@pytest.mark.parametrize("name", CHANGES)
def test_each_option_changes_what_is_done(name: str) -> None:
    value, needed = CHANGES[name]
    without = parse_sink_options(SINK | needed | INSTEAD.get(name, {}))
    assert parse_sink_options(SINK | needed | {name: value}) != without


@pytest.mark.parametrize("name", IDENTIFIED)
def test_each_option_that_is_nsqds_affair_is_told_to_it(name: str) -> None:
    before, after = parse_sink_options(SINK), parse_sink_options(SINK | {name: CHANGES[name][0]})
    field, value = IDENTIFIED[name]
    assert identify_fields(after.connection)[field] == value
    assert identify_fields(before.connection).get(field) != value


@pytest.mark.parametrize("name", CHANGES)
def test_each_option_is_found_by_a_misspelling(name: str) -> None:
    misspelt = name[:-1] + name[-1] * 2 + "q"
    with pytest.raises(OptionError, match=f"option {misspelt.lower()} is unknown to the sink: did you mean {name}"):
        parse_sink_options(SINK | {misspelt.lower(): "1"})


@pytest.mark.parametrize("name", CHANGES)
def test_an_empty_value_is_refused_by_name(name: str) -> None:
    with pytest.raises(OptionError, match=f"option {name}: "):
        parse_sink_options(SINK | CHANGES[name][1] | {name: ""})


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("publishQuorum", "0", "a whole number from 1 to 16"),
        ("publishQuorum", "two", "a whole number from 1 to 16"),
        ("onInvalid", "drop", "fail or skip or deadLetterTopic"),
        ("ignoreUnknownColumns", "yes", "true or false"),
        ("maxMsgSize", "-1", "a size from 1 to 1g"),
        ("batchBytes", "63", "a size from 64 to 1g"),
        ("batchMessages", "0", "a whole number from 1 to 10000000"),
        ("maxOutstanding", "1025", "a whole number from 1 to 1024"),
        ("retries", "-1", "a whole number from 0 to 1000000"),
        ("requestTimeout", "1ms", "a time span from 10ms to 1d"),
        ("connectionIdleTimeout", "0", "a time span from 1s to 1d"),
        ("maxReqTimeout", "366d", "a time span from 0ms to 365d"),
        ("deadLetterTopic", "no such name", "1 to 64 letters"),
        ("deflateLevel", "10", "a whole number from 1 to 9"),
    ],
)
def test_a_wrong_value_is_shown_with_what_is_allowed(name: str, text: str, allowed: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_sink_options(SINK | {name: text})
    assert str(caught.value).startswith(f"option {name}: {text!r} is not {allowed}")
