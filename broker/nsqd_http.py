"""The HTTP API of nsqd: publishing, changes of topics and channels, stats, options."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from pyspark_nsq.broker import debug, json_go, stats
from pyspark_nsq.broker.channel import Channel
from pyspark_nsq.broker.durations import MILLISECOND, SECOND
from pyspark_nsq.broker.engine import Engine
from pyspark_nsq.broker.flag_kinds import parse_int
from pyspark_nsq.broker.flags import config_values
from pyspark_nsq.broker.http_messages import JSON_TYPE, NSQ_HEADER, HttpError, Request, Response, text_answer
from pyspark_nsq.broker.http_router import Route
from pyspark_nsq.broker.logs import Logger, parse_level
from pyspark_nsq.broker.nsqd_metrics import metrics_page
from pyspark_nsq.broker.nsqd_options import NsqdOptions
from pyspark_nsq.broker.session import Session
from pyspark_nsq.broker.topic import Bodies, Ticket, Topic
from pyspark_nsq.broker.version import NSQ_VERSION
from pyspark_nsq.proto.commands import sized
from pyspark_nsq.proto.names import is_valid_name
from pyspark_nsq.proto.parser import Command, CommandParser, Limits, Publish

_BOOLS: Final = {"true": True, "1": True, "false": False, "0": False}
_LOOKUPD_OPTION: Final = "nsqlookupd_tcp_addresses"


class Daemon(Protocol):
    """What the API needs of the nsqd around it."""

    options: NsqdOptions
    limits: Limits
    engine: Engine
    log: Logger
    exiting: bool
    started_at: int
    tcp_port: int
    http_port: int

    def now(self) -> int: ...

    def sessions(self) -> list[Session]: ...

    def wait_for(self, ticket: Ticket) -> None:
        """Block this greenlet until the outcome of its publish is known."""

    def wait_for_start(self, topic: Topic) -> None:
        """Block this greenlet until a new topic has the channels that exist elsewhere."""

    def changed(self) -> None:
        """The engine was changed outside of a turn."""

    def close_consumers(self, channel: Channel) -> None: ...

    def set_options(self, options: NsqdOptions) -> None: ...


class NsqdApi:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def routes(self) -> tuple[Route, ...]:
        options = self._daemon.options
        msg_max, body_max = options.max_msg_size, options.max_body_size
        return (
            Route("GET", "/ping", self.ping),
            Route("GET", "/info", self.info),
            Route("POST", "/pub", self.pub, body_bytes_max=msg_max, too_big="MSG_TOO_BIG", logged=False),
            Route("POST", "/mpub", self.mpub, body_bytes_max=body_max, too_big="BODY_TOO_BIG", logged=False),
            Route("GET", "/stats", self.stats),
            Route("GET", "/metrics", self.metrics),
            Route("POST", "/topic/create", self.create_topic),
            Route("POST", "/topic/delete", self.delete_topic),
            Route("POST", "/topic/empty", self.empty_topic),
            Route("POST", "/topic/pause", self.pause_topic),
            Route("POST", "/topic/unpause", self.unpause_topic),
            Route("POST", "/channel/create", self.create_channel),
            Route("POST", "/channel/delete", self.delete_channel),
            Route("POST", "/channel/empty", self.empty_channel),
            Route("POST", "/channel/pause", self.pause_channel),
            Route("POST", "/channel/unpause", self.unpause_channel),
            Route("GET", "/config/:opt", self.get_option),
            Route("PUT", "/config/:opt", self.put_option, body_bytes_max=msg_max, too_big="INVALID_VALUE"),
            Route("PUT", "/debug/setblockrate", self.set_block_rate),
            Route("POST", "/debug/freememory", self.free_memory),
            *debug.routes("/debug/pprof/"),
        )

    # What it is

    def ping(self, _: Request) -> Response:
        health = stats.health_text(self._daemon.engine)
        return text_answer(health, 200 if health == "OK" else 500)

    def info(self, _: Request) -> dict[str, Any]:
        daemon, options = self._daemon, self._daemon.options
        fields: dict[str, Any] = {
            "version": NSQ_VERSION,
            "broadcast_address": options.broadcast_address,
            "hostname": os.uname().nodename,
            "http_port": daemon.http_port,
            "tcp_port": daemon.tcp_port,
            "start_time": daemon.started_at // SECOND,
            "max_heartbeat_interval": options.max_heartbeat_interval_ns,
            "max_output_buffer_size": options.max_output_buffer_size,
            "max_output_buffer_timeout": options.max_output_buffer_timeout_ns,
            "max_deflate_level": options.max_deflate_level,
        }
        if options.topology_zone or options.topology_region:
            fields |= {"topology_zone": options.topology_zone, "topology_region": options.topology_region}
        return fields

    def stats(self, request: Request) -> Any:
        daemon, args = self._daemon, request.args
        topic, now = args.get("topic", ""), daemon.now()
        include_clients = _BOOLS.get(args.get("include_clients", ""), True)
        topics = stats.topic_stats(
            daemon.engine, now, topic=topic, channel=args.get("channel", ""), include_clients=include_clients
        )
        found = topics is not None and include_clients
        document = stats.stats_document(
            daemon.engine,
            topics,
            stats.producer_stats(daemon.sessions(), topic) if found else None,
            stats.memory_stats() if _BOOLS.get(args.get("include_mem", ""), True) else None,
            daemon.started_at,
        )
        if args.get("format") == "json":
            return document
        wall = daemon.engine.wall
        return stats.stats_text(document, wall(now), wall(daemon.started_at))

    def metrics(self, _: Request) -> Response:
        daemon = self._daemon
        topics = stats.topic_stats(daemon.engine, daemon.now(), include_clients=False) or []
        return metrics_page(daemon.engine, topics, daemon.sessions(), daemon.started_at).response()

    # Publishing

    def pub(self, request: Request) -> str:
        if not request.body:
            raise HttpError(400, "MSG_EMPTY")
        topic = self._topic_for_publishing(request)
        defer_ns = self._defer_ns(request.args["defer"]) if "defer" in request.args else 0
        return self._publish(topic, [request.body], defer_ns)

    def mpub(self, request: Request) -> str:
        topic = self._topic_for_publishing(request)
        binary = "binary" in request.args and _BOOLS.get(request.args["binary"], True)
        bodies = self._binary_bodies(request.body) if binary else self._text_bodies(request.body)
        return self._publish(topic, bodies, 0) if bodies else "OK"

    def _topic_for_publishing(self, request: Request) -> Topic:
        name = request.required("topic")
        if not is_valid_name(name):
            raise HttpError(400, "INVALID_TOPIC")
        if self._daemon.exiting:
            raise HttpError(503, "EXITING")
        topic = self._daemon.engine.topic(name, self._daemon.now())
        if not topic.started:
            self._daemon.wait_for_start(topic)
        return topic

    def _defer_ns(self, text: str) -> int:
        try:
            defer_ns = parse_int(text, 10) * MILLISECOND
        except ValueError:
            raise HttpError(400, "INVALID_DEFER") from None
        if not 0 <= defer_ns <= self._daemon.options.max_req_timeout_ns:
            raise HttpError(400, "INVALID_DEFER")
        return defer_ns

    def _text_bodies(self, body: bytes) -> list[bytes]:
        """A message a line; empty lines mean nothing."""
        bodies = [line for line in body.split(b"\n") if line]
        if any(len(line) > self._daemon.options.max_msg_size for line in bodies):
            raise HttpError(413, "MSG_TOO_BIG")
        return bodies

    def _binary_bodies(self, body: bytes) -> Bodies:
        """The body of an MPUB command; errors go by that command's codes. What follows its messages is ignored, as by
        Go's: curl's users end files with a line feed."""
        command = self._mpub_command(body)
        if not isinstance(command, Publish):
            command = self._mpub_command(body[: _end_of_messages(body)])
        if not isinstance(command, Publish):
            code = getattr(command, "code", "E_BAD_BODY")
            raise HttpError(413, code.removeprefix("E_"))
        return command.bodies

    def _mpub_command(self, body: bytes) -> Command | None:
        parser = CommandParser(self._daemon.limits)
        return next(iter(parser.feed(b"MPUB http\n" + sized(body))), None) or parser.eof()

    def _publish(self, topic: Topic, bodies: Bodies, defer_ns: int) -> str:
        ticket = topic.publish(bodies, self._daemon.now(), defer_ns)
        self._daemon.wait_for(ticket)
        if ticket.error is not None:
            self._daemon.log.error("failed to write messages of topic %s - %s", topic.name, ticket.error)
            raise HttpError(503, "WRITE_FAILED")
        return "OK"

    # Topics and channels

    def create_topic(self, request: Request) -> None:
        self._topic_for_publishing(request)

    def empty_topic(self, request: Request) -> None:
        name = request.required("topic")
        if not is_valid_name(name):
            raise HttpError(400, "INVALID_TOPIC")
        self._change(self._topic(name).empty)

    def delete_topic(self, request: Request) -> None:
        topic = self._topic(request.required("topic"))
        channels = list(topic.channels.values())
        self._delete(lambda now: self._daemon.engine.delete_topic(topic.name, now), channels)

    def pause_topic(self, request: Request) -> None:
        self._change(self._topic(request.required("topic")).pause)

    def unpause_topic(self, request: Request) -> None:
        self._change(self._topic(request.required("topic")).unpause)

    def create_channel(self, request: Request) -> None:
        topic, name = self._topic_and_channel_name(request)
        self._change(lambda now: topic.channel(name, now))

    def delete_channel(self, request: Request) -> None:
        topic, name = self._topic_and_channel_name(request)
        channel = self._channel(topic, name)
        self._delete(lambda now: topic.delete_channel(name, now), [channel])

    def empty_channel(self, request: Request) -> None:
        self._change(self._channel(*self._topic_and_channel_name(request)).empty)

    def pause_channel(self, request: Request) -> None:
        self._change(self._channel(*self._topic_and_channel_name(request)).pause)

    def unpause_channel(self, request: Request) -> None:
        self._change(self._channel(*self._topic_and_channel_name(request)).unpause)

    def _delete(self, delete: Callable[[int], object], channels: list[Channel]) -> None:
        """Consumers must not stay on what is gone, also where nsqd.dat could not be written."""
        try:
            self._change(delete)
        finally:
            for channel in channels:
                if channel.deleted:
                    self._daemon.close_consumers(channel)

    def _change(self, change: Callable[[int], object]) -> None:
        try:
            change(self._daemon.now())
        except OSError as error:
            self._daemon.log.error("failure in a change over HTTP - %s", error)
            raise HttpError(500, "INTERNAL_ERROR") from error
        finally:
            self._daemon.changed()

    def _topic(self, name: str) -> Topic:
        topic = self._daemon.engine.topics.get(name)
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return topic

    def _topic_and_channel_name(self, request: Request) -> tuple[Topic, str]:
        names = {}
        for kind in ("topic", "channel"):
            names[kind] = request.required(kind)
            if not is_valid_name(names[kind]):
                raise HttpError(400, f"INVALID_ARG_{kind.upper()}")
        return self._topic(names["topic"]), names["channel"]

    def _channel(self, topic: Topic, name: str) -> Channel:
        channel = topic.channels.get(name)
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return channel

    # Options and debugging

    def get_option(self, request: Request) -> Any:
        values = config_values(self._daemon.options)
        name = request.params["opt"]
        if name not in values:
            raise HttpError(400, "INVALID_OPTION")
        if values[name] is None:
            return Response(200, b"null", JSON_TYPE, (NSQ_HEADER,))
        return values[name]

    def put_option(self, request: Request) -> Any:
        if not request.body:
            raise HttpError(413, "INVALID_VALUE")
        name, options = request.params["opt"], self._daemon.options
        try:
            if name == "log_level":
                options = replace(options, log_level=parse_level(request.body.decode("utf-8", "replace")))
            elif name == _LOOKUPD_OPTION:
                addresses = tuple(json_go.decode(list[str], request.body))
                no_list = request.body.strip() == b"null"
                options = replace(options, lookupd_tcp_addresses=None if no_list else addresses)
            else:
                raise HttpError(400, "INVALID_OPTION")
        except ValueError:
            raise HttpError(400, "INVALID_VALUE") from None
        self._daemon.set_options(options)
        return self.get_option(request)

    def set_block_rate(self, request: Request) -> Response | None:
        """There is no profile of blocking whose rate could be set; scripts that set it go on working."""
        rate = request.args.get("rate", "")
        try:
            parse_int(rate, 10)
        except ValueError:
            return text_answer(f"invalid block rate : {rate} - parse error", 400)
        return None

    def free_memory(self, _: Request) -> None:
        debug.free_memory()


def _end_of_messages(body: bytes) -> int:
    """Where the last message of an MPUB's body ends, or what is wrong with it begins."""
    count, end = int.from_bytes(body[:4], "big"), 4
    while count and (size := int.from_bytes(body[end : end + 4], "big", signed=True)) > 0:
        count, end = count - 1, end + 4 + size
    return end if not count else len(body)
