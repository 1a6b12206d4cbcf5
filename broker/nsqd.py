"""nsqd: the engine, its clients, its HTTP API and its nsqlookupds, wired together."""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import gevent
from gevent import get_hub, socket
from gevent.event import Event
from gevent.threadpool import ThreadPool

from pyspark_nsq.broker import flags, signals
from pyspark_nsq.broker.auth import AuthError, AuthQuestion, AuthState, endpoint, parse_answer, shown
from pyspark_nsq.broker.channel import Channel, Consumer
from pyspark_nsq.broker.clock import Clock
from pyspark_nsq.broker.connections import Connections
from pyspark_nsq.broker.durations import MILLISECOND, SECOND
from pyspark_nsq.broker.engine import Engine, EngineOptions, SyncJob
from pyspark_nsq.broker.engine import Event as EngineEvent
from pyspark_nsq.broker.files import Files
from pyspark_nsq.broker.http import Gate, HttpServer, Router
from pyspark_nsq.broker.http_messages import Request, Response
from pyspark_nsq.broker.limits import raise_file_limit
from pyspark_nsq.broker.listener import bind, local_port, local_text
from pyspark_nsq.broker.logs import Logger, exit_fatal
from pyspark_nsq.broker.metadata import MetadataError
from pyspark_nsq.broker.nsqd_http import NsqdApi
from pyspark_nsq.broker.nsqd_options import DEPRECATED_FLAGS, HOSTNAME, NsqdOptions, TlsRequired
from pyspark_nsq.broker.session import Session, Subscriber
from pyspark_nsq.broker.statsd import StatsdReport, key_prefix
from pyspark_nsq.broker.timers import LoopTimer, Timers
from pyspark_nsq.broker.topic import Ticket, Topic
from pyspark_nsq.broker.turn import Turn
from pyspark_nsq.broker.version import NSQ_VERSION, version_text
from pyspark_nsq.proto.parser import Limits

if TYPE_CHECKING:
    from pyspark_nsq.broker.http_client import HttpClient
    from pyspark_nsq.broker.lookup_peers import LookupPeers


# Topics that keep their files open, two each; never more than a quarter of what the process may have.
_OPEN_LOGS_MAX: Final = 2048
# For HTTP, nsqlookupds, auth servers, and files that are open for a moment.
_FILES_KEPT_FREE: Final = 256
# Clients that wait for the start are answered first.
_WARM_UP_AFTER_S = 0.2


def _warm_up() -> None:
    """Import what the first run of FINs would otherwise have to wait for."""
    import pyspark_nsq.proto.runs  # noqa: F401


