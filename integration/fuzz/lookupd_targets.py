"""nsqlookupd's ports, and nsqd as its client."""

import json

from fuzz.http_serving import HTTP_WORDS, request, serve
from fuzz.target import KIB, MIB, Target, pieces
from pyspark_nsq.broker.auth import AuthError, parse_answer
from pyspark_nsq.broker.logs import Logger
from pyspark_nsq.broker.lookup_session import LookupSession
from pyspark_nsq.broker.lookupd_http import LookupdApi
from pyspark_nsq.broker.lookupd_options import LookupdOptions
from pyspark_nsq.broker.lookupd_registry import Registry
from pyspark_nsq.broker.lookupd_session import LookupdSession
from pyspark_nsq.proto import commands
from pyspark_nsq.proto.errors import WireError

_NOW = 1_700_000_000 * 10**9
_PIECE_SIZES = (1 << 20, 1, 7, 64)
_SILENT = Logger("", write=lambda _: None)
_IDENTITY = {"broadcast_address": "a", "hostname": "b", "http_port": 4151, "tcp_port": 4150, "version": "1.3.0"}
_HELLO = commands.MAGIC_V1 + commands.identify(_IDENTITY)


def tcp(data: bytes) -> None:
    """The first byte says in which pieces the others come, and whether an nsqd has identified itself before."""
    if not data:
        return
    registry = Registry()
    session = LookupdSession("127.0.0.1:1", registry, lambda: b"{}", _SILENT)
    received = session.receive(_HELLO, _NOW) if data[0] & 4 else b""
    for piece in pieces(data[1:], _PIECE_SIZES[data[0] & 3]):
        if session.closing:
            break
        received += session.receive(piece, _NOW)
    received += session.receive_eof(_NOW)
    session.end()
    while received:
        size = int.from_bytes(received[:4], "big")
        assert 4 + size <= len(received), "half an answer was sent"
        received = received[4 + size :]
    assert registry.peers() == []


def http(data: bytes) -> None:
    if not data:
        return
    registry = Registry()
    session = LookupdSession("127.0.0.1:1", registry, lambda: b"{}", _SILENT)
    session.receive(_HELLO + commands.register("t", "c") + commands.register("t#ephemeral", "c#ephemeral"), _NOW)
    api = LookupdApi(registry, LookupdOptions(), _SILENT, lambda: _NOW, lambda: 1)
    for response in serve(data[1:], api.routes(), _PIECE_SIZES[data[0] & 3]):
        assert response.startswith(b"HTTP/1.")
    session.end()
    assert registry.peers() == []


def answers_to_nsqd(data: bytes) -> None:
    """An nsqd that has greeted, registered and pinged hears these answers."""
    session = LookupSession(64 * 1024)
    session.greet(_IDENTITY)
    session.register("t", "c")
    session.ping()
    try:
        for piece in pieces(data, 50):
            session.receive(piece)
    except WireError:
        return
    if session.info is not None:
        assert isinstance(session.info.http_address, str)


def auth_answer(data: bytes) -> None:
    """What an auth server says of a client."""
    try:
        state = parse_answer(data, _NOW)
    except AuthError:
        return
    state.allows_publish("topic")
    state.allows_subscribe("topic", "channel")


_SAID = [
    commands.register("t", "c") + commands.PING + commands.unregister("t", "c") + commands.unregister("t"),
    commands.register("t#ephemeral", "c#ephemeral") + commands.unregister("t#ephemeral"),
    b"REGISTER t c\r\nREGISTER t  \nUNREGISTER\n",
]
_REQUESTS = [
    b"".join(map(request, ("GET /lookup?topic=t", "GET /topics", "GET /channels?topic=t", "GET /nodes", "GET /debug"))),
    b"".join(map(request, ("POST /topic/create?topic=u", "POST /channel/create?topic=u&channel=c", "GET /metrics"))),
    request("POST /topic/tombstone?topic=t&node=a:4151") + request("GET /nodes") + request("GET /debug"),
    request("POST /channel/delete?topic=t&channel=c") + request("POST /topic/delete?topic=t") + request("GET /ping"),
    request("POST /topic/delete?topic=t%23ephemeral") + request("GET /debug", version="1.0"),
]
_ANSWERS = [
    commands.sized(json.dumps(_IDENTITY).encode()) + commands.sized(b"OK") * 2,
    commands.sized(b"E_INVALID no") + commands.sized(b"OK"),
    commands.sized(b"{}") + commands.sized(b"E_BAD_TOPIC"),
    commands.sized(b"[" * 2000),
]
_RULE = {"topic": "t.*", "channels": [".*", "c"], "permissions": ["publish", "subscribe"]}
_GRANTED = {"ttl": 60, "identity": "me", "identity_url": "http://a", "authorizations": [_RULE]}
_WORDS = [b"REGISTER t c\n", b"UNREGISTER t\n", b"PING\n", b"IDENTIFY\n", b"  V1", b"#ephemeral", b"\xff\xff\xff\xff"]

TARGETS = [
    Target(
        "lookupd-tcp",
        tcp,
        [*(bytes([4]) + said for said in _SAID), *(bytes([at % 4]) + _HELLO + said for at, said in enumerate(_SAID))],
        _WORDS,
    ),
    Target("lookupd-http", http, [bytes([mode]) + said for said in _REQUESTS for mode in (0, 1)], HTTP_WORDS),
    Target("lookupd-answers", answers_to_nsqd, _ANSWERS, [b"OK", b"broadcast_address", b"\x7f\xff\xff\xff"]),
    Target(
        "auth-answers",
        auth_answer,
        [json.dumps(_GRANTED).encode(), b'{"ttl":0}', b'{"ttl":1e9,"authorizations":null}', b"[" * 2000],
        [
            *(b'"ttl":', b'"authorizations":', b'"channels":', b'"publish"', b"\\u017f"),
            *(b"(?P<a>", b"{1,99999}", b"[^", b"a{4294967296}", b"((((((((", b"))))))))"),
        ],
        size_max=4 * KIB,
        # A pattern compiles to more than its text.
        fixed_memory=8 * MIB,
    ),
]
