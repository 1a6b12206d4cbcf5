"""nsqlookupd: its TCP protocol, its HTTP API, tombstones and time-outs."""

import json
import struct
import time
from collections.abc import Callable

import pytest
from blackbox.daemons import Nsqlookupd
from blackbox.wire import PATIENCE_SECONDS, Conn, wait_until, with_length

Connect = Callable[..., Conn]
StartLookupd = Callable[..., Nsqlookupd]

NEVER = -6795364578871345152
ABOUT = {"broadcast_address": "node", "hostname": "host", "tcp_port": 4150, "http_port": 4151, "version": "1.2.3"}


def answer(conn: Conn, patience: float = PATIENCE_SECONDS) -> bytes:
    """One answer: a size and as many bytes."""
    (size,) = struct.unpack(">i", conn.read_raw(4, patience))
    return conn.read_raw(size)


def ask(conn: Conn, line: str, body: bytes | None = None) -> bytes:
    """One command and its answer."""
    conn.command(line, body)
    return answer(conn)


def producer(conn: Conn, **about: object) -> Conn:
    """A connection that has introduced itself as a broker."""
    reply = json.loads(ask(conn, "IDENTIFY", json.dumps(ABOUT | about).encode()))
    assert reply["version"] == "1.3.0"
    return conn


@pytest.fixture
def lookupd(start_lookupd: StartLookupd) -> Nsqlookupd:
    """A directory with default settings."""
    return start_lookupd()


def lookup(lookupd: Nsqlookupd, topic: str) -> list[str]:
    """The broadcast addresses of a topic's producers."""
    return [found["broadcast_address"] for found in lookupd.get(f"/lookup?topic={topic}")["producers"]]


def nodes(lookupd: Nsqlookupd) -> dict[str, dict[str, bool]]:
    """Topics of every node, and whether each is tombstoned."""
    found = lookupd.get("/nodes")["producers"]
    return {node["broadcast_address"]: dict(zip(node["topics"], node["tombstones"], strict=True)) for node in found}


def test_bad_magic_of_lookupd(connect: Connect, lookupd: Nsqlookupd) -> None:
    conn = connect(lookupd, magic=b"  V2")
    assert conn.read_raw(18) == b"\0\0\0\x0eE_BAD_PROTOCOL"
    conn.closed()


def test_identify_of_lookupd_tells_its_ports(connect: Connect, lookupd: Nsqlookupd) -> None:
    reply = json.loads(ask(connect(lookupd), "IDENTIFY", json.dumps(ABOUT).encode()))
    assert set(reply) >= {"broadcast_address", "hostname", "http_port", "tcp_port", "version"}
    assert (reply["tcp_port"], reply["http_port"]) == (lookupd.port("TCP"), lookupd.port("HTTP"))


def test_ping_of_lookupd_before_identify_and_white_space(connect: Connect, lookupd: Nsqlookupd) -> None:
    conn = connect(lookupd)
    assert ask(conn, "PING") == b"OK"
    assert ask(conn, "  PING  \r") == b"OK"


def without(key: str) -> bytes:
    """The introduction of a broker that leaves something out."""
    return json.dumps({name: value for name, value in ABOUT.items() if name != key}).encode()


@pytest.mark.parametrize(
    ("lines", "body", "text"),
    [
        (["HELLO there"], None, "E_INVALID invalid command HELLO"),
        (["REGISTER t"], None, "E_INVALID client must IDENTIFY"),
        (["UNREGISTER t"], None, "E_INVALID client must IDENTIFY"),
        (["IDENTIFY"], b"nonsense", "E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (["IDENTIFY"], without("broadcast_address"), "E_BAD_BODY IDENTIFY missing fields"),
        (["IDENTIFY"], without("tcp_port"), "E_BAD_BODY IDENTIFY missing fields"),
        (["IDENTIFY"], without("http_port"), "E_BAD_BODY IDENTIFY missing fields"),
        (["IDENTIFY"], without("version"), "E_BAD_BODY IDENTIFY missing fields"),
    ],
)
def test_errors_of_lookupd_before_identify(
    connect: Connect, lookupd: Nsqlookupd, lines: list[str], body: bytes | None, text: str
) -> None:
    conn = connect(lookupd)
    assert ask(conn, lines[0], body).decode() == text
    conn.closed()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("IDENTIFY", "E_INVALID cannot IDENTIFY again"),
        ("REGISTER", "E_INVALID REGISTER insufficient number of params"),
        ("REGISTER a/b", "E_BAD_TOPIC REGISTER topic name 'a/b' is not valid"),
        ("REGISTER t a/b", "E_BAD_CHANNEL REGISTER channel name 'a/b' is not valid"),
        ("UNREGISTER", "E_INVALID UNREGISTER insufficient number of params"),
        ("UNREGISTER a/b", "E_BAD_TOPIC UNREGISTER topic name 'a/b' is not valid"),
        ("UNREGISTER t a/b", "E_BAD_CHANNEL UNREGISTER channel name 'a/b' is not valid"),
    ],
)
def test_errors_of_lookupd_after_identify(connect: Connect, lookupd: Nsqlookupd, line: str, text: str) -> None:
    conn = producer(connect(lookupd))
    assert ask(conn, line).decode() == text
    conn.closed()


