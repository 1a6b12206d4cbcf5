"""Every option of the source and the sink: what it takes, what holds without it, and what it means.

The documentation's table is made from this one.
"""

from collections.abc import Iterator
from enum import Flag, auto
from typing import Final, NamedTuple

from pyspark_nsq.connector.option_kinds import (
    ADDRESSES,
    BOOLEAN,
    HOST,
    HTTP_ADDRESSES,
    NAME,
    NAMES,
    PATH,
    PATTERN,
    PORTS,
    RECEIVERS,
    SECRET,
    TEXT,
    Kind,
    byte_size,
    choice,
    duration_ms,
    fraction,
    integer,
)


class Side(Flag):
    SOURCE = auto()
    SINK = auto()
    BOTH = SOURCE | SINK


class Option(NamedTuple):
    """``default`` is written as a user would write it; None says that there is none."""

    name: str
    side: Side
    kind: Kind
    default: str | None
    meaning: str


_SECOND: Final = 1000
_DAY: Final = 86_400_000

OPTIONS: Final = (
    # What to read.
    Option("topic", Side.SOURCE, NAMES, None, "The topic to read, or several. This or `topicPattern` is required."),
    Option(
        "topicPattern",
        Side.SOURCE,
        PATTERN,
        None,
        "Read every topic of the lookupds whose whole name matches, and follow them as they come and go.",
    ),
    Option("channel", Side.SOURCE, NAME, None, "The channel to read. Required."),
    # Where to write.
    Option(
        "topic",
        Side.SINK,
        NAME,
        None,
        "The topic to publish to. It wins over a column `topic`; without it the column is required.",
    ),
    # Where NSQ is.
    Option(
        "lookupdHttpAddresses",
        Side.BOTH,
        HTTP_ADDRESSES,
        None,
        "HTTP addresses of the nsqlookupds that tell where nsqds are. This or `nsqdTcpAddresses` is required.",
    ),
    Option("nsqdTcpAddresses", Side.BOTH, ADDRESSES, None, "TCP addresses of nsqds that are used in any case."),
    Option(
        "nsqdHttpAddresses",
        Side.SOURCE,
        HTTP_ADDRESSES,
        None,
        "HTTP addresses of those nsqds in the same order, for the backlog, and for `Trigger.AvailableNow` to know what "
        "there is. What lookupds found needs none.",
    ),
    Option(
        "lookupdPollInterval", Side.BOTH, duration_ms(100, _DAY), "30s", "How often lookupds are asked for the nsqds."
    ),
    Option(
        "lookupdPollJitter",
        Side.BOTH,
        fraction(0, 1),
        "0.3",
        "The part of the interval that is random, so that many clients do not ask at once.",
    ),
    # How much at once.
    Option(
        "numPartitions",
        Side.SOURCE,
        integer(1, 10_000),
        "2",
        "Into how many tasks a batch is divided. One with fewer messages has fewer.",
    ),
    Option(
        "receivers",
        Side.SOURCE,
        RECEIVERS,
        "1",
        "How many processes receive, on the driver's host; or `executors`, for one on each host that has executors; or "
        "the addresses of `nsq-receiver`s. They share `maxInFlight` and the nsqds.",
    ),
    Option(
        "receiverHost",
        Side.SOURCE,
        HOST,
        None,
        "The address of the driver's host at which receivers, executors and tasks reach it; with a network every host "
        "uses its address therein. Without it 127.0.0.1 where the receivers are beside the driver, otherwise the "
        "address that Spark uses.",
    ),
    Option(
        "receiverPorts",
        Side.SOURCE,
        PORTS,
        None,
        "Where receivers, and with receivers elsewhere the driver's side, listen. Any free port without it.",
    ),
    Option(
        "receiverTokenFile",
        Side.SOURCE,
        PATH,
        None,
        "The file, on the driver's host, with the token of the `nsq-receiver`s that `receivers` names.",
    ),
    Option(
        "receiverLease",
        Side.SOURCE,
        duration_ms(_SECOND, 20 * _SECOND),
        "10s",
        "After what time of silence receivers elsewhere than beside the driver give up their query, and it them.",
    ),
    Option("receiverTls", Side.SOURCE, BOOLEAN, "false", "TLS between receivers, the driver's side and Spark's tasks."),
    Option(
        "receiverTlsCaFile",
        Side.SOURCE,
        PATH,
        None,
        "The certificate authorities that they trust, as PEM, on every host. Required with `receiverTls`.",
    ),
    Option(
        "receiverTlsCertFile",
        Side.SOURCE,
        PATH,
        None,
        "The certificate that each of them shows, as PEM, on every host. Required with `receiverTls`.",
    ),
    Option("receiverTlsKeyFile", Side.SOURCE, PATH, None, "The key of that certificate, as PEM, not encrypted."),
    Option(
        "receiverTlsServerName",
        Side.SOURCE,
        TEXT,
        None,
        "The name that these certificates must bear. The address that is called without it.",
    ),
    Option(
        "maxInFlight",
        Side.SOURCE,
        integer(1, 1_000_000_000),
        "50000",
        "How many messages are received and not finished at most. It bounds what a batch can hold.",
    ),
    Option(
        "maxInFlightBytes",
        Side.SOURCE,
        byte_size(2**20, 2**40),
        "256m",
        "How many bytes of messages the receivers hold at most before they stop asking for more.",
    ),
    Option(
        "maxMessagesPerTrigger", Side.SOURCE, integer(1, 1_000_000_000), None, "How many messages a batch has at most."
    ),
    Option(
        "minMessagesPerTrigger",
        Side.SOURCE,
        integer(1, 1_000_000_000),
        None,
        "How many messages a batch waits for, `maxTriggerDelay` at most, and no longer than more of them can come: "
        "`maxInFlightBytes`, or an nsqd's part of `maxInFlight`, may be used up before.",
    ),
    Option(
        "maxTriggerDelay",
        Side.SOURCE,
        duration_ms(0, _DAY),
        "15m",
        "How long a batch waits for `minMessagesPerTrigger`, but no longer than half of nsqd's `--max-msg-timeout`: "
        "nsqd would deliver its messages again while it runs.",
    ),
    # What becomes of messages.
    Option(
        "msgTimeout",
        Side.SOURCE,
        duration_ms(_SECOND, _DAY),
        None,
        "After what time nsqd delivers a message again that nobody finished or touched. nsqd's own without it.",
    ),
    Option(
        "maxAttempts",
        Side.SOURCE,
        integer(1, 65_535),
        None,
        "A message that was delivered more often goes to `deadLetterTopic`. Without it there is no limit.",
    ),
    Option(
        "deadLetterTopic",
        Side.SOURCE,
        NAME,
        None,
        "Where messages past `maxAttempts` are published. Without it they are dropped and counted.",
    ),
    Option(
        "sampleRate",
        Side.SOURCE,
        integer(1, 99),
        None,
        "Let nsqd deliver about this percentage only. What it leaves out is lost to the channel.",
    ),
    Option(
        "invalidUtf8",
        Side.SOURCE,
        choice("fail", "null"),
        "fail",
        "For `body STRING`: what becomes of a body that is no UTF-8.",
    ),
    Option(
        "onInvalid",
        Side.SINK,
        choice("fail", "skip", "deadLetterTopic"),
        "fail",
        "What becomes of a row that NSQ cannot take: its body null, empty or too large, its topic or delay invalid.",
    ),
    Option(
        "deadLetterTopic",
        Side.SINK,
        NAME,
        None,
        "Where such rows are published as JSON. Required with `onInvalid=deadLetterTopic`.",
    ),
    Option(
        "ignoreUnknownColumns",
        Side.SINK,
        BOOLEAN,
        "false",
        "Leave out columns other than `body`, `value`, `topic` and `defer_ms`, where they are an error otherwise.",
    ),
    # How it is published.
    Option(
        "publishQuorum",
        Side.SINK,
        integer(1, 16),
        "1",
        "Publish each message to this many nsqds. Consumers see each as often, and have to tell copies apart.",
    ),
    Option(
        "maxMsgSize",
        Side.SINK,
        byte_size(1, 2**30),
        "1m",
        "The largest body that the nsqds accept: their --max-msg-size.",
    ),
    Option(
        "maxBodySize",
        Side.SINK,
        byte_size(64, 2**30),
        "5m",
        "The largest command that the nsqds accept: their --max-body-size.",
    ),
    Option(
        "maxReqTimeout",
        Side.SINK,
        duration_ms(0, 365 * _DAY),
        "1h",
        "The longest delay that the nsqds accept: their --max-req-timeout.",
    ),
    Option("batchBytes", Side.SINK, byte_size(64, 2**30), "1m", "How many bytes one command publishes at most."),
    Option(
        "batchMessages", Side.SINK, integer(1, 10_000_000), "10000", "How many messages one command publishes at most."
    ),
    Option(
        "maxOutstanding",
        Side.SINK,
        integer(1, 1024),
        "4",
        "How many commands are on the way to an nsqd before its first answer is waited for.",
    ),
    Option(
        "connectionIdleTimeout",
        Side.SINK,
        duration_ms(_SECOND, _DAY),
        "50s",
        "After what time a connection that no task uses is closed. nsqd closes it after two `heartbeatInterval`s.",
    ),
    # When something fails.
    Option(
        "connectTimeout",
        Side.BOTH,
        duration_ms(10, _DAY),
        "5s",
        "How long a connection may take to be ready, or a lookupd to answer.",
    ),
    Option(
        "requestTimeout",
        Side.SINK,
        duration_ms(10, _DAY),
        "30s",
        "How long an nsqd may take to answer what was published before another one gets it.",
    ),
    Option(
        "retries",
        Side.SINK,
        integer(0, 1_000_000),
        "10",
        "How often, after all nsqds have failed, all of them are tried again before the task fails.",
    ),
    Option(
        "retryDelay",
        Side.BOTH,
        duration_ms(1, _DAY),
        "100ms",
        "How long an nsqd is left out after a failure. It doubles with each failure that follows.",
    ),
    Option("retryDelayMax", Side.BOTH, duration_ms(1, _DAY), "10s", "Where that doubling ends."),
    Option(
        "heartbeatInterval",
        Side.BOTH,
        duration_ms(_SECOND, 60 * _SECOND),
        "30s",
        "How often nsqd asks whether the client lives; it gives up after two unanswered times.",
    ),
    # Who we are, and how the connection is protected.
    Option("clientId", Side.BOTH, TEXT, None, "The name that nsqd shows for this client. The host's name without it."),
    Option("userAgent", Side.BOTH, TEXT, None, "The program that nsqd shows. `pyspark-nsq/VERSION` without it."),
    Option("tls", Side.BOTH, BOOLEAN, "false", "Require TLS on connections to nsqds."),
    Option(
        "tlsCaFile",
        Side.BOTH,
        PATH,
        None,
        "The certificate authorities to trust, as PEM. The system's without it. Holds for https:// addresses too.",
    ),
    Option("tlsCertFile", Side.BOTH, PATH, None, "The client's certificate, as PEM."),
    Option("tlsKeyFile", Side.BOTH, PATH, None, "The key of that certificate, if it is not in the same file."),
    Option("tlsKeyPassword", Side.BOTH, SECRET, None, "The password of that key."),
    Option(
        "tlsServerName",
        Side.BOTH,
        TEXT,
        None,
        "The name that nsqds' certificates must bear. The host of their address without it.",
    ),
    Option(
        "tlsInsecureSkipVerify",
        Side.BOTH,
        BOOLEAN,
        "false",
        "Accept any certificate. Then anybody on the way can read and change all messages.",
    ),
    Option("snappy", Side.BOTH, BOOLEAN, "false", "Require Snappy compression on connections to nsqds."),
    Option("deflate", Side.BOTH, BOOLEAN, "false", "Require deflate compression on connections to nsqds."),
    Option("deflateLevel", Side.BOTH, integer(1, 9), "6", "How hard deflate tries; nsqd may lower it."),
    Option("authSecret", Side.BOTH, SECRET, None, "The secret for nsqds that demand AUTH."),
    Option(
        "authSecretFile",
        Side.BOTH,
        PATH,
        None,
        "The file with that secret, read for each connection. It has to be on every host that makes some.",
    ),
)


def options_of(side: Side) -> Iterator[Option]:
    """The options that the source, or the sink, takes."""
    return (option for option in OPTIONS if side in option.side)
