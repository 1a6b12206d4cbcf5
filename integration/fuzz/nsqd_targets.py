"""nsqd's ports: the session behind its TCP port, plain and compressed, and its HTTP API."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from simulation.memory_files import MemoryFiles
from simulation.session_world import Client, World

from fuzz.http_serving import HTTP_WORDS, request, serve
from fuzz.target import KIB, MIB, Target, pieces
from pyspark_nsq.broker.auth import AuthState, parse_answer
from pyspark_nsq.broker.nsqd_http import NsqdApi
from pyspark_nsq.broker.nsqd_options import NsqdOptions, TlsRequired
from pyspark_nsq.broker.session import Session
from pyspark_nsq.broker.topic import Ticket, Topic
from pyspark_nsq.proto import commands
from pyspark_nsq.proto.compression import DeflateCompressor, SnappyCompressor
from pyspark_nsq.proto.frames import ERROR, MESSAGE, RESPONSE, split_frames

OPTIONS = NsqdOptions(max_msg_size=4 * KIB, max_body_size=16 * KIB, max_rdy_count=100, data_path="data")
_AUTH = NsqdOptions(auth_http_addresses=("127.0.0.1:1",), data_path="data")
_TLS = NsqdOptions(tls_required=TlsRequired.YES, tls_cert="c", tls_key="k", data_path="data")
_GRANTED = b'{"ttl":60,"authorizations":[{"permissions":["subscribe","publish"],"topic":"t","channels":[".*"]}]}'
_PIECE_SIZES = (1 << 20, 1, 7, 64)


class FuzzedClient(Client):
    """What it hears is kept as bytes: under compression they are no frames."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.world = world

    def feed(self, data: bytes, size: int, auth_state: AuthState | None = None) -> None:
        for piece in pieces(data, size):
            if self.session.finished:
                return
            self.session.receive(piece, self.world.now)
            while self.session.auth.question is not None:
                self.session.answer(auth_state, self.world.now)
            self.settle()
        if not self.session.finished:
            self.session.end_of_input(self.world.now)
        self.settle()

    def settle(self) -> None:
        self.world.turn.touch(self)
        self.world.run()


def world(options: NsqdOptions, files: MemoryFiles | None = None) -> World:
    return World(Path("data"), options, files or MemoryFiles())


def _greeted(options: NsqdOptions, *said: bytes) -> FuzzedClient:
    client = FuzzedClient(world(options))
    for data in (commands.MAGIC_V2, *said):
        client.session.receive(data, client.world.now)
        client.settle()
    return client


def _subscribed() -> FuzzedClient:
    """A client with messages in flight, and more of them waiting."""
    messages = b"".join(commands.pub("t", b"body%d" % number) for number in range(20))
    return _greeted(OPTIONS, messages, commands.sub("t", "c"), commands.rdy(10))


_STARTS: Final[list[Callable[[], FuzzedClient]]] = [
    _subscribed,
    lambda: FuzzedClient(world(OPTIONS)),
    lambda: FuzzedClient(world(_AUTH)),
    lambda: FuzzedClient(world(_TLS)),
]


def session(data: bytes) -> None:
    """The first byte says in which state the session is and in which pieces the others come."""
    if not data:
        return
    client = _STARTS[data[0] >> 2 & 3]()
    client.feed(data[1:], _PIECE_SIZES[data[0] & 3], parse_answer(_GRANTED, client.world.now))
    client.session.disconnected(client.world.now)
    frames, size = split_frames(client.received, 1 << 24)
    assert size == len(client.received), "half a frame was sent"
    assert {frame.type for frame in frames} <= {RESPONSE, ERROR, MESSAGE}
    client.world.engine.close(client.world.now)


def compressed(data: bytes) -> None:
    """Behind an IDENTIFY that asked for snappy or deflate, as the first byte says."""
    if not data:
        return
    kind = "deflate" if data[0] & 1 else "snappy"
    client = _greeted(OPTIONS, commands.identify({"feature_negotiation": True, kind: True}))
    assert client.session.wire is not None
    client.feed(data[1:], _PIECE_SIZES[data[0] >> 1 & 3])
    client.world.engine.close(client.world.now)


class _Daemon:
    """What nsqd's HTTP API needs of the nsqd around it."""

    exiting = False
    tcp_port, http_port = 4150, 4151

    def __init__(self) -> None:
        self._world = world(OPTIONS)
        self.options = OPTIONS
        self.limits = self._world.limits
        self.engine = self._world.engine
        self.log = self._world.log
        self.started_at = self._world.now

    def now(self) -> int:
        return self._world.now

    def sessions(self) -> list[Session]:
        return []

    def wait_for(self, ticket: Ticket) -> None:
        self.changed()
        assert ticket.done

    def wait_for_start(self, topic: Topic) -> None:
        topic.start(self.now())

    def changed(self) -> None:
        self._world.turn.request()
        self._world.run()

    def close_consumers(self, _channel: object) -> None:
        """Nobody is connected."""

    def set_options(self, options: NsqdOptions) -> None:
        self.options = options


