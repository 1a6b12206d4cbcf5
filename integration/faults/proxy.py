"""A TCP proxy that misbehaves: it delays, drips, stalls, resets, forgets one side, refuses, or keeps back FINs.

Two threads a connection. What it does from now on is set in ``rules``; what it does to the connections there are,
by calling it. ``met`` counts whom that met: a fault that nobody came across is none. "Up" is from the one who connected
to the target, "down" the way back.
"""

import contextlib
import ctypes
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark_nsq.connector.settings import Address

_CHUNK = 64 * 1024
_SUBSCRIBED = re.compile(rb"SUB (\S+) \S+\n")
_HEAD_SIZE = 8192
_libc = ctypes.CDLL(None)
_UNSPECIFIED = bytes(16)

# What ``met`` counts: pieces that were late or kept waiting, connections, of those the first two new ones.
LATE = "late"
STALLED = "stalled"
REFUSED = "refused"
IGNORED = "ignored"
RESET = "reset"
FORGOTTEN = "forgotten"


@dataclass
class Rules:
    """What holds for every connection from now on."""

    # Each piece is so late, the later by a random part of the jitter.
    delay_s: float = 0.0
    jitter_s: float = 0.0
    # Where a packet is lost TCP sends it again: the piece is later by this, with this chance.
    loss: float = 0.0
    loss_delay_s: float = 0.3
    # The most in one piece, each of which costs the delay: a slow drip.
    piece_size: int = _CHUNK
    # Nothing goes through, nothing is lost: as behind a cable that is pulled.
    stall_up: bool = False
    stall_down: bool = False
    # New connections are reset, or taken and never answered.
    refuse: bool = False
    ignore: bool = False


@dataclass(eq=False)
class _Link:
    """A connection and the one made for it."""

    client: socket.socket
    target: socket.socket | None = None
    topic: str = ""
    head: bytes = b""
    held: list[bytes] = field(default_factory=list)
    is_forgotten: bool = False

    def close(self, is_reset: bool) -> None:
        for sock in (self.client, self.target):
            if sock is not None:
                with contextlib.suppress(OSError):
                    if is_reset:
                        # To connect to nobody sends RST, though a thread waits in recv().
                        _libc.connect(sock.fileno(), _UNSPECIFIED, len(_UNSPECIFIED))
                    sock.shutdown(socket.SHUT_RDWR)
                with contextlib.suppress(OSError):
                    sock.close()


