"""Listening sockets, their addresses as Go writes them, and a greenlet for each accepted connection."""

import errno
import os
import socket as std_socket
from collections.abc import Callable

import gevent
from gevent import socket
from gevent.greenlet import Greenlet

from pyspark_nsq.broker.logs import Logger

_ACCEPTED_BEFORE_YIELD = 64  # a flood of connections must not keep the others waiting
_WAIT_WITHOUT_FDS_S = 0.1
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_KEEPALIVE_SECONDS = 15  # as Go's
_WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104 (compared with, not bound to)
_PORT_MAX = 65535
_IPV4_IN_IPV6 = "::ffff:"


def split_host_port(address: str) -> tuple[str, str] | None:
    """``host:port`` or ``[ipv6]:port`` in its parts, or None if it is neither (nsqd then takes it as a path)."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return None
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        return None if "[" in host or "]" in host else (host, port)
    return None if ":" in host or "[" in host or "]" in host else (host, port)


def join_host_port(host: str, port: int | str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bind(address: str, *, unix_allowed: bool = False) -> socket.socket:
    """A socket that listens on ``address``; OSError says why it cannot. A wildcard listens on IPv4 and IPv6. With
    ``unix_allowed`` an address without a port is the path of a unix socket, which must not exist yet."""
    parts = split_host_port(address)
    if parts is None:
        if not unix_allowed:
            raise OSError(errno.EINVAL, f"{address!r} is no <addr>:<port>")
        return _listen(socket.AF_UNIX, address, reuse=False)
    host, port = parts[0], _port_number(parts[1])
    if host in _WILDCARDS and socket.has_ipv6:
        try:
            return _listen(socket.AF_INET6, ("::", port), reuse=True)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    found = std_socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)  # noqa: S104
    family, *_, where = min(found, key=lambda item: item[0] != socket.AF_INET)  # IPv4 first, as Go does
    return _listen(family, where, reuse=True)


def _port_number(port: str) -> int:
    """Of a number or of a service's name. Checked here: getaddrinfo takes 70000 for 4464."""
    if port.isdigit() and int(port) > _PORT_MAX:
        raise OSError(errno.EINVAL, f"{port} is no port")
    return int(std_socket.getaddrinfo("127.0.0.1", port or "0", type=socket.SOCK_STREAM)[0][4][1])


def _listen(family: int, where: object, *, reuse: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if reuse:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(where[0] != "::"))  # type: ignore[index]
        listener.bind(where)
        listener.listen(socket.SOMAXCONN)
    except BaseException:
        listener.close()
        raise
    return listener


def local_text(listener: socket.socket) -> str:
    """The address in "TCP: listening on ADDR", with the real port."""
    return _address_text(listener.getsockname())


def local_port(listener: socket.socket) -> int | None:
    """The port, None of a unix socket."""
    name = listener.getsockname()
    return name[1] if isinstance(name, tuple) else None


def _address_text(name: object) -> str:
    if isinstance(name, tuple):
        host, port = name[:2]
        return join_host_port(host.removeprefix(_IPV4_IN_IPV6) if "." in host else host, port)
    return str(name) or "@"  # an unnamed unix socket, in Go's words


def set_up(connection: std_socket.socket) -> None:
    """What is said leaves at once, and a peer whose host has gone without a word is missed after minutes, not hours."""
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_SECONDS)


class Acceptor:
    """A greenlet that accepts, and one for each connection, which runs ``serve(connection, peer)`` and owns the
    socket only so long: it is closed when ``serve`` ends. ``peer`` is ``host:port``, or ``@`` on a unix socket."""

    def __init__(self, listener: socket.socket, serve: Callable[[socket.socket, str], None], log: Logger) -> None:
        self.listener = listener
        self.connections: set[Greenlet] = set()
        self._serve = serve
        self._log = log
        self._unix_path = listener.getsockname() if listener.family == socket.AF_UNIX else ""
        self._loop: Greenlet | None = None

    def start(self) -> None:
        self._loop = gevent.spawn(self._accept_for_ever)

    def stop_accepting(self) -> None:
        """Close the listening socket; connections live on. May be called twice."""
        if self._loop is not None:
            self._loop.kill()
            self._loop = None
        if not self.listener.closed:
            self.listener.close()
            if self._unix_path and os.path.exists(self._unix_path):
                os.unlink(self._unix_path)

    def kill_connections(self) -> None:
        """End every connection's greenlet, wherever it waits."""
        gevent.killall(list(self.connections))

    def _accept_for_ever(self) -> None:
        accepted = 0
        while True:
            try:
                connection, name = self.listener.accept()
            except OSError as error:
                self._log.warning("temporary Accept() failure - %s", error)
                gevent.sleep(_WAIT_WITHOUT_FDS_S if error.errno in _OUT_OF_RESOURCES else 0)
                continue
            greenlet = Greenlet(self._run, connection, _address_text(name))
            self.connections.add(greenlet)
            greenlet.rawlink(self.connections.discard)
            greenlet.start()
            accepted += 1
            if accepted % _ACCEPTED_BEFORE_YIELD == 0:
                gevent.sleep(0)

    def _run(self, connection: socket.socket, peer: str) -> None:
        try:
            set_up(connection)
            self._serve(connection, peer)
        except OSError as error:
            self._log.debug("[%s] connection ended - %s", peer, error)
        except Exception:
            import traceback

            self._log.error("[%s] connection ended by a bug - %s", peer, traceback.format_exc())
        finally:
            connection.close()