def http(data: bytes) -> None:
    if not data:
        return
    daemon = _Daemon()
    for response in serve(data[1:], NsqdApi(daemon).routes(), _PIECE_SIZES[data[0] & 3]):
        assert response.startswith(b"HTTP/1.")
    daemon.engine.close(daemon.now())


def _example_id() -> bytes:
    """An id as the client of ``_subscribed`` has them in flight: they are the same each time."""
    frames, _ = split_frames(_subscribed().received, 1 << 24)
    message_id: bytes = next(frame.data[10:26] for frame in frames if frame.type == MESSAGE)
    return message_id


_ID = _example_id()
_SAID = [
    commands.fin(_ID) + commands.req(_ID, 10) + commands.touch(_ID) + commands.rdy(5) + commands.CLS + commands.NOP,
    commands.fin(_ID) * 5,
    commands.pub("t", b"body") * 9 + commands.dpub("t", 100, b"body"),
    commands.mpub("t", [b"a", b"bc", b"def"] * 4) + commands.mpub("u", [b"ab"] * 9),
]
_FRESH = [
    commands.MAGIC_V2 + commands.identify({"client_id": "a", "heartbeat_interval": 1000, "msg_timeout": 2000}),
    commands.MAGIC_V2 + commands.identify({"feature_negotiation": True, "sample_rate": 50, "output_buffer_size": 64}),
    commands.MAGIC_V2 + commands.sub("t#ephemeral", "c#ephemeral") + commands.rdy(1) + commands.CLS,
    commands.MAGIC_V2 + commands.auth(b"secret") + commands.pub("t", b"body") + commands.sub("t", "c"),
    commands.MAGIC_V2 + b"IDENTIFY\n" + commands.sized(b"[" * 2000),
]
_CHUNKED = "Transfer-Encoding: chunked"
_REQUESTS = [
    request("POST /pub?topic=t", body=b"body"),
    request("POST /pub?topic=t&defer=10", _CHUNKED, rest=b"2\r\nab\r\n1;x=y\r\nc\r\n0\r\nT: v\r\n\r\n"),
    request("POST /mpub?topic=t&binary=true", body=b"\0\0\0\2\0\0\0\1a\0\0\0\1b"),
    request("POST /mpub?topic=t", "Connection: keep-alive", body=b"a\nb\n\n", version="1.0"),
    b"".join(
        map(
            request,
            [
                "POST /topic/create?topic=t",
                "POST /channel/create?topic=t&channel=c",
                "GET /stats?format=json&topic=t&channel=c",
                "GET /metrics",
                "POST /channel/pause?topic=t&channel=c",
                "POST /topic/empty?topic=t",
                "POST /channel/delete?topic=t&channel=c",
                "POST /topic/delete?topic=t",
            ],
        )
    ),
    request("PUT /config/log_level", "Expect: 100-continue", body=b"info"),
    request("PUT /config/nsqlookupd_tcp_addresses", body=b'["a:1"]'),
    request("GET http://a/%2e//Info?a=%41;b", "X: y") + request("OPTIONS *"),
]
_WORDS = [
    b"PUB t\n",
    b"MPUB t\n",
    b"DPUB t 10\n",
    b"SUB t c\n",
    b"RDY 1\n",
    b"FIN ",
    b"REQ ",
    b"TOUCH ",
    b"CLS\n",
    b"NOP\n",
]
_WORDS += [b"IDENTIFY\n", b"AUTH\n", b"  V2", _ID, b"#ephemeral", b"\0\0\0\4", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"]
_PLAIN = commands.pub("t", b"body" * 20) + commands.mpub("t", [b"ab"] * 9) + commands.sub("t", "c")

TARGETS = [
    Target(
        "nsqd-tcp",
        session,
        [
            *(bytes([mode]) + said for said in _SAID for mode in (0, 1)),
            *(bytes([mode]) + said for said in _FRESH for mode in (4, 5, 8, 12)),
        ],
        _WORDS,
        runs=1500,
    ),
    Target(
        "nsqd-tcp-compressed",
        compressed,
        [
            b"\0" + SnappyCompressor().compress(_PLAIN) + b"\xfe\x01\x00\x00.",
            b"\2" + SnappyCompressor().compress(_PLAIN),
            b"\1" + DeflateCompressor(6).compress(_PLAIN),
            b"\1" + DeflateCompressor(9).compress(b"PUB t\n" + commands.sized(bytes(4 * KIB)) + bytes(200 * KIB)),
        ],
        [b"\xff\x06\x00\x00sNaPpY", b"\x00\x10\x00\x00", b"\x01\x10\x00\x00", b"\xfe\xff\xff\xff"],
        # A piece of what was compressed, in and out of the parser.
        fixed_memory=4 * MIB,
        runs=1500,
    ),
    Target(
        "nsqd-http",
        http,
        [bytes([mode]) + said for said in _REQUESTS for mode in (0, 1)],
        HTTP_WORDS,
        runs=2000,
    ),
]
