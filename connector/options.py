"""The options as Spark hands them over, checked and turned into frozen values."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pyspark_nsq.connector.errors import OptionError
from pyspark_nsq.connector.option_table import OPTIONS, Option, Side, options_of
from pyspark_nsq.connector.receiver_options import ReceiverOptions, receiver_options
from pyspark_nsq.connector.security import check_security
from pyspark_nsq.connector.settings import Address, ConnectionSettings, HttpAddress, Security

# What Spark puts among a sink's options for its own use, in lower case.
_SPARK_OWN: Final = {"checkpointlocation", "queryname"}
# The reason, sizes and the name of a topic as JSON, however much of it is escaped.
_DEAD_LETTER_SIZE_MAX: Final = 1024
_SIDE_NAMES: Final = {Side.SOURCE: "source", Side.SINK: "sink"}


@dataclass(frozen=True)
class DiscoveryOptions:
    """Where nsqds are found, and how often somebody looks."""

    lookupds: tuple[HttpAddress, ...]
    nsqds: tuple[Address, ...]
    nsqd_https: tuple[HttpAddress, ...]
    poll_interval_s: float
    poll_jitter: float
    request_timeout_s: float
    security: Security


@dataclass(frozen=True)
class RetryOptions:
    """How long an nsqd is left out after failures."""

    delay_s: float
    delay_s_max: float


@dataclass(frozen=True)
class SourceOptions:
    topics: tuple[str, ...]
    topic_pattern: re.Pattern[str] | None
    channel: str
    discovery: DiscoveryOptions
    connection: ConnectionSettings
    retry: RetryOptions
    num_partitions: int
    receivers: ReceiverOptions
    in_flight_max: int
    in_flight_bytes_max: int
    messages_per_trigger_max: int | None
    messages_per_trigger_min: int | None
    trigger_delay_s_max: float
    attempts_max: int | None
    dead_letter_topic: str | None
    invalid_utf8: Literal["fail", "null"]


@dataclass(frozen=True)
class SinkOptions:
    topic: str | None
    discovery: DiscoveryOptions
    connection: ConnectionSettings
    retry: RetryOptions
    retries: int
    request_timeout_s: float
    connection_idle_timeout_s: float
    publish_quorum: int
    message_size_max: int
    body_size_max: int
    defer_ms_max: int
    batch_size_max: int
    batch_messages_max: int
    outstanding_max: int
    on_invalid: Literal["fail", "skip", "deadLetterTopic"]
    dead_letter_topic: str | None
    ignore_unknown_columns: bool


def parse_source_options(texts: Mapping[str, str]) -> SourceOptions:
    """The options of ``spark.readStream``; ``OptionError`` names the first that is wrong."""
    values = _parse(texts, Side.SOURCE)
    _check_discovery(values)
    _check_what_to_read(values)
    _check_dead_letters(values)
    _check_receivers(values)
    return SourceOptions(
        topics=values["topic"] or (),
        topic_pattern=values["topicPattern"],
        channel=values["channel"],
        discovery=_discovery(values),
        connection=_connection(values),
        retry=_retry(values),
        num_partitions=values["numPartitions"],
        receivers=receiver_options(values),
        in_flight_max=values["maxInFlight"],
        in_flight_bytes_max=values["maxInFlightBytes"],
        messages_per_trigger_max=values["maxMessagesPerTrigger"],
        messages_per_trigger_min=values["minMessagesPerTrigger"],
        trigger_delay_s_max=values["maxTriggerDelay"] / 1000,
        attempts_max=values["maxAttempts"],
        dead_letter_topic=values["deadLetterTopic"],
        invalid_utf8=values["invalidUtf8"],
    )


def parse_sink_options(texts: Mapping[str, str]) -> SinkOptions:
    """The options of ``df.writeStream`` and ``df.write``; ``OptionError`` names the first that is wrong."""
    values = _parse(texts, Side.SINK)
    _check_discovery(values)
    _check_how_to_publish(values)
    return SinkOptions(
        topic=values["topic"],
        discovery=_discovery(values),
        connection=_connection(values),
        retry=_retry(values),
        retries=values["retries"],
        request_timeout_s=values["requestTimeout"] / 1000,
        connection_idle_timeout_s=values["connectionIdleTimeout"] / 1000,
        publish_quorum=values["publishQuorum"],
        message_size_max=values["maxMsgSize"],
        body_size_max=values["maxBodySize"],
        defer_ms_max=values["maxReqTimeout"],
        batch_size_max=min(values["batchBytes"], values["maxBodySize"]),
        batch_messages_max=values["batchMessages"],
        outstanding_max=values["maxOutstanding"],
        on_invalid=values["onInvalid"],
        dead_letter_topic=values["deadLetterTopic"],
        ignore_unknown_columns=values["ignoreUnknownColumns"],
    )


def _parse(texts: Mapping[str, str], side: Side) -> dict[str, Any]:
    """The value of every option of this side by its name; None where there is neither value nor default."""
    given = {name.lower(): text for name, text in texts.items()}
    known = {option.name.lower() for option in options_of(side)}
    if "path" in given:
        this, calls = _SIDE_NAMES[side], "load() takes" if side is Side.SOURCE else "save() and start() take"
        raise OptionError(f"option path: the {this} has none, did you mean option topic? {calls} no argument")
    for name in given:
        if name not in known | _SPARK_OWN:
            raise OptionError(_unknown(name, side))
    return {option.name: _value(option, given.get(option.name.lower())) for option in options_of(side)}


def _value(option: Option, text: str | None) -> Any:
    text = option.default if text is None else text
    if text is None:
        return None
    try:
        return option.kind.parse(text if option.kind.is_secret else text.strip())
    except (ValueError, KeyError) as error:
        shown = "its value (not shown)" if option.kind.is_secret else repr(text)
        reason = f" ({error})" if isinstance(error, ValueError) and str(error) else ""
        raise OptionError(f"option {option.name}: {shown} is not {option.kind.allowed}{reason}") from None


def _unknown(name: str, side: Side) -> str:
    """Why this name is refused, with what may have been meant."""
    this, other = _SIDE_NAMES[side], _SIDE_NAMES[Side.BOTH ^ side]
    if any(name == option.name.lower() for option in OPTIONS):
        return f"option {name} is one of the {other}, the {this} does not have it"
    names = {option.name.lower(): option.name for option in options_of(side)}
    near = difflib.get_close_matches(name, names, n=1, cutoff=0)
    return f"option {name} is unknown to the {this}: did you mean {names[near[0]]}?"


def _check_discovery(values: Mapping[str, Any]) -> None:
    if not values["lookupdHttpAddresses"] and not values["nsqdTcpAddresses"]:
        raise OptionError(
            "neither option lookupdHttpAddresses nor option nsqdTcpAddresses is set: say where NSQ is, as in "
            '.option("lookupdHttpAddresses", "127.0.0.1:4161") or .option("nsqdTcpAddresses", "127.0.0.1:4150")'
        )
    https, nsqds = values.get("nsqdHttpAddresses") or (), values["nsqdTcpAddresses"] or ()
    if https and len(https) != len(nsqds):
        raise OptionError(
            f"option nsqdHttpAddresses: it has {len(https)} addresses and nsqdTcpAddresses {len(nsqds)}; "
            "name the HTTP address of each nsqd, in the same order"
        )
    if values["retryDelay"] > values["retryDelayMax"]:
        raise OptionError(
            f"option retryDelay: {values['retryDelay']}ms is more than retryDelayMax, {values['retryDelayMax']}ms"
        )
    if values["snappy"] and values["deflate"]:
        raise OptionError("options snappy and deflate: both are true, a connection can have one of them")


def _check_what_to_read(values: Mapping[str, Any]) -> None:
    if bool(values["topic"]) == bool(values["topicPattern"]):
        what = "both are" if values["topic"] else "neither is"
        raise OptionError(f"options topic and topicPattern: {what} set, one of them says what to read")
    if values["topicPattern"] and not values["lookupdHttpAddresses"]:
        raise OptionError("option topicPattern: it needs lookupdHttpAddresses, as lookupds know which topics exist")
    if not values["channel"]:
        raise OptionError("option channel: it is not set; the messages of a channel are shared by all who read it")
    low, high = values["minMessagesPerTrigger"], values["maxMessagesPerTrigger"]
    if low and low > (high or low):
        raise OptionError(f"option minMessagesPerTrigger: {low} is more than maxMessagesPerTrigger, {high}")
    if low and low > values["maxInFlight"]:
        raise OptionError(
            f"option minMessagesPerTrigger: {low} is more than maxInFlight, {values['maxInFlight']}: "
            "a batch can never hold so many"
        )


def _check_dead_letters(values: Mapping[str, Any]) -> None:
    topic, pattern = values["deadLetterTopic"], values["topicPattern"]
    if topic and not values["maxAttempts"]:
        raise OptionError("option deadLetterTopic: it is used past maxAttempts, which is not set")
    if topic in (values["topic"] or ()):
        raise OptionError(f"option deadLetterTopic: {topic} is also a topic that is read")
    if topic and pattern and pattern.fullmatch(topic):
        without = "(?!" + topic.replace(".", r"\.") + f"$)(?:{pattern.pattern})"
        raise OptionError(
            f"option deadLetterTopic: {topic} matches topicPattern too, so that the query would read its own dead "
            f"letters. Give it another name, or leave it out of topicPattern, as in {without}"
        )


def _check_receivers(values: Mapping[str, Any]) -> None:
    """Where their number is known, each has a share of the budget."""
    receivers, in_flight_max = values["receivers"], values["maxInFlight"]
    count = receivers if isinstance(receivers, int) else len(receivers or ())
    if in_flight_max < count:
        raise OptionError(
            f"option maxInFlight: {in_flight_max} is less than receivers, {count}: some would never get a message. "
            f"Set it to {count} or more, or use fewer receivers"
        )


def _check_how_to_publish(values: Mapping[str, Any]) -> None:
    if values["onInvalid"] == "deadLetterTopic" and not values["deadLetterTopic"]:
        raise OptionError("option onInvalid: deadLetterTopic needs the option deadLetterTopic to name the topic")
    if values["deadLetterTopic"] and values["maxMsgSize"] < _DEAD_LETTER_SIZE_MAX:
        raise OptionError(
            f"option maxMsgSize: {values['maxMsgSize']} bytes may not hold what deadLetterTopic gets, "
            f"it takes {_DEAD_LETTER_SIZE_MAX}"
        )
    if values["deadLetterTopic"] and values["onInvalid"] != "deadLetterTopic":
        raise OptionError(
            f"option deadLetterTopic: it is used with onInvalid=deadLetterTopic, not {values['onInvalid']}"
        )
    if values["maxMsgSize"] + 8 > values["maxBodySize"]:
        raise OptionError(
            f"option maxMsgSize: {values['maxMsgSize']} bytes and 8 more for the command do not fit into "
            f"maxBodySize, {values['maxBodySize']}"
        )
    known, quorum = values["nsqdTcpAddresses"] or (), values["publishQuorum"]
    if not values["lookupdHttpAddresses"] and quorum > len(known):
        raise OptionError(f"option publishQuorum: {quorum} is more than the nsqds of nsqdTcpAddresses, {len(known)}")


def _discovery(values: Mapping[str, Any]) -> DiscoveryOptions:
    return DiscoveryOptions(
        lookupds=values["lookupdHttpAddresses"] or (),
        nsqds=values["nsqdTcpAddresses"] or (),
        nsqd_https=values.get("nsqdHttpAddresses") or (),
        poll_interval_s=values["lookupdPollInterval"] / 1000,
        poll_jitter=values["lookupdPollJitter"],
        request_timeout_s=values["connectTimeout"] / 1000,
        security=_security(values),
    )


def _connection(values: Mapping[str, Any]) -> ConnectionSettings:
    return ConnectionSettings(
        security=_security(values),
        snappy=values["snappy"],
        deflate=values["deflate"],
        deflate_level=values["deflateLevel"],
        client_id=values["clientId"],
        user_agent=values["userAgent"],
        connect_timeout_s=values["connectTimeout"] / 1000,
        heartbeat_interval_ms=values["heartbeatInterval"],
        msg_timeout_ms=values.get("msgTimeout"),
        sample_rate=values.get("sampleRate"),
    )


def _retry(values: Mapping[str, Any]) -> RetryOptions:
    return RetryOptions(values["retryDelay"] / 1000, values["retryDelayMax"] / 1000)


def _security(values: Mapping[str, Any]) -> Security:
    security = Security(
        tls=values["tls"],
        tls_ca_file=values["tlsCaFile"],
        tls_cert_file=values["tlsCertFile"],
        tls_key_file=values["tlsKeyFile"],
        tls_key_password=values["tlsKeyPassword"],
        tls_server_name=values["tlsServerName"],
        tls_insecure_skip_verify=values["tlsInsecureSkipVerify"],
        auth_secret=values["authSecret"],
        auth_secret_file=values["authSecretFile"],
    )
    has_https = any(
        address.tls for address in [*(values["lookupdHttpAddresses"] or ()), *(values.get("nsqdHttpAddresses") or ())]
    )
    check_security(security, has_https)
    return security
