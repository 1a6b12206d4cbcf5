"""nsqlookupd: the directory of which nsqd has which topic. Sockets and time around the registry and its sessions."""

import os
import sys
import time

from gevent import socket
from gevent.event import Event

from pyspark_nsq.broker import flags, json_go, signals
from pyspark_nsq.broker.http import HttpServer, Router
from pyspark_nsq.broker.limits import raise_file_limit
from pyspark_nsq.broker.listener import Acceptor, bind, local_port, local_text
from pyspark_nsq.broker.logs import Logger, exit_fatal
from pyspark_nsq.broker.lookupd_http import LookupdApi
from pyspark_nsq.broker.lookupd_options import LookupdOptions
from pyspark_nsq.broker.lookupd_registry import Registry
from pyspark_nsq.broker.lookupd_session import LookupdSession
from pyspark_nsq.broker.version import NSQ_VERSION, version_text

_MAGIC_TIMEOUT_S = 10.0  # nsqd sends it with the connection's first packet
# Between two commands of who has not said who it is. A registered nsqd may stay silent: /lookup leaves it out after
# --inactive-producer-timeout, and the system's keep-alive notices when its host is gone.
_UNIDENTIFIED_TIMEOUT_S = 60.0
_WRITE_TIMEOUT_S = 10.0
_RECV_BYTES = 16 * 1024


class Nsqlookupd:
    """The daemon: :meth:`start`, then :meth:`stop`."""

    def __init__(self, options: LookupdOptions) -> None:
        """Take the addresses; OSError names the one that cannot be had."""
        self.options = options
        self.log = Logger(options.log_prefix, options.log_level)
        self.log.info("%s", version_text("nsqlookupd"))
        self._registry = Registry()
        self._clock_base_ns = time.time_ns() - time.monotonic_ns()
        tcp_listener, http_listener = _bind(options.tcp_address), _bind(options.http_address)
        self._tcp = Acceptor(tcp_listener, self._serve, self.log)
        api = LookupdApi(self._registry, options, self.log, self._now_ns, lambda: len(self._tcp.connections))
        self._http = HttpServer(http_listener, Router(api.routes()), self.log)
        self._identity = json_go.dumps(
            {
                "broadcast_address": options.broadcast_address,
                "hostname": os.uname().nodename,
                "http_port": local_port(http_listener),
                "tcp_port": local_port(tcp_listener),
                "version": NSQ_VERSION,
            }
        )

    def start(self) -> None:
        self.log.info("TCP: listening on %s", local_text(self._tcp.listener))
        self._tcp.start()
        self._http.start()

    def stop(self) -> None:
        """Nothing is kept: the connections end, and nsqds register again with whoever comes next."""
        self.log.info("TCP: closing %s", local_text(self._tcp.listener))
        self._tcp.stop_accepting()
        self._tcp.kill_connections()
        self._http.stop()

    def _now_ns(self) -> int:
        """Unix time that no correction of the system's clock moves: nobody becomes inactive by one."""
        return self._clock_base_ns + time.monotonic_ns()

    def _serve(self, connection: socket.socket, peer: str) -> None:
        self.log.info("TCP: new client(%s)", peer)
        session = LookupdSession(peer, self._registry, lambda: self._identity, self.log)
        deadline = time.monotonic() + _MAGIC_TIMEOUT_S
        try:
            while not session.closing:
                connection.settimeout(None if session.peer is not None else max(0.001, deadline - time.monotonic()))
                data = connection.recv(_RECV_BYTES)
                was_greeted = session.greeted
                replies = session.receive(data, self._now_ns()) if data else session.receive_eof(self._now_ns())
                if replies:
                    connection.settimeout(_WRITE_TIMEOUT_S)
                    connection.sendall(replies)
                # A byte now and then is no sign of life: only what is answered is.
                if replies or session.greeted != was_greeted:
                    deadline = time.monotonic() + _UNIDENTIFIED_TIMEOUT_S
        finally:
            self.log.info("PROTOCOL(V1): [%s] exiting ioloop", peer)
            session.end()


def _bind(address: str) -> socket.socket:
    try:
        return bind(address)
    except OSError as error:
        raise OSError(f"listen ({address}) failed - {error}") from None


def main() -> int:
    """The console script."""
    options = flags.load(LookupdOptions, "nsqlookupd", sys.argv[1:])
    raise_file_limit()
    stopping = Event()
    signals.install(stopping.set)
    try:
        daemon = Nsqlookupd(options)
    except OSError as error:
        exit_fatal(Logger(options.log_prefix), "failed to instantiate nsqlookupd - %s", error)
    daemon.start()
    stopping.wait()
    daemon.stop()
    return 0
