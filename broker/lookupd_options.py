"""The options of nsqlookupd."""

# ruff: noqa: RUF009 (flag() declares a field, as dataclasses.field() does)

import os
from dataclasses import dataclass

from pyspark_nsq.broker.durations import MINUTE, SECOND
from pyspark_nsq.broker.flag_kinds import DURATION, LOG_LEVEL, STRING
from pyspark_nsq.broker.flags import flag
from pyspark_nsq.broker.logs import Level


@dataclass(frozen=True, kw_only=True)
class LookupdOptions:
    """What nsqlookupd was started with; times are nanoseconds."""

    log_level: Level = flag("log-level", LOG_LEVEL, Level.INFO, "set log verbosity: debug, info, warn, error, or fatal")
    log_prefix: str = flag("log-prefix", STRING, "[nsqlookupd] ", "log message prefix")

    tcp_address: str = flag("tcp-address", STRING, "0.0.0.0:4160", "<addr>:<port> to listen on for TCP clients")
    http_address: str = flag("http-address", STRING, "0.0.0.0:4161", "<addr>:<port> to listen on for HTTP clients")
    broadcast_address: str = flag(
        "broadcast-address",
        STRING,
        os.uname().nodename,
        "address of this lookupd node, (default to the OS hostname)",
    )

    inactive_producer_timeout_ns: int = flag(
        "inactive-producer-timeout",
        DURATION,
        5 * MINUTE,
        "duration of time a producer will remain in the active list since its last ping",
    )
    tombstone_lifetime_ns: int = flag(
        "tombstone-lifetime",
        DURATION,
        45 * SECOND,
        "duration of time a producer will remain tombstoned if registration remains",
    )