# case 100
@pytest.mark.known_defect("D15")
@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1])
def test_lookupd_survives_a_wrong_length(connect: Connect, lookupd: Nsqlookupd, length: int, patience: float) -> None:
    conn = connect(lookupd)
    conn.send(b"IDENTIFY\n" + struct.pack(">i", length))
    assert answer(conn, patience).startswith(b"E_BAD_BODY IDENTIFY ")
    assert lookupd.http("GET", "/ping").status == 200


def test_registration_shows_in_every_view(connect: Connect, lookupd: Nsqlookupd) -> None:
    conn = producer(connect(lookupd))
    for line in ("REGISTER bare", "REGISTER full one", "REGISTER full two"):
        assert ask(conn, line) == b"OK"
    assert sorted(lookupd.get("/topics")["topics"]) == ["bare", "full"]
    assert sorted(lookupd.get("/channels?topic=full")["channels"]) == ["one", "two"]
    assert lookupd.get("/channels?topic=unknown")["channels"] == []
    found = lookupd.get("/lookup?topic=full")
    assert sorted(found["channels"]) == ["one", "two"]
    (node,) = found["producers"]
    local = conn.sock.getsockname()
    assert {key: node[key] for key in ABOUT} == ABOUT
    assert node["remote_address"] == f"{local[0]}:{local[1]}"
    assert nodes(lookupd) == {"node": {"bare": False, "full": False}}
    debug = lookupd.get("/debug")
    assert {"topic:bare:", "topic:full:", "channel:full:one", "channel:full:two"} <= set(debug)
    (entry,) = debug["topic:bare:"]
    expected = {"broadcast_address": "node", "tombstoned": False, "tombstoned_at": NEVER}
    assert {key: entry[key] for key in expected} == expected
    assert entry["id"] == f"{local[0]}:{local[1]}"


# case 99
def test_unregister_takes_the_producer_but_keeps_plain_names(connect: Connect, lookupd: Nsqlookupd) -> None:
    conn = producer(connect(lookupd))
    for line in ("REGISTER t c", "REGISTER t c#ephemeral", "REGISTER e#ephemeral"):
        assert ask(conn, line) == b"OK"
    assert ask(conn, "UNREGISTER t c#ephemeral") == b"OK"
    assert lookupd.get("/channels?topic=t")["channels"] == ["c"]
    assert ask(conn, "UNREGISTER t c") == b"OK"
    assert lookupd.get("/channels?topic=t")["channels"] == ["c"]
    assert lookup(lookupd, "t") == ["node"]
    assert ask(conn, "UNREGISTER t") == b"OK"
    assert lookup(lookupd, "t") == []
    assert ask(conn, "UNREGISTER e#ephemeral") == b"OK"
    assert lookupd.get("/topics")["topics"] == ["t"]
    assert ask(conn, "UNREGISTER unknown") == b"OK"
    assert ask(conn, "UNREGISTER unknown c") == b"OK"


# case 99
def test_disconnect_removes_the_producer_and_keeps_names(connect: Connect, lookupd: Nsqlookupd) -> None:
    first, second = producer(connect(lookupd)), producer(connect(lookupd), broadcast_address="other")
    for conn in (first, second):
        assert ask(conn, "REGISTER t c") == b"OK"
    assert sorted(lookup(lookupd, "t")) == ["node", "other"]
    first.close()
    wait_until(lambda: lookup(lookupd, "t") == ["other"])
    second.close()
    wait_until(lambda: lookup(lookupd, "t") == [])
    assert lookupd.get("/topics")["topics"] == ["t"]
    assert lookupd.get("/channels?topic=t")["channels"] == ["c"]
    assert nodes(lookupd) == {}


@pytest.mark.known_defect("D16")
def test_disconnect_removes_ephemeral_names(connect: Connect, lookupd: Nsqlookupd) -> None:
    conn = producer(connect(lookupd))
    for line in ("REGISTER t c#ephemeral", "REGISTER e#ephemeral"):
        assert ask(conn, line) == b"OK"
    conn.close()
    wait_until(lambda: nodes(lookupd) == {})
    assert lookupd.get("/topics")["topics"] == ["t"]
    assert lookupd.get("/channels?topic=t")["channels"] == []