class Proxy:
    """Listens on loopback and passes on to ``target``, which may be known later, and may change.

    Where connections are brief, as with HTTP, there is mostly none: then what is done to those there are is done to the
    next one, as soon as it says something.
    """

    def __init__(self, target: Callable[[], Address], seed: int = 0, *, are_brief: bool = False) -> None:
        self.rules = Rules()
        self.met: Counter[str] = Counter()
        self.passed_bytes = 0
        self._target = target
        self._are_brief = are_brief
        self._due = ""
        self._chance = random.Random(seed)
        self._changed = threading.Condition()
        self._links: set[_Link] = set()
        self._kept_topics: set[str] = set()
        self._is_closed = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._links)

    def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    # What is done to the connections there are.

    def heal(self) -> None:
        """Everything goes through again. Connections that were forgotten stay so."""
        with self._changed:
            self.rules, self._due = Rules(), ""
            self._changed.notify_all()

    def reset(self) -> None:
        """End every connection with RST, both ways."""
        self._strike_all(RESET)

    def forget(self) -> None:
        """Close the target's side only: the other side believes that it is still connected."""
        self._strike_all(FORGOTTEN)

    def _strike_all(self, what: str) -> None:
        with self._changed:
            if self._are_brief and not self._links:
                self._due = what
            for link in list(self._links):
                self._strike(link, what)
            self._changed.notify_all()

    def _strike(self, link: _Link, what: str) -> None:
        if what == FORGOTTEN and link.is_forgotten:
            return
        self.met[what] += 1
        if what == RESET:
            self._links.discard(link)
            link.close(is_reset=True)
            return
        link.is_forgotten = True
        if link.target is not None:
            with contextlib.suppress(OSError):
                link.target.shutdown(socket.SHUT_RDWR)

    def _strike_if_due(self, link: _Link) -> None:
        with self._changed:
            what, self._due = self._due, ""
            if what:
                self._strike(link, what)

    # FINs of a topic's connections can be kept back.

    def keep_fins(self, topic: str) -> None:
        with self._changed:
            self._kept_topics.add(topic)

    def kept_fins(self, topic: str) -> int:
        with self._changed:
            return sum(b"".join(link.held).count(b"FIN ") for link in self._links if link.topic == topic)

    def release_fins(self, topic: str, drop: bool) -> None:
        """Pass on what was kept back, or lose it with its connections."""
        with self._changed:
            self._kept_topics.discard(topic)
            links = [link for link in self._links if link.topic == topic and link.held]
            for link in links:
                held, link.held = b"".join(link.held), []
                if drop:
                    link.close(is_reset=True)
                elif link.target is not None:
                    with contextlib.suppress(OSError):
                        link.target.sendall(held)

    # The threads.

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._is_closed:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        link = _Link(client)
        if self._is_closed or self.rules.refuse:
            self._count(REFUSED)
            link.close(is_reset=True)
            return
        with self._changed:
            self._links.add(link)
        self._wait_while(link, lambda: self.rules.ignore, IGNORED)
        try:
            link.target = socket.create_connection(self._target(), timeout=5)
        except OSError:
            self._end(link, is_reset=True)
            return
        link.target.settimeout(None)
        link.target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        up = threading.Thread(target=self._pump_up, args=(link,), daemon=True)
        up.start()
        self._pump_down(link)
        up.join()
        self._end(link, is_reset=False)

    def _end(self, link: _Link, is_reset: bool) -> None:
        with self._changed:
            self._links.discard(link)
        link.close(is_reset)

    def _pump_up(self, link: _Link) -> None:
        assert link.target is not None
        with contextlib.suppress(OSError):
            while data := link.client.recv(self.rules.piece_size):
                self._strike_if_due(link)
                self._wait_while(link, lambda: self.rules.stall_up, STALLED)
                self._dawdle()
                if not link.is_forgotten and not self._keep(link, data):
                    link.target.sendall(data)
                    self._count_passed(data)
        if not link.held:
            with contextlib.suppress(OSError):
                link.target.shutdown(socket.SHUT_WR)
        if link.is_forgotten or link.held:
            # The other direction has ended long ago, or has to.
            self._end(link, is_reset=True)

    def _pump_down(self, link: _Link) -> None:
        assert link.target is not None
        with contextlib.suppress(OSError):
            while data := link.target.recv(self.rules.piece_size):
                self._wait_while(link, lambda: self.rules.stall_down, STALLED)
                self._dawdle()
                link.client.sendall(data)
                self._count_passed(data)
        if not link.is_forgotten:
            with contextlib.suppress(OSError):
                link.client.shutdown(socket.SHUT_WR)

    def _dawdle(self) -> None:
        rules = self.rules
        late = rules.delay_s + self._chance.random() * rules.jitter_s
        if rules.loss and self._chance.random() < rules.loss:
            late += rules.loss_delay_s
        if late:
            self._count(LATE)
            time.sleep(late)

    def _wait_while(self, link: _Link, holds: Callable[[], bool], what: str) -> None:
        if holds():
            self._count(what)
            with self._changed:
                self._changed.wait_for(lambda: not holds() or link not in self._links)

    def _count(self, what: str) -> None:
        with self._changed:
            self.met[what] += 1

    def _count_passed(self, data: bytes) -> None:
        with self._changed:
            self.passed_bytes += len(data)

    def _keep(self, link: _Link, data: bytes) -> bool:
        """Whether these bytes are kept back, as everything is from the first FIN on."""
        with self._changed:
            if not link.topic and len(link.head) < _HEAD_SIZE:
                link.head += data
                if match := _SUBSCRIBED.search(link.head):
                    link.topic, link.head = match[1].decode(), b""
            if link.topic not in self._kept_topics or not (link.held or b"FIN " in data):
                return False
            link.held.append(data)
            return True
