"""What users write as options, what becomes of it, and what they are told when it is wrong."""

import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from pyspark_nsq.connector.errors import OptionError
from pyspark_nsq.connector.option_table import OPTIONS, Side, options_of
from pyspark_nsq.connector.options import parse_sink_options, parse_source_options
from pyspark_nsq.connector.settings import Address, HttpAddress, Secret

SOURCE = {"topic": "events", "channel": "spark", "nsqdTcpAddresses": "127.0.0.1:4150"}
SINK = {"topic": "events", "nsqdTcpAddresses": "127.0.0.1:4150"}

Parse = Callable[[Mapping[str, str]], Any]


def error_of(parse: Parse, options: Mapping[str, str]) -> str:
    with pytest.raises(OptionError) as caught:
        parse(options)
    return str(caught.value)


def test_a_source_needs_three_options() -> None:
    options = parse_source_options(SOURCE)
    assert (options.topics, options.channel) == (("events",), "spark")
    assert options.discovery.nsqds == (Address("127.0.0.1", 4150),)
    assert options.attempts_max is None
    assert not options.connection.security.tls


def test_a_sink_needs_two_options() -> None:
    options = parse_sink_options(SINK)
    assert (options.topic, options.publish_quorum, options.on_invalid) == ("events", 1, "fail")


@pytest.mark.parametrize("parse", [parse_source_options, parse_sink_options])
def test_spark_writes_names_in_lower_case(parse: Parse) -> None:
    options = SOURCE if parse is parse_source_options else SINK
    assert parse(CaseInsensitiveDict(options)) == parse({name.upper(): text for name, text in options.items()})


@pytest.mark.parametrize("own", ["checkpointLocation", "queryName"])
def test_what_spark_adds_is_passed_over(own: str) -> None:
    assert parse_sink_options(SINK | {own: "x"}) == parse_sink_options(SINK)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h:1, h:1,[::1]:4150 ,", (Address("h", 1), Address("::1", 4150))),
        ("nsqd.example:65535", (Address("nsqd.example", 65535),)),
    ],
)
def test_addresses(text: str, found: tuple[Address, ...]) -> None:
    assert parse_source_options(SOURCE | {"nsqdTcpAddresses": text}).discovery.nsqds == found


@pytest.mark.parametrize(
    "text",
    ["", "h", "h:", ":1", "h:0", "h:65536", "h:x", "::1:4150", "http://h:1", "u@h:1", "h :1", "h:1/x", "h:1;h:2"],
)
def test_what_is_no_address(text: str) -> None:
    error = error_of(parse_source_options, SOURCE | {"nsqdTcpAddresses": text})
    assert error.startswith(f"option nsqdTcpAddresses: {text!r} is not host:port")


def test_http_addresses_say_whether_to_use_tls() -> None:
    found = parse_source_options(
        SOURCE | {"lookupdHttpAddresses": "a:1,http://b:2/,https://[::1]:3"}
    ).discovery.lookupds
    expected = (HttpAddress(Address("a", 1)), HttpAddress(Address("b", 2)), HttpAddress(Address("::1", 3), tls=True))
    assert found == expected
    assert list(map(str, found)) == ["http://a:1", "http://b:2", "https://[::1]:3"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("250", 0.25), ("500ms", 0.5), ("30s", 30), ("30 seconds", 30), ("2M", 120), ("1h", 3600)]
)
def test_time_spans(text: str, seconds: float) -> None:
    assert parse_source_options(SOURCE | {"maxTriggerDelay": text}).trigger_delay_s_max == seconds


