"""What reaches the connector: nsqd's frames and answers, lookupd's JSON, calls to the receiver, checkpoints."""

import http.client
import json
import math
import struct
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from unittest import mock

import grpc
from google.protobuf.message import DecodeError

from fuzz.target import KIB, MIB, Target, pieces
from pyspark_nsq.connector import crews, discovery, http_json
from pyspark_nsq.connector.beginning import Beginning, from_message, to_message
from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.discovery import fetch_all_stats, fetch_stats, read_answer
from pyspark_nsq.connector.errors import ConnectError, DiscoveryError
from pyspark_nsq.connector.fleet import Fleet
from pyspark_nsq.connector.handshake import Handshake, ServerFacts
from pyspark_nsq.connector.http_json import fetch_json
from pyspark_nsq.connector.offsets import OffsetError, first_position, parse_offset
from pyspark_nsq.connector.options import parse_source_options
from pyspark_nsq.connector.placement import LANES_MAX
from pyspark_nsq.connector.receiver_core import ReceiverCore
from pyspark_nsq.connector.receiver_service import ReceiverService, StatusBoard
from pyspark_nsq.connector.settings import Address, ConnectionSettings, HttpAddress, Secret, Security
from pyspark_nsq.connector.source_state import Limits
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto.compression import DeflateDecompressor, SnappyCompressor, SnappyDecompressor
from pyspark_nsq.proto.errors import WireError
from pyspark_nsq.proto.frames import ERROR, HEARTBEAT, MESSAGE, OK, RESPONSE, encode_frame, encode_message, split_frames
from pyspark_nsq.proto.names import is_valid_name

_NSQD = Address("nsqd", 4150)
_HTTP = HttpAddress(Address("nsqd", 4151))
_SOURCE = Source("t", _NSQD)
_FACTS = ServerFacts("1.3.0", 100, 60_000, 900_000)
_FRAME_SIZE_MAX = 16 * KIB
_FIRST = first_position(1)
_RDY = 20
_SECRET = "a secret that nobody sees"


def _core(dead_letter_topic: str | None = None) -> ReceiverCore:
    limits = Limits("c", _RDY, MIB, _FRAME_SIZE_MAX, 5 if dead_letter_topic else None, dead_letter_topic, 0.1, 1.0)
    core = ReceiverCore(limits, _FIRST)
    core.assign([_SOURCE])
    return core


def frames(data: bytes) -> None:
    """An nsqd that says SUB was fine, and then what it likes. The first byte says in which pieces, among others."""
    if not data:
        return
    core = _core("dead" if data[0] & 4 else None)
    core.to_connect(0.0)
    connection = core.connected(_SOURCE, _FACTS)
    now = 0.0
    try:
        core.received(connection, encode_frame(RESPONSE, OK), now)
        for piece in pieces(data[1:], (1 << 20, 13, 40, 200)[data[0] & 3]):
            now += 0.3
            core.tick(now)
            core.received(connection, piece, now)
            if data[0] & 8:
                core.finish(core.lane.end - 1, now)
            connection.take_output()
    except (WireError, ConnectError):
        core.lost_connection(connection, now)
    parts = core.read(core.lane.finished, core.lane.end)
    assert sum(len(messages) for _, messages in parts) == core.lane.held <= 2 * _RDY
    core.finish(core.lane.end, now)
    assert core.lane.held == 0
    core.stop(now)


def compressed_frames(data: bytes) -> None:
    """The same behind snappy or deflate: only what is decompressed at once is kept."""
    if not data:
        return
    decompressor = DeflateDecompressor() if data[0] & 1 else SnappyDecompressor()
    with suppress(WireError):
        for piece in decompressor.decompress(data[1:]):
            split_frames(piece, _FRAME_SIZE_MAX)


