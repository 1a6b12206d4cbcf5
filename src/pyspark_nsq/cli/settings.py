"""What all sub-commands have in common: where NSQ is, and the connector's options that say how to reach it."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pyspark_nsq.connector.errors import OptionError
from pyspark_nsq.connector.option_kinds import HTTP_ADDRESSES
from pyspark_nsq.connector.options import (
    DiscoveryOptions,
    SinkOptions,
    SourceOptions,
    parse_sink_options,
    parse_source_options,
)

LOOKUPD_VARIABLE: Final = "NSQ_LOOKUPD_HTTP_ADDRESSES"
LOOKUPD_DEFAULT: Final = "127.0.0.1:4161"

# Somebody waits at a terminal: look more often and give up sooner than a query does.
_IMPATIENT: Final = {"lookupdPollInterval": "3s", "retryDelayMax": "2s"}
_IMPATIENT_SINK: Final = {"retries": "2", "requestTimeout": "15s"}


def add_lookupd(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-l",
        "--lookupd-http-address",
        metavar="HOST:PORT",
        action="append",
        help=f"an nsqlookupd that tells where the nsqds are; may be repeated (without any address: "
        f"${LOOKUPD_VARIABLE}, or {LOOKUPD_DEFAULT})",
    )
    parser.add_argument(
        "-o",
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an option of the Spark connector that says how to connect, such as tls=true, tlsCaFile=ca.pem, "
        "authSecretFile=secret, snappy=true or connectTimeout=2s; may be repeated",
    )


def add_nsqd_tcp(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-d", "--nsqd-tcp-address", metavar="HOST:PORT", action="append", help="an nsqd to use; may be repeated"
    )


def add_nsqd_http(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-d", "--nsqd-http-address", metavar="HOST:PORT", action="append", help="an nsqd to ask; may be repeated"
    )


def source_options(arguments: argparse.Namespace, topics: str, channel: str) -> SourceOptions:
    return parse_source_options({**_IMPATIENT, **_place(arguments), "topic": topics, "channel": channel})


def sink_options(arguments: argparse.Namespace, topic: str) -> SinkOptions:
    return parse_sink_options({**_IMPATIENT, **_IMPATIENT_SINK, **_place(arguments), "topic": topic})


def discovery_options(arguments: argparse.Namespace) -> DiscoveryOptions:
    """For questions over HTTP alone."""
    nsqds = _joined(arguments.nsqd_http_address)
    lookupds = _joined(arguments.lookupd_http_address) or ("" if nsqds else _default_lookupds())
    # All of them together, so that what is said about https:// holds for all.
    place = {"lookupdHttpAddresses": ",".join(filter(None, (lookupds, nsqds)))}
    options = parse_source_options({**place, **_pairs(arguments.option), "topic": "any", "channel": "any"}).discovery
    return replace(
        options,
        lookupds=HTTP_ADDRESSES.parse(lookupds) if lookupds else (),
        nsqd_https=HTTP_ADDRESSES.parse(nsqds) if nsqds else (),
    )


def _place(arguments: argparse.Namespace) -> dict[str, str]:
    nsqds = _joined(arguments.nsqd_tcp_address)
    lookupds = _joined(arguments.lookupd_http_address) or ("" if nsqds else _default_lookupds())
    place = {"lookupdHttpAddresses": lookupds, "nsqdTcpAddresses": nsqds}
    return {**{name: text for name, text in place.items() if text}, **_pairs(arguments.option)}


def _default_lookupds() -> str:
    return os.environ.get(LOOKUPD_VARIABLE) or LOOKUPD_DEFAULT


def _joined(addresses: list[str] | None) -> str:
    return ",".join(addresses or ())


def _pairs(texts: list[str]) -> Mapping[str, str]:
    pairs = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark:
            raise OptionError(f"--option {text!r}: it has the form NAME=VALUE, as in --option tls=true")
        pairs[name] = value
    return pairs