@pytest.mark.parametrize(("text", "size"), [("2097152", 2**21), ("64m", 2**26), ("64MB", 2**26), ("1 g", 2**30)])
def test_sizes(text: str, size: int) -> None:
    assert parse_source_options(SOURCE | {"maxInFlightBytes": text}).in_flight_bytes_max == size


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("topic", "a b", "names separated by commas"),
        ("topic", ",", "names separated by commas"),
        ("topic", "x" * 65, "names separated by commas"),
        ("channel", "c#ephemeral#ephemeral", "1 to 64 letters"),
        ("topicPattern", "(", "missing ), unterminated subpattern"),
        ("topicPattern", "", "a regular expression, which has to match the whole name (it is empty)"),
        ("numPartitions", "0", "a whole number from 1 to 10000"),
        ("numPartitions", "1.0", "a whole number from 1 to 10000"),
        ("numPartitions", "9" * 5000, "a whole number from 1 to 10000"),
        ("maxTriggerDelay", "3 weeks", "a time span from 0ms to 1d"),
        ("maxTriggerDelay", "-1", "a time span from 0ms to 1d"),
        ("msgTimeout", "999ms", "a time span from 1s to 1d"),
        ("maxInFlightBytes", "1.5g", "a size from 1m to 1024g"),
        ("lookupdPollJitter", "nan", "a number from 0 to 1"),
        ("lookupdPollJitter", "1.1", "a number from 0 to 1"),
        ("invalidUtf8", "drop", "fail or null"),
        ("tls", "yes", "true or false"),
        ("clientId", "a\nb", "a text without control characters"),
    ],
)
def test_a_wrong_value_is_shown_with_what_is_allowed(name: str, text: str, allowed: str) -> None:
    error = error_of(parse_source_options, SOURCE | {name: text})
    assert error.startswith(f"option {name}: {text!r} is not ")
    assert allowed in error