def handshake(data: bytes) -> None:
    """The frames that an nsqd answers IDENTIFY, TLS, compression and AUTH with."""
    if not data:
        return
    security = Security(tls=bool(data[0] & 1), auth_secret=Secret("s3cret"))
    settings = ConnectionSettings(security, snappy=bool(data[0] & 2), deflate=bool(data[0] & 4))
    machine = Handshake(_NSQD, settings, b"s3cret")
    try:
        machine.start()
        for frame in split_frames(data[1:], _FRAME_SIZE_MAX)[0]:
            if machine.receive(frame) is None:
                break
    except (ConnectError, WireError) as error:
        shown = str(error)
        assert "s3cret" not in shown


class _Peer:
    """A socket whose other end has said everything already."""

    def __init__(self, said: bytes) -> None:
        self._said = said

    def sendall(self, _data: bytes) -> None:
        """It does not listen."""

    def settimeout(self, _seconds: float) -> None:
        """It is never late."""

    def recv_into(self, buffer: memoryview) -> int:
        size = min(len(buffer), len(self._said))
        buffer[:size] = self._said[:size]
        self._said = self._said[size:]
        return size

    def close(self) -> None:
        """Nothing is open."""


def _hearing(said: bytes) -> Callable[..., http.client.HTTPConnection]:
    """Connections that are answered so."""

    def connection(*_arguments: object) -> http.client.HTTPConnection:
        made = http.client.HTTPConnection("nsqd", 4151, timeout=5)
        made.connect = lambda: None  # type: ignore[method-assign]
        made.sock = _Peer(said)
        return made

    return connection


def http_answer(data: bytes) -> None:
    """An HTTP answer as a whole, up to its JSON."""
    with mock.patch.object(http_json, "_connection", _hearing(data)), suppress(DiscoveryError):
        fetch_json(_HTTP, "/nodes", 5.0, Security())


def lookup_answer(data: bytes) -> None:
    """The JSON of lookupds and nsqds, to each of the questions."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)
    with mock.patch.object(http_json, "_connection", _hearing(answer)):
        for path in ("/nodes", "/topics", "/lookup?topic=t"):
            with suppress(DiscoveryError):
                _expect_names(read_answer((_HTTP, path), fetch_json(_HTTP, path, 5.0, Security())))
        with suppress(DiscoveryError):
            fetch_stats(_HTTP, "t", "c", 5.0, Security())
        with suppress(DiscoveryError):
            fetch_all_stats(_HTTP, "c", 5.0, Security())


def _expect_names(found: Any) -> None:
    for entry in found:
        if isinstance(entry, str):
            assert is_valid_name(entry)
        else:
            address = entry.tcp if isinstance(entry, discovery.Nsqd) else entry.nsqd.tcp
            assert 1 <= address.port <= 65535
            # What a connection does with a host before it looks it up.
            address.host.encode("idna")


class _Loop:
    """Calls are made at once."""

    def call(self, function: Callable[[float], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(function(1.0))
        except Exception as error:
            future.set_exception(error)
        return future

    def stop(self) -> None:
        """It does not run."""


class _AbortedError(Exception):
    """As gRPC ends a call."""


class _Context:
    def abort(self, code: grpc.StatusCode, _details: str) -> None:
        assert code is not grpc.StatusCode.UNKNOWN
        raise _AbortedError


def receiver_calls(data: bytes) -> None:
    """One of its calls, as the first byte says, to a receiver that holds messages."""
    if not data:
        return
    core = _core()
    core.to_connect(0.0)
    connection = core.connected(_SOURCE, _FACTS)
    core.received(connection, encode_frame(RESPONSE, OK), 0.0)
    core.tick(1.0)
    core.received(connection, b"".join(encode_message(1, 1, b"%016d" % at, b"body") for at in range(10)), 1.0)
    board = StatusBoard()
    loop: Any = _Loop()
    service = ReceiverService(core, loop, board)
    context: Any = _Context()
    with suppress(DecodeError, _AbortedError, UnicodeDecodeError):
        match data[0] & 3:
            case 0:
                request = pb.ReadRequest.FromString(data[1:])
                rows = list(service.Read(request, context))
                assert sum(each.message_count for each in rows) == request.end - request.first
            case 1:
                service.obey(pb.Command.FromString(data[1:]))
            case 2:
                service.Settle(pb.Verdicts.FromString(data[1:]), context)
            case _:
                service.Judge(pb.Suspects.FromString(data[1:]), context)
    core.to_connect(2.0)
    board.changed(core, 3.0)
    board.wait(-1, 0.0)


class _QuietFleet(Fleet):
    """It calls nobody."""

    def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        """There are no threads."""


def coordinator_calls(data: bytes) -> None:
    """One call after the other to the driver's side of receivers on executors. A byte says which and how long it is."""
    fleet = _QuietFleet(_RECEIVERS, _BEGINNING, _RDY, lambda: None, lambda: None, lambda: None)
    service = crews._CoordinatorService(fleet)
    context: Any = _Context()
    while data:
        kind, size = data[0] & 3, data[0] >> 2
        said, data = data[1 : 1 + size], data[1 + size :]
        with suppress(DecodeError):
            match kind:
                case 0:
                    service.Register(pb.Registration.FromString(said), context)
                case 1:
                    service.Gather(pb.Gathering.FromString(said), context)
                case _:
                    service.Look(pb.Range.FromString(said), context)
    assert len(fleet.live) <= len(fleet.receivers) <= LANES_MAX