class Nsqd:
    """The daemon: ``start``, then ``stop``."""

    def __init__(self, options: NsqdOptions) -> None:
        """Load what is stored and take the addresses; OSError and the like say what cannot be had."""
        self.clock = Clock()
        self.now = self.clock.now
        self.log = Logger(options.log_prefix, options.log_level)
        self.log.info("%s", version_text("nsqd"))
        self.log.info("ID: %d", options.node_id)
        self.exiting = False
        self.started_at = self.now()
        self.limits = Limits(
            options.max_msg_size,
            options.max_body_size,
            options.max_rdy_count,
            options.max_req_timeout_ns // MILLISECOND,
        )
        self.tls_context = _tls_context(options)
        files_max = raise_file_limit()
        open_logs_max = max(1, min(_OPEN_LOGS_MAX, files_max // 8))
        self.engine = Engine(_engine_options(options, open_logs_max, self.log), Files(), self.started_at)
        self._bind(options)
        self._loop = get_hub().loop
        self._timers = Timers()
        self._timer = LoopTimer(self._loop, self.now, self._on_timer)
        self._wall_seen_at = self.started_at
        self.turn = Turn(
            self.engine, self.now, self._loop.run_callback, self._start_sync, self._on_events, self._timer.set
        )
        self._connections = Connections(
            self,
            self.turn,
            self._timers,
            self._loop,
            self.now,
            self._ask_auth,
            self._timer.set,
            files_max - 2 * open_logs_max - min(_FILES_KEPT_FREE, files_max // 4),
        )
        # Not one of the hub's: they may all wait for a DNS server, and the loop cannot wait for them.
        self._sync_thread = ThreadPool(1)
        self._syncing: Any = None
        self._lookup: LookupPeers | None = None
        self._http_client: HttpClient | None = None
        self._statsd: gevent.Greenlet | None = None

    def _bind(self, options: NsqdOptions) -> None:
        self._tcp_listener = _listener(options.tcp_address, unix_allowed=True)
        self.tcp_port = _port(self._tcp_listener)
        listeners = []
        if options.http_address:
            listeners.append(("HTTP", _listener(options.http_address, unix_allowed=True), None))
        self.http_port = _port(listeners[0][1]) if listeners else -1
        if self.tls_context is not None and options.https_address:
            listeners.append(("HTTPS", _listener(options.https_address, unix_allowed=False), self.tls_context))
        self._https_port = _port(listeners[-1][1]) if listeners and listeners[-1][0] == "HTTPS" else -1
        broadcast_http_port = options.broadcast_http_port or max(self.http_port, 0)
        self.options = replace(
            options,
            statsd_prefix=key_prefix(options.statsd_prefix, f"{options.broadcast_address}:{broadcast_http_port}"),
            tls_required=options.tls_demanded,
            broadcast_tcp_port=options.broadcast_tcp_port or max(self.tcp_port, 0),
            broadcast_http_port=broadcast_http_port,
        )
        router = Router(NsqdApi(self).routes())
        self._http = [
            HttpServer(listener, router, self.log, name=name, tls=tls, gate=self._gate(tls is not None))
            for name, listener, tls in listeners
        ]

    def _gate(self, tls: bool) -> Gate | None:
        """What asks first, for every request."""
        if not tls and self.options.tls_required == TlsRequired.YES:
            return self._refuse_plain
        if not self.options.http_require_auth:
            return None
        from pyspark_nsq.broker.http_auth import HttpAuth

        return HttpAuth(self._authorize, self.now, tls=tls).gate

    def _refuse_plain(self, _: Request) -> Response:
        body = f'{{"message": "TLS_REQUIRED", "https_port": {self._https_port}}}'
        headers = (("X-NSQ-Content-Type", "nsq; version=1.0"),)
        return Response(403, body.encode(), "application/json; charset=utf-8", headers)

    def start(self) -> None:
        self.log.info("TCP: listening on %s", local_text(self._tcp_listener))
        self._connections.listen(_plain_socket(self._tcp_listener))
        for server in self._http:
            server.start()
        self.set_options(self.options)
        self._start_statsd()
        self.turn.request()
        gevent.spawn_later(_WARM_UP_AFTER_S, _warm_up)

    def stop(self) -> None:
        """Close the clients, then persist everything."""
        self.exiting = True
        self.log.info("TCP: closing")
        self._connections.stop_accepting()
        for server in self._http:
            server.stop()
        self._connections.close_all()
        if self._lookup is not None:
            self._lookup.stop()
        if self._statsd is not None:
            self._statsd.kill(block=False)
        self._timer.stop()
        while self._syncing is not None:  # the files must not be closed under it
            self._syncing.wait()
            gevent.sleep(0)
        self.engine.close(self.now())
        self.log.info("bye")

    # What sessions, the API and the turn ask for

    def sessions(self) -> list[Session]:
        return self._connections.sessions()

    def wake(self, channel: Channel, consumer: Consumer) -> None:
        self.turn.wake(channel, consumer)

    def wait_for(self, ticket: Ticket) -> None:
        self.turn.wait_until(lambda: ticket.done)

    def wait_for_start(self, topic: Topic) -> None:
        self.turn.wait_until(lambda: topic.started or topic.deleted)

    def changed(self) -> None:
        self.turn.request()

    def close_consumers(self, channel: Channel) -> None:
        for consumer in list(channel.consumers):
            if isinstance(consumer, Subscriber):
                consumer.session.owner.close()

    def set_options(self, options: NsqdOptions) -> None:
        """Take over what may change while running."""
        self.options = options
        self.log.level = options.log_level
        if options.lookupd_tcp_addresses or self._lookup is not None:
            self._lookup_peers().set_addresses(options.lookupd_tcp_addresses or ())

    # Time and fsync

    def _on_timer(self) -> None:
        now = self.now()
        if now - self._wall_seen_at > SECOND:
            self._wall_seen_at = now
            self.engine.follow_wall(self.clock.wall_ahead(), now)
        self._timers.run(now)
        self._timer.set(self._timers.next_deadline)
        self.turn.request()

    def _start_sync(self, job: SyncJob) -> None:
        self._syncing = self._sync_thread.spawn(job.run)
        self._syncing.rawlink(lambda _: self._synced(job))

    def _synced(self, job: SyncJob) -> None:
        self._syncing = None
        self.turn.synced(job)

    # nsqlookupd

    def _lookup_peers(self) -> "LookupPeers":
        if self._lookup is None:
            from pyspark_nsq.broker.lookup_peers import LookupPeers

            identity: dict[str, object] = {
                "broadcast_address": self.options.broadcast_address,
                "hostname": HOSTNAME,
                "http_port": self.options.broadcast_http_port,
                "tcp_port": self.options.broadcast_tcp_port,
                "version": NSQ_VERSION,
            }
            if self.options.topology_region or self.options.topology_zone:
                identity["topology_region"] = self.options.topology_region
                identity["topology_zone"] = self.options.topology_zone
            self._lookup = LookupPeers(
                identity, self._registrations, self.options.max_body_size, self._client(), self.log
            )
        return self._lookup

    def _registrations(self) -> list[tuple[str, str | None]]:
        found: list[tuple[str, str | None]] = []
        for topic in self.engine.topics.values():
            found.extend((topic.name, channel) for channel in topic.channels)
            if not topic.channels:
                found.append((topic.name, None))
        return found

    def _on_events(self, events: list[EngineEvent]) -> None:
        """Topics and channels came or went: new topics are to be started, nsqlookupds are to be told."""
        for event in events:
            if event.kind == "topic_created":
                self._start_topic(event.topic)
            if self._lookup is None:
                continue
            if event.kind.endswith("_created"):
                self._lookup.register(event.topic, event.channel)
            else:
                self._lookup.unregister(event.topic, event.channel)

    def _start_topic(self, name: str) -> None:
        topic = self.engine.topics.get(name)
        if topic is None or topic.started:
            return
        if self._lookup:
            gevent.spawn(self._look_up_and_start, name, self._lookup)
        else:
            topic.start(self.now())

    def _look_up_and_start(self, name: str, lookup: "LookupPeers") -> None:
        """The first message of a new topic is to reach every channel that exists elsewhere."""
        channels = lookup.channels_of(name)
        topic = self.engine.topics.get(name)
        if topic is not None and not topic.started and not self.exiting:
            for channel in channels:
                topic.channel(channel, self.now())
            topic.start(self.now())
        self.turn.resume()

    # Auth servers

    def _client(self) -> "HttpClient":
        if self._http_client is None:
            from pyspark_nsq.broker.http_client import HttpClient

            self._http_client = HttpClient(
                self.options.http_client_connect_timeout_ns / SECOND,
                self.options.http_client_request_timeout_ns / SECOND,
                self.options.tls_root_ca_file,
            )
        return self._http_client

    def _ask_auth(self, question: AuthQuestion, answered: Callable[[AuthState | None], None]) -> None:
        gevent.spawn(lambda: answered(self._authorize(question)))

    def _authorize(self, question: AuthQuestion) -> AuthState | None:
        """The answer of the first auth server that has one, from a random one on."""
        from random import randrange

        from pyspark_nsq.broker.http_client import HttpClientError

        addresses = self.options.auth_http_addresses
        first = randrange(len(addresses))
        for address in addresses[first:] + addresses[:first]:
            url = endpoint(address)
            try:
                if self.options.auth_http_request_method == "post":
                    body = self._client().post_json(url, question.json_body())
                else:
                    body = self._client().get(f"{url}?{question.query_string()}")
                return parse_answer(body, self.now())
            except (HttpClientError, AuthError) as error:
                self.log.warning("failed to auth against %s - %s", shown(address), error)
            except Exception as error:  # a fault of ours: the client waits for an answer all the same
                from traceback import format_tb

                # Where, and not what it says: that may repeat the secret.
                where = "".join(format_tb(error.__traceback__))
                self.log.error("failed to auth against %s - panic: %s %s", shown(address), type(error).__name__, where)
        return None

    # statsd

    def _start_statsd(self) -> None:
        options = self.options
        if not options.statsd_address:
            return
        from pyspark_nsq.broker import stats
        from pyspark_nsq.broker.statsd_push import push_for_ever

        report = StatsdReport(options.statsd_prefix, exclude_ephemeral=options.statsd_exclude_ephemeral)

        def lines() -> list[str]:
            topics = stats.topic_stats(self.engine, self.now(), include_clients=False) or []
            return report.lines(topics, stats.memory_stats() if options.statsd_mem_stats else None)

        interval_seconds = options.statsd_interval_ns / SECOND
        self._statsd = gevent.spawn(
            push_for_ever, options.statsd_address, interval_seconds, options.statsd_udp_packet_size, lines, self.log
        )


def _tls_context(options: NsqdOptions) -> Any:
    if not options.tls_cert or not options.tls_key:
        return None
    from pyspark_nsq.broker.tls import server_context

    return server_context(
        options.tls_cert,
        options.tls_key,
        options.tls_root_ca_file,
        options.tls_client_auth_policy,
        options.tls_min_version,
    )


def _engine_options(options: NsqdOptions, open_logs_max: int, log: Logger) -> EngineOptions:
    return EngineOptions(
        data_path=options.data_path or ".",
        node_id=options.node_id,
        mem_queue_size=options.mem_queue_size,
        max_bytes_per_file=options.max_bytes_per_file,
        max_msg_size=options.max_msg_size,
        sync_every=options.sync_every,
        sync_timeout_ns=options.sync_timeout_ns,
        max_msg_timeout_ns=options.max_msg_timeout_ns,
        open_logs_max=open_logs_max,
        e2e_percentiles=options.e2e_processing_latency_percentiles,
        e2e_window_ns=options.e2e_processing_latency_window_time_ns,
        log=lambda level, text: getattr(log, level)("%s", text),
    )


def _listener(address: str, *, unix_allowed: bool) -> socket.socket:
    try:
        return bind(address, unix_allowed=unix_allowed)
    except OSError as error:
        raise OSError(f"listen ({address}) failed - {error}") from error


def _port(listener: socket.socket) -> int:
    port = local_port(listener)
    return -1 if port is None else port


def _plain_socket(listener: socket.socket) -> Any:
    """The same socket without gevent's blocking ways around it."""
    from socket import socket as plain

    return plain(listener.family, listener.type, fileno=listener.detach())


def main() -> int:
    """The console script."""
    options = flags.load(NsqdOptions, "nsqd", sys.argv[1:], DEPRECATED_FLAGS)
    log = Logger(options.log_prefix)
    problem = options.problem()
    if problem is not None:
        exit_fatal(log, "%s", problem)
    stopping = Event()
    signals.install(stopping.set)
    try:
        daemon = Nsqd(options)
    except (OSError, ValueError, MetadataError) as error:
        exit_fatal(log, "failed to instantiate nsqd - %s", error)
    daemon.start()
    with suppress(KeyboardInterrupt):
        stopping.wait()
    daemon.stop()
    return 0