# case 99
def test_tombstone_hides_a_producer_of_a_topic_until_it_registers_anew(connect: Connect, lookupd: Nsqlookupd) -> None:
    conn = producer(connect(lookupd))
    for line in ("REGISTER t c", "REGISTER other"):
        assert ask(conn, line) == b"OK"
    lookupd.post("/topic/tombstone?topic=t&node=nobody:1")
    assert lookup(lookupd, "t") == ["node"]
    before = time.time_ns()
    lookupd.post("/topic/tombstone?topic=t&node=node:4151")
    assert lookup(lookupd, "t") == []
    assert lookup(lookupd, "other") == ["node"]
    assert nodes(lookupd) == {"node": {"t": True, "other": False}}
    (entry,) = lookupd.get("/debug")["topic:t:"]
    assert entry["tombstoned"] is True
    assert before <= entry["tombstoned_at"] <= time.time_ns()
    assert ask(conn, "REGISTER t c") == b"OK"
    assert lookup(lookupd, "t") == []
    assert ask(conn, "UNREGISTER t") == b"OK"
    assert ask(conn, "REGISTER t") == b"OK"
    assert lookup(lookupd, "t") == ["node"]


# case 99
def test_tombstone_expires(connect: Connect, start_lookupd: StartLookupd) -> None:
    lookupd = start_lookupd("--tombstone-lifetime=1s")
    conn = producer(connect(lookupd))
    assert ask(conn, "REGISTER t") == b"OK"
    assert lookup(lookupd, "t") == ["node"]
    begun: list[float] = []

    def is_hidden() -> bool:
        """Again, where it took longer to look than it lasts."""
        begun.append(time.monotonic())
        lookupd.post("/topic/tombstone?topic=t&node=node:4151")
        return lookup(lookupd, "t") == []

    wait_until(is_hidden)
    wait_until(lambda: lookup(lookupd, "t") == ["node"])
    assert time.monotonic() - begun[-1] >= 1
    assert nodes(lookupd) == {"node": {"t": False}}


# case 99
def test_silent_producer_is_hidden_until_it_pings(connect: Connect, start_lookupd: StartLookupd) -> None:
    lookupd = start_lookupd("--inactive-producer-timeout=1s")
    conn = producer(connect(lookupd))
    assert ask(conn, "REGISTER t c") == b"OK"
    pinged: list[float] = []

    def is_shown() -> bool:
        """Again, where it took longer to look than it lasts."""
        pinged.append(time.monotonic())
        assert ask(conn, "PING") == b"OK"
        return lookup(lookupd, "t") == ["node"] and nodes(lookupd) == {"node": {"t": False}}

    wait_until(is_shown)
    wait_until(lambda: lookup(lookupd, "t") == [])
    assert time.monotonic() - pinged[-1] >= 0.9
    assert nodes(lookupd) == {}
    wait_until(is_shown)


JSON = "application/json; charset=utf-8"


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/lookup?topic=unknown", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=a/b", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/create?topic=%zz", 400, "INVALID_REQUEST"),
        ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/create?topic=a/b&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=t&channel=a/b", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/delete?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=unknown&channel=c", 404, "CHANNEL_NOT_FOUND"),
        ("POST", "/topic/tombstone", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
        ("GET", "/nowhere", 404, "NOT_FOUND"),
        ("POST", "/ping", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/topic/create?topic=t", 405, "METHOD_NOT_ALLOWED"),
    ],
)
def test_errors_of_lookupd_over_http(lookupd: Nsqlookupd, method: str, target: str, status: int, code: str) -> None:
    answer = lookupd.http(method, target)
    assert (answer.status, answer.body) == (status, b'{"message":"%b"}' % code.encode())
    assert answer.headers["content-type"] == JSON


def test_names_can_be_made_and_deleted_over_http(connect: Connect, lookupd: Nsqlookupd) -> None:
    assert (lookupd.http("GET", "/ping").body, lookupd.get("/info")["version"]) == (b"OK", "1.3.0")
    answer = lookupd.http("POST", "/topic/create?topic=t")
    assert (answer.status, answer.body) == (200, b"")
    lookupd.post("/channel/create?topic=u&channel=c")
    assert sorted(lookupd.get("/topics")["topics"]) == ["t", "u"]
    assert lookupd.get("/lookup?topic=t") == {"channels": [], "producers": []}
    lookupd.post("/channel/delete?topic=u&channel=c")
    assert lookupd.get("/channels?topic=u")["channels"] == []
    conn = producer(connect(lookupd))
    assert ask(conn, "REGISTER t c") == b"OK"
    lookupd.post("/topic/delete?topic=t")
    lookupd.post("/topic/delete?topic=unknown")
    assert lookupd.get("/topics")["topics"] == ["u"]
    assert lookupd.get("/channels?topic=t")["channels"] == []
    assert nodes(lookupd) == {"node": {}}


def test_partial_command_of_lookupd_is_dropped_at_the_end(connect: Connect, lookupd: Nsqlookupd) -> None:
    conn = connect(lookupd)
    conn.send(b"IDENTIFY\n" + with_length(json.dumps(ABOUT).encode())[:20])
    conn.sock.shutdown(1)
    assert answer(conn) == b"E_BAD_BODY IDENTIFY failed to read body"
    assert lookupd.http("GET", "/ping").status == 200
