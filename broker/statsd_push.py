"""Sends reports to a statsd over UDP, spread over the interval."""

from collections.abc import Callable, Iterable
from time import monotonic

from gevent import sleep, socket

from pyspark_nsq.broker.listener import split_host_port
from pyspark_nsq.broker.logs import Logger
from pyspark_nsq.broker.statsd import packets

# Packets leave evenly until this long before the next report is due.
_REST_SECONDS = 1.0


def push_for_ever(
    address: str, interval_seconds: float, packet_size_max: int, report: Callable[[], Iterable[str]], log: Logger
) -> None:
    """The body of a greenlet."""
    due = monotonic()
    while True:
        due = max(due + interval_seconds, monotonic())
        sleep(due - monotonic())
        try:
            _push(address, list(packets(report(), packet_size_max)), max(0.0, interval_seconds - _REST_SECONDS))
        except (OSError, ValueError) as error:
            log.error("failed to send stats to statsd(%s) - %s", address, error)
        else:
            log.info("STATSD: pushed stats to %s", address)


def _push(address: str, datagrams: list[bytes], spread_seconds: float) -> None:
    parts = split_host_port(address)
    if parts is None:
        raise ValueError(f"{address!r} is no <addr>:<port>")
    host, port = parts
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.connect(where)
        for datagram in datagrams:
            sender.send(datagram)
            sleep(spread_seconds / len(datagrams))