def receiver_begin(data: bytes) -> None:
    """How a coordinator tells a receiver elsewhere which query it shall work for."""
    try:
        beginning = from_message(pb.Begin.FromString(data))
    except (DecodeError, ValueError):
        return
    core = ReceiverCore(beginning.limits, beginning.first_position)
    core.assign([_SOURCE])
    for now in (0.0, 1.0):
        core.to_connect(now)
        core.connect_failed(_SOURCE, now)
    assert core.sources[_SOURCE].retry_at < math.inf
    assert from_message(to_message(beginning)) == beginning


def offset(data: bytes) -> None:
    """The JSON of a checkpoint, as Spark reads it."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return
    try:
        found = parse_offset(fields)
    except OffsetError as error:
        shown = str(error)
        assert len(shown) < KIB
        return
    for end in found.ends:
        pb.ReadRequest(first=0, end=end)
    assert parse_offset(json.loads(json.dumps(found.to_json()))) == found


def _messages(count: int, attempts: int = 1) -> bytes:
    return b"".join(encode_message(at, attempts, b"%016d" % at, b"body %d" % at) for at in range(count))


_ANSWER = {
    "max_rdy_count": 2500,
    "version": "1.3.0",
    "max_msg_timeout": 900_000,
    "msg_timeout": 60_000,
    "tls_v1": True,
    "deflate": True,
    "deflate_level": 6,
    "snappy": True,
    "auth_required": True,
}
_OK = encode_frame(RESPONSE, OK)
_SAID_FRAMES = [
    _messages(9) + encode_frame(RESPONSE, HEARTBEAT) + encode_frame(ERROR, b"E_FIN_FAILED FIN 0000000000000001 failed"),
    _messages(50),
    _messages(3) * 5 + encode_frame(ERROR, b"E_TOUCH_FAILED TOUCH 0000000000000001 failed ID not in flight"),
    _messages(3, attempts=9) + _OK * 3 + encode_frame(RESPONSE, b"CLOSE_WAIT"),
    encode_frame(ERROR, b"E_INVALID no") + encode_frame(7, b"?") + encode_frame(MESSAGE, b"short"),
    _OK,
]
_IDENTIFY_ANSWER = encode_frame(RESPONSE, json.dumps(_ANSWER).encode())
_NESTED = b"[" * 990 + b"]" * 990
_NODE = {"broadcast_address": "a", "tcp_port": 4150, "http_port": 4151, "topics": ["t"], "tombstones": [False]}
_CHANNEL = {
    "channel_name": "c",
    "depth": 1,
    "in_flight_count": 1,
    "deferred_count": 0,
    "paused": False,
    "client_count": 1,
    "clients": [{"in_flight_count": 1}],
}
_STATS = {"topics": [{"topic_name": "t", "depth": 1, "channels": [_CHANNEL]}]}
_JSON = [
    json.dumps({"producers": [_NODE]}).encode(),
    json.dumps({"topics": ["t", "u#ephemeral", "bad name"]}).encode(),
    json.dumps(_STATS).encode(),
    json.dumps({"producers": [_NODE | {"broadcast_address": "a..b"}]}).encode(),
    json.dumps({"producers": [_NODE | {"broadcast_address": "x" * 70}]}).encode(),
    _NESTED,
    b"[" * 2000,
]
_COMMANDS = [
    pb.Command(finish=pb.Finish(before=_FIRST + 3)),
    pb.Command(finish=pb.Finish(before=2**64 - 1)),
    pb.Command(assignment=pb.Assignment(sources=[pb.Source(topic="t", host="b", port=4150)])),
    pb.Command(assignment=pb.Assignment(sources=[pb.Source(topic="t\n", host="", port=2**32 - 1)])),
    pb.Command(stop=pb.Stop()),
]
_READS = [
    pb.ReadRequest(first=_FIRST, end=_FIRST + 10, columns=["body", "id", "timestamp", "attempts"]),
    pb.ReadRequest(first=_FIRST, end=_FIRST + 10),
    pb.ReadRequest(first=_FIRST, end=_FIRST + 2, columns=["nonsense"]),
    pb.ReadRequest(first=_FIRST, end=_FIRST + 2, columns=["id", "id"]),
    pb.ReadRequest(first=0, end=2**64 - 1),
    pb.ReadRequest(first=5, end=3),
    pb.ReadRequest(first=_FIRST + 5, end=_FIRST + 3),
]
_BEGINNING = Beginning(
    *("a session", _SECRET, _FIRST),
    Limits("c", _RDY, MIB, _FRAME_SIZE_MAX, 5, "dead", 0.1, 1.0, 5),
    ConnectionSettings(Security(True, auth_secret=Secret(_SECRET), tls_key_password=Secret(_SECRET)), snappy=True),
    *(0.5, 3.0),
)
_RECEIVERS = parse_source_options(
    {"topic": "t", "channel": "c", "nsqdTcpAddresses": "a:1", "receivers": "executors"}
).receivers
_ASKED: list[tuple[int, Any]] = [
    (0, pb.Registration(host="h", address="127.0.0.1:1")),
    (0, pb.Registration(host="h", address="127.0.0.1:2")),
    (0, pb.Registration(host="i", address="")),
    (1, pb.Gathering(host="h")),
    (2, pb.Range(lane=0, first=_FIRST, end=_FIRST + 3)),
    (2, pb.Range(lane=2**32 - 1, first=2**64 - 1, end=0)),
]


def _asked(each: tuple[int, Any]) -> bytes:
    kind, message = each
    said: bytes = message.SerializeToString()
    return bytes((len(said) << 2 | kind,)) + said


_TOLD = [
    pb.SourceMessages(source=pb.Source(topic="t", host="nsqd", port=4150), ids=ids)
    for ids in (b"%016d" % 1, b"%016d" % 1 * 3 + b"x" * 16, b"short")
]
_VERDICTS = [pb.Verdicts(finished=[told], unknown=[told]) for told in _TOLD]
_SUSPECTS = [pb.Suspects(messages=[told, told]) for told in _TOLD]
_OFFSETS = [
    b'{"version": 1, "session": "abc", "ends": [1, 2]}',
    b'{"version": 1, "session": "", "ends": []}',
    b'{"version": 2, "session": "abc", "ends": [1]}',
    b'{"version": 1, "session": "abc", "ends": [18446744073709551616]}',
    *(b"[1]", b"null", b'{"version": true}', b'{"version": 1, "session": 2}', _NESTED, b'{"version":' + _NESTED + b"}"),
]
_HTTP_ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\nA: b\r\n\r\n",
    b"HTTP/1.0 404 Not Found\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 No\r\nContent-Length: -1\r\n\r\nwhat",
    b"HTTP/1.1 204 No Content\r\nContent-Length: 99999999999999999999\r\n\r\n",
]

TARGETS = [
    Target(
        "connector-frames",
        frames,
        [bytes([mode]) + said for said in _SAID_FRAMES for mode in (0, 3, 5, 8)],
        [b"\0\0\0\2", _OK, b"E_FIN_FAILED FIN ", b"E_TOUCH_FAILED TOUCH ", b"%016d" % 1, b"\xff\xff\xff\xff"],
        size_max=KIB,
        # Arrow's and numpy's small blocks for each piece.
        fixed_memory=8 * MIB,
        memory_per_byte=8 * KIB,
        runs=400,
    ),
    Target(
        "connector-compressed",
        compressed_frames,
        [b"\0" + SnappyCompressor().compress(_messages(20)), b"\1\xcb\xcf\x06\x00\x00\x00\xff\xff"],
        [b"\xff\x06\x00\x00sNaPpY", b"\x00\x10\x00\x00", b"\xfe\xff\xff\xff"],
    ),
    Target(
        "connector-handshake",
        handshake,
        [
            *(bytes([mode]) + _IDENTIFY_ANSWER + _OK * 2 + encode_frame(RESPONSE, b"{}") for mode in (0, 1, 2, 3, 4)),
            b"\0" + encode_frame(RESPONSE, HEARTBEAT) + encode_frame(ERROR, b"E_AUTH_FAILED s"),
            *(b"\0" + encode_frame(RESPONSE, b'{"version":' + _NESTED[cut:-cut] + b"}") for cut in range(1, 40, 3)),
            b"\0" + encode_frame(RESPONSE, b'{"max_rdy_count":' + b"9" * 5000 + b"}"),
        ],
        [b'"max_rdy_count":', b'"msg_timeout":', b'"tls_v1":', b"true", b"1e999", b"NaN", b"\0\0\0\0"],
        size_max=8 * KIB,
    ),
    Target("connector-http", http_answer, _HTTP_ANSWERS, [b"Content-Length: ", b"Transfer-Encoding: chunked\r\n"]),
    Target(
        "connector-lookup",
        lookup_answer,
        _JSON,
        [b'"producers":', b'"topics":', b'"channels":', b'"broadcast_address":', b'"clients":', b"null", b"1e9"],
        runs=800,
    ),
    Target(
        "receiver-grpc",
        receiver_calls,
        [
            *(b"\1" + command.SerializeToString() for command in _COMMANDS),
            *(b"\0" + read.SerializeToString() for read in _READS),
            *(b"\2" + verdicts.SerializeToString() for verdicts in _VERDICTS),
            *(b"\3" + suspects.SerializeToString() for suspects in _SUSPECTS),
        ],
        [b"body", b"id", b"timestamp", b"attempts", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"],
        fixed_memory=8 * MIB,
        runs=800,
    ),
    Target(
        "coordinator-grpc",
        coordinator_calls,
        [b"".join(map(_asked, _ASKED)), *(_asked(each) * 2 for each in _ASKED)],
        [b"127.0.0.1:1", b"unix:/", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"],
        size_max=KIB,
        # Queues of commands, for each receiver that has come.
        memory_per_byte=4 * KIB,
        runs=800,
    ),
    Target(
        "receiver-begin",
        receiver_begin,
        [to_message(_BEGINNING).SerializeToString()],
        [struct.pack("<d", math.nan), struct.pack("<d", math.inf), struct.pack("<d", -1)],
        runs=2000,
    ),
    Target("offset-json", offset, _OFFSETS, [b'"version": 1', b'"session": ', b'"ends": [', b"1e9", b"-1", b"\\ud800"]),
]
