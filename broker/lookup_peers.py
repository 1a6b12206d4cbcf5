"""nsqd's nsqlookupds: one greenlet for each keeps its connection and what is registered there.

A connection that ends is made anew at once, and after a failed attempt with a pause that grows to a few seconds:
a restarted nsqlookupd knows this nsqd again long before the next ping is due. What was deleted there while it lives
here comes back within a minute.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import quote

import gevent
from gevent import socket
from gevent.event import Event

from pyspark_nsq.broker.http_client import HttpClient, HttpClientError
from pyspark_nsq.broker.logs import Logger
from pyspark_nsq.broker.lookup_session import LookupSession, Registration
from pyspark_nsq.proto.errors import WireError
from pyspark_nsq.proto.names import is_ephemeral, is_valid_name

PING_SECONDS: Final = 15.0
# Registering again changes nothing where the name is still known. Not with each ping: who deletes a topic everywhere
# begins with the nsqlookupds, and should have come to this nsqd before the name is back.
_PINGS_A_REFRESH: Final = 4
# As long as Go's nsqd waits for each of connecting, writing and an answer.
_PATIENCE_SECONDS: Final = 1.0
_RETRY_SECONDS_MIN: Final = 0.1
_RETRY_SECONDS_MAX: Final = 5.0
_READ_SIZE: Final = 64 * 1024


class LookupPeer:
    """The connection to one nsqlookupd, in whatever state it is."""

    def __init__(
        self,
        address: str,
        identity: Mapping[str, object],
        registrations: Callable[[], Iterable[Registration]],
        answer_size_max: int,
        log: Logger,
    ) -> None:
        self.address = address
        self._identity = identity
        self._registrations = registrations
        self._answer_size_max = answer_size_max
        self._log = log
        self._session: LookupSession | None = None
        self._unsent: list[bytes] = []
        self._work = Event()
        self._greenlet = gevent.spawn(self._run)

    @property
    def http_address(self) -> str:
        """Where this nsqlookupd can be asked over HTTP; empty while it is not known or not connected."""
        return self._session.info.http_address if self._session and self._session.info else ""

    def register(self, topic: str, channel: str | None = None) -> None:
        if self._session and self._session.info:
            self._send(self._session.register(topic, channel))

    def unregister(self, topic: str, channel: str | None = None) -> None:
        if self._session and self._session.info:
            self._send(self._session.unregister(topic, channel))

    def stop(self) -> None:
        self._greenlet.kill(block=False)

    def _send(self, command: bytes) -> None:
        self._unsent.append(command)
        self._work.set()

    def _run(self) -> None:
        pause = 0.0
        while True:
            gevent.sleep(pause)
            self._log.info("LOOKUP connecting to %s", self.address)
            try:
                connection = self._connect()
            except (OSError, ValueError) as error:
                self._log.error("LOOKUPD(%s): %s", self.address, error)
                pause = min(max(2 * pause, _RETRY_SECONDS_MIN), _RETRY_SECONDS_MAX)
                continue
            identified = self._talk(connection)
            pause = _RETRY_SECONDS_MIN if identified else min(max(2 * pause, _RETRY_SECONDS_MIN), _RETRY_SECONDS_MAX)

    def _connect(self) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_SECONDS)

    def _talk(self, connection: socket.socket) -> bool:
        """Serve one connection until it ends; whether the nsqlookupd ever answered."""
        session = self._session = LookupSession(self._answer_size_max)
        self._unsent = [session.greet(self._identity)]
        self._work.set()
        connection.settimeout(None)
        reader = gevent.spawn(self._read, connection, session)
        try:
            self._write(connection, session, reader)
        except (OSError, WireError) as error:
            self._log.error("LOOKUPD(%s): %s", self.address, error)
        finally:
            self._session = None
            reader.kill()
            connection.close()
        return session.info is not None

    def _read(self, connection: socket.socket, session: LookupSession) -> None:
        try:
            while data := connection.recv(_READ_SIZE):
                info = session.info
                for complaint in session.receive(data):
                    self._log.error("LOOKUPD(%s): %s", self.address, complaint)
                if session.info is not info:
                    self._log.info("LOOKUPD(%s): peer info %s", self.address, session.info)
                    self._unsent.append(session.register_all(self._registrations()))
                self._work.set()
            self._log.error("LOOKUPD(%s): connection closed", self.address)
        except (OSError, WireError) as error:
            self._log.error("LOOKUPD(%s): %s", self.address, error)
        finally:
            self._work.set()

    def _write(self, connection: socket.socket, session: LookupSession, reader: gevent.Greenlet) -> None:
        pings, ping_at = 0, time.monotonic() + PING_SECONDS
        while not reader.dead:
            self._work.clear()
            if self._unsent:
                data, self._unsent = b"".join(self._unsent), []
                with gevent.Timeout(_PATIENCE_SECONDS + len(data) / _READ_SIZE, WireError("cannot write")):
                    connection.sendall(data)
            awaited = session.awaited
            worked = self._work.wait(_PATIENCE_SECONDS if awaited else max(ping_at - time.monotonic(), 0))
            if not worked and awaited and session.awaited == awaited:
                raise WireError(f"{awaited} answers are overdue")
            # However much else is said: only pings tell nsqlookupd that this nsqd is alive.
            if session.info and time.monotonic() >= ping_at:
                pings, ping_at = pings + 1, time.monotonic() + PING_SECONDS
                self._send(session.ping())
                if pings % _PINGS_A_REFRESH == 0:
                    self._send(session.register_all(self._registrations()))


class LookupPeers:
    """All nsqlookupds of this nsqd. The list may change at any time."""

    def __init__(
        self,
        identity: Mapping[str, object],
        registrations: Callable[[], Iterable[Registration]],
        answer_size_max: int,
        client: HttpClient,
        log: Logger,
    ) -> None:
        self._identity = identity
        self._registrations = registrations
        self._answer_size_max = answer_size_max
        self._client = client
        self._log = log
        self._peers: dict[str, LookupPeer] = {}

    def __bool__(self) -> bool:
        return bool(self._peers)

    def set_addresses(self, addresses: Iterable[str]) -> None:
        wanted = dict.fromkeys(addresses)
        for address in self._peers.keys() - wanted.keys():
            self._log.info("LOOKUP(%s): removing peer", address)
            self._peers.pop(address).stop()
        for address in wanted:
            if address not in self._peers:
                self._log.info("LOOKUP(%s): adding peer", address)
                self._peers[address] = LookupPeer(
                    address, self._identity, self._registrations, self._answer_size_max, self._log
                )

    def register(self, topic: str, channel: str | None = None) -> None:
        for peer in self._peers.values():
            peer.register(topic, channel)

    def unregister(self, topic: str, channel: str | None = None) -> None:
        for peer in self._peers.values():
            peer.unregister(topic, channel)

    def stop(self) -> None:
        for peer in self._peers.values():
            peer.stop()

    def channels_of(self, topic: str) -> list[str]:
        """The lasting channels that any nsqlookupd knows of a topic. Blocks its greenlet; failures are logged."""
        addresses = [peer.http_address for peer in self._peers.values() if peer.http_address]
        questions = [gevent.spawn(self._ask_channels, address, topic) for address in addresses]
        gevent.joinall(questions)
        names = {name for question in questions for name in question.value or ()}
        return sorted(name for name in names if not is_ephemeral(name))

    def _ask_channels(self, address: str, topic: str) -> list[str]:
        url = f"http://{address}/channels?topic={quote(topic, safe='')}"
        try:
            channels = json.loads(self._client.get(url)).get("channels") or []
        except (HttpClientError, ValueError, AttributeError, RecursionError) as error:
            self._log.error("failed to query %s for channels of %s: %s", address, topic, error)
            return []
        valid = []
        with suppress(TypeError):
            valid = [name for name in channels if isinstance(name, str) and is_valid_name(name)]
        return valid
