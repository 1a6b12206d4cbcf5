"""A crowd that does nothing: 5,000 connections, 1,000 topics with 5 channels each."""

import resource
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from daemons import Nsqd

CONNECTIONS = 5_000
TOPICS = 1_000
CHANNELS = 5
_SECONDS = 10.0


@contextmanager
def crowd(daemon: Nsqd) -> Iterator[None]:
    """Every connection subscribed to a channel of its own, answering heartbeats."""
    # Made one by one, each would be a write of all there are: Go's nsqd would need minutes, and end those that wait.
    daemon.restart_with(TOPICS, CHANNELS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    host, _, port = daemon.tcp.rpartition(":")
    members = []
    for number in range(CONNECTIONS):
        member = socket.create_connection((host, int(port)))
        member.sendall(b"  V2SUB topic%d c%d\nRDY 10\n" % (number % TOPICS, number // TOPICS % CHANNELS))
        members.append(member)
    for member in members:
        assert member.recv(10).endswith(b"OK")
    stop = threading.Event()
    keeper = threading.Thread(target=_answer_heartbeats, args=(members, stop), daemon=True)
    keeper.start()
    try:
        yield
    finally:
        stop.set()
        keeper.join()
        for member in members:
            member.close()


def percent_of_a_core(daemon: Nsqd) -> float:
    with crowd(daemon):
        time.sleep(2.0)
        before = daemon.cpu_seconds()
        time.sleep(_SECONDS)
        return (daemon.cpu_seconds() - before) / _SECONDS * 100


def _answer_heartbeats(members: list[socket.socket], stop: threading.Event) -> None:
    with selectors.DefaultSelector() as selector:
        for member in members:
            selector.register(member, selectors.EVENT_READ)
        while not stop.is_set():
            for key, _ in selector.select(0.2):
                member = key.fileobj
                assert isinstance(member, socket.socket)
                if b"_heartbeat_" in member.recv(4096):
                    member.sendall(b"NOP\n")
