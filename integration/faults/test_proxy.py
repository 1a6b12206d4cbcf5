"""A proxy that does what it says, and says whom it met."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from rig.daemons import wait_until

from faults.network import FAULTS, SINK_NSQD, Fault, ProxyTrouble, beside
from faults.proxy import FORGOTTEN, RESET, Proxy, Rules
from pyspark_nsq.connector.settings import Address


class Echo:
    """Sends back what it gets."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, suppress(ConnectionError):
            while data := sock.recv(65536):
                sock.sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    proxy = Proxy(lambda: echo.address)
    yield proxy
    proxy.close()


@pytest.fixture
def brief(echo: Echo) -> Iterator[Proxy]:
    """Nobody stays connected to it."""
    proxy = Proxy(lambda: echo.address, are_brief=True)
    yield proxy
    proxy.close()


def dial(proxy: Proxy) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", proxy.port), timeout=20)
    sock.settimeout(20)
    return sock


def test_a_proxy_passes_on(proxy: Proxy) -> None:
    proxy.rules = Rules(piece_size=3, jitter_s=0.001)
    with dial(proxy) as sock:
        sock.sendall(b"hello, world")
        got = b""
        while len(got) < 12:
            got += sock.recv(100)
        assert got == b"hello, world"
    wait_until(lambda: proxy.passed_bytes == 24, "both ways")


def test_a_stalled_proxy_loses_nothing(proxy: Proxy) -> None:
    with dial(proxy) as sock:
        proxy.rules = Rules(stall_up=True)
        sock.sendall(b"late")
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(100)
        sock.settimeout(20)
        proxy.heal()
        assert sock.recv(100) == b"late"


def test_a_reset_is_a_reset(proxy: Proxy) -> None:
    with dial(proxy) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


def test_a_forgotten_connection_is_silent(proxy: Proxy) -> None:
    with dial(proxy) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        proxy.forget()
        sock.sendall(b"is anybody there?")
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sock.recv(1)


def test_fins_of_a_topic_are_kept_back(proxy: Proxy) -> None:
    proxy.keep_fins("mine")
    with dial(proxy) as mine, dial(proxy) as other:
        mine.sendall(b"SUB mine c\n")
        other.sendall(b"SUB other c\n")
        assert mine.recv(100) == b"SUB mine c\n"
        assert other.recv(100) == b"SUB other c\n"
        mine.sendall(b"FIN 0123456789abcdef\n")
        other.sendall(b"FIN 0123456789abcdef\n")
        assert other.recv(100).startswith(b"FIN")
        wait_until(lambda: proxy.kept_fins("mine") == 1, "a kept FIN")
        assert proxy.kept_fins("other") == 0
        proxy.release_fins("mine", drop=False)
        assert mine.recv(100).startswith(b"FIN")


# Whom it meets.


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_that_nobody_comes_across_is_seen(proxy: Proxy, fault: Fault) -> None:
    trouble = ProxyTrouble(fault, [proxy], lambda: None)
    for _ in range(2):
        trouble.begin()
        trouble.again()
        assert not trouble.has_met()
        come_across(proxy, trouble)
        assert trouble.has_met()
        trouble.heal()
        assert exchange(proxy)
        wait_until(lambda: not proxy.connections, "the end of the connection")


def come_across(proxy: Proxy, trouble: ProxyTrouble) -> None:
    """Connect and say something, and be connected while something is done; a lost piece may take some tries."""
    for _ in range(100):
        with suppress(OSError), dial(proxy) as sock:
            sock.sendall(bytes(100))
            wait_until(lambda: proxy.met or proxy.connections, "the connection")
            trouble.again()
        if trouble.has_met():
            return
        time.sleep(0.02)


def exchange(proxy: Proxy) -> bytes:
    """What comes back."""
    with dial(proxy) as sock:
        sock.sendall(b"x")
        return sock.recv(1)


@pytest.mark.parametrize(("strike", "what"), [(Proxy.reset, RESET), (Proxy.forget, FORGOTTEN)])
def test_where_connections_are_brief_the_next_one_is_struck(
    brief: Proxy, strike: Callable[[Proxy], None], what: str
) -> None:
    assert exchange(brief) == b"x"
    wait_until(lambda: not brief.connections, "the end of the connection")
    strike(brief)
    assert not brief.met
    with dial(brief) as sock:
        sock.settimeout(0.3)
        sock.sendall(b"x")
        with pytest.raises((ConnectionResetError, TimeoutError)):
            sock.recv(1)
    wait_until(lambda: brief.met, "a connection that was struck")
    assert brief.met == {what: 1}
    assert exchange(brief) == b"x"
    wait_until(lambda: not brief.connections, "the end of the connection")
    strike(brief)
    brief.heal()
    assert exchange(brief) == b"x"


def test_a_connection_is_forgotten_once(proxy: Proxy) -> None:
    with dial(proxy) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        proxy.forget()
        proxy.forget()
    assert proxy.met == {FORGOTTEN: 1}


def test_what_goes_past_a_proxy_is_seen(proxy: Proxy) -> None:
    published = [bytes(100)] * 10
    assert beside(SINK_NSQD, [proxy], published) == "0 bytes went through the proxy, where 1000 should have"
    with dial(proxy) as sock:
        sock.sendall(b"".join(published))
        wait_until(lambda: proxy.passed_bytes >= 1000, "all of it")
    assert beside(SINK_NSQD, [proxy], published) == ""