@pytest.mark.parametrize(
    ("parse", "options", "name", "nearest"),
    [
        (parse_source_options, SOURCE, "maxinflght", "maxInFlight"),
        (parse_source_options, SOURCE, "topics", "topic"),
        (parse_sink_options, SINK, "publish_quorum", "publishQuorum"),
        (parse_sink_options, SINK, "kafka.bootstrap.servers", ""),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest(
    parse: Parse, options: Mapping[str, str], name: str, nearest: str
) -> None:
    error = error_of(parse, {**options, name: "1"})
    assert f"option {name} is unknown" in error
    assert f"did you mean {nearest}" in error


def test_a_path_is_no_topic() -> None:
    """It is what load("events") and save("events") set."""
    error = error_of(parse_source_options, SOURCE | {"path": "events"})
    assert error == "option path: the source has none, did you mean option topic? load() takes no argument"
    error = error_of(parse_sink_options, SINK | {"path": "events"})
    assert error == "option path: the sink has none, did you mean option topic? save() and start() take no argument"


def test_an_option_of_the_other_side_is_told_apart() -> None:
    assert "is one of the sink" in error_of(parse_source_options, SOURCE | {"publishQuorum": "2"})
    assert "is one of the source" in error_of(parse_sink_options, SINK | {"channel": "c"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nsqdTcpAddresses": None}, "neither option lookupdHttpAddresses nor option nsqdTcpAddresses is set"),
        ({"topic": None}, "topic and topicPattern: neither is set"),
        ({"topicPattern": "x"}, "topic and topicPattern: both are set"),
        ({"topic": None, "topicPattern": "x"}, "topicPattern: it needs lookupdHttpAddresses"),
        ({"channel": None}, "option channel: it is not set"),
        ({"minMessagesPerTrigger": "9", "maxMessagesPerTrigger": "8"}, "minMessagesPerTrigger: 9 is more than max"),
        ({"minMessagesPerTrigger": "9", "maxInFlight": "8"}, "minMessagesPerTrigger: 9 is more than maxInFlight, 8"),
        ({"deadLetterTopic": "dead"}, "deadLetterTopic: it is used past maxAttempts, which is not set"),
        ({"deadLetterTopic": "events", "maxAttempts": "5"}, "deadLetterTopic: events is also a topic that is read"),
        (
            {
                "topic": None,
                "topicPattern": "ev.*",
                "lookupdHttpAddresses": "h:1",
                "deadLetterTopic": "ev-dead",
                "maxAttempts": "5",
            },
            "its own dead letters. Give it another name, or leave it out of topicPattern, as in (?!ev-dead$)(?:ev.*)",
        ),
        ({"maxInFlight": "2", "receivers": "3"}, "maxInFlight: 2 is less than receivers, 3: some would never get"),
        ({"maxInFlight": "1", "receivers": "a:1,b:2"}, "maxInFlight: 1 is less than receivers, 2"),
        ({"nsqdHttpAddresses": "a:1,b:2"}, "nsqdHttpAddresses: it has 2 addresses and nsqdTcpAddresses 1"),
        ({"retryDelay": "20s"}, "retryDelay: 20000ms is more than retryDelayMax"),
        ({"snappy": "true", "deflate": "true"}, "snappy and deflate: both are true"),
        ({"tlsCaFile": "ca.pem"}, "tlsCaFile: it is set, but TLS is not used"),
        ({"tls": "true", "tlsKeyFile": "key.pem"}, "tlsKeyFile: it is the key of tlsCertFile, which is not set"),
        ({"tls": "true", "tlsCaFile": "gone.pem"}, "tlsCaFile: 'gone.pem' cannot be used"),
        ({"tls": "true", "tlsCertFile": "gone.pem"}, "tlsCertFile: 'gone.pem' cannot be used"),
        ({"authSecretFile": "gone"}, "authSecretFile: 'gone' cannot be read"),
        ({"authSecretFile": "x", "authSecret": "y"}, "authSecret and authSecretFile: both are set"),
    ],
)
def test_what_does_not_go_together_at_the_source(changes: Mapping[str, str | None], words: str) -> None:
    options = {name: text for name, text in (SOURCE | dict(changes)).items() if text is not None}
    assert words in error_of(parse_source_options, options)


def test_a_pattern_that_leaves_the_dead_letters_out_is_taken() -> None:
    what = {"topicPattern": "(?!ev-dead$)(?:ev.*)", "deadLetterTopic": "ev-dead", "maxAttempts": "5"}
    options = parse_source_options({"channel": "c", "lookupdHttpAddresses": "h:1", **what})
    assert options.topic_pattern is not None
    assert [name for name in ("ev", "ev-dead", "ev-dead2") if options.topic_pattern.fullmatch(name)] == [
        "ev",
        "ev-dead2",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"onInvalid": "deadLetterTopic"}, "needs the option deadLetterTopic"),
        ({"deadLetterTopic": "dead"}, "deadLetterTopic: it is used with onInvalid=deadLetterTopic, not fail"),
        (
            {"onInvalid": "deadLetterTopic", "deadLetterTopic": "d", "maxMsgSize": "1023"},
            "maxMsgSize: 1023 bytes may not hold what deadLetterTopic gets",
        ),
        ({"maxMsgSize": "5m"}, "maxMsgSize: 5242880 bytes and 8 more"),
        ({"publishQuorum": "2"}, "publishQuorum: 2 is more than the nsqds of nsqdTcpAddresses, 1"),
        ({"topic": "a,b"}, "option topic: 'a,b' is not 1 to 64 letters"),
    ],
)
def test_what_does_not_go_together_at_the_sink(changes: Mapping[str, str], words: str) -> None:
    assert words in error_of(parse_sink_options, SINK | dict(changes))


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    options = parse_sink_options(SINK | {"authSecret": "open sesame"})
    assert options.connection.security.auth_secret is not None
    assert options.connection.security.auth_secret.reveal == "open sesame"
    assert "sesame" not in repr(options) + str(options)
    assert "sesame" not in error_of(parse_sink_options, SINK | {"authSecret": "open\nsesame"})
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_secret_is_taken_as_it_is_and_other_values_without_blanks_around_them() -> None:
    options = parse_sink_options(SINK | {"authSecret": " open sesame ", "clientId": " me "})
    assert options.connection.security.auth_secret == Secret(" open sesame ")
    assert options.connection.client_id == "me"
    assert "a text without control characters" in error_of(parse_sink_options, SINK | {"authSecret": "sesame\n"})


@pytest.mark.parametrize("content", [b"", b"\n", b"x" * 100_000])
def test_a_secret_file_that_is_none(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    assert f"has {min(65537, len(content))} bytes, a secret has" in error_of(
        parse_sink_options, SINK | {"authSecretFile": str(file)}
    )


def test_options_of_a_source_travel() -> None:
    options = parse_source_options(
        {"topicPattern": "log-.*", "channel": "c", "lookupdHttpAddresses": "h:1", "authSecret": "s"}
    )
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize("side", [Side.SOURCE, Side.SINK])
def test_names_are_unique(side: Side) -> None:
    names = [option.name.lower() for option in options_of(side)]
    assert len(names) == len(set(names)) > 20


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: f"{option.name}-{option.side.name}")
def test_every_option_is_documented_and_its_default_is_valid(option: Any) -> None:
    assert re.fullmatch("[a-z][A-Za-z0-9]+", option.name)
    assert option.meaning.endswith(".")
    if option.default is not None:
        option.kind.parse(option.default)
