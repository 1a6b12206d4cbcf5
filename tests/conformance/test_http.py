"""The HTTP API: every endpoint and its errors, methods and redirects, publishing."""

import gzip
import struct
from collections.abc import Callable

import pytest
from blackbox.daemons import Nsqd
from blackbox.http import Response, raw_request
from blackbox.wire import Conn, mpub_body, wait_until, with_length

Connect = Callable[..., Conn]
ModuleNsqd = Callable[..., Nsqd]

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
NSQ = "nsq; version=1.0"


def check_error(answer: Response, status: int, code: str) -> None:
    """An error as the API writes it."""
    assert (answer.status, answer.body) == (status, b'{"message":"%b"}' % code.encode())
    assert (answer.headers["content-type"], answer.headers["x-nsq-content-type"]) == (JSON, NSQ)


def check_empty(answer: Response) -> None:
    """Success without a word."""
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-length"] == "0"
    assert "content-type" not in answer.headers
    assert answer.headers["x-nsq-content-type"] == NSQ


def check_ok(answer: Response) -> None:
    """The answer to a publish."""
    assert (answer.status, answer.body) == (200, b"OK")
    assert (answer.headers["content-type"], answer.headers["x-nsq-content-type"]) == (TEXT, NSQ)


@pytest.fixture(scope="module")
def small(module_nsqd: ModuleNsqd) -> Nsqd:
    """A broker that takes messages of 100 bytes in bodies of 500."""
    return module_nsqd("--max-msg-size=100", "--max-body-size=500", "--max-req-timeout=5s")


# case 85
def test_ping(nsqd: Nsqd) -> None:
    answer = nsqd.http("GET", "/ping")
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b"OK", TEXT)
    assert "x-nsq-content-type" not in answer.headers


# cases 85 and 93
def test_info_has_its_keys_in_order_and_real_ports(nsqd: Nsqd) -> None:
    answer = nsqd.http("GET", "/info")
    assert (answer.status, answer.headers["content-type"], answer.headers["x-nsq-content-type"]) == (200, JSON, NSQ)
    info = answer.json
    keys = "version broadcast_address hostname http_port tcp_port start_time max_heartbeat_interval"
    keys += " max_output_buffer_size max_output_buffer_timeout max_deflate_level"
    assert list(info)[:10] == keys.split()
    assert set(info) - set(keys.split()) <= {"topology_zone", "topology_region"}
    assert (info["version"], info["tcp_port"], info["http_port"]) == ("1.3.0", nsqd.port("TCP"), nsqd.port("HTTP"))
    assert info["max_heartbeat_interval"] == 60_000_000_000
    assert info["max_output_buffer_timeout"] == 30_000_000_000
    assert (info["max_output_buffer_size"], info["max_deflate_level"]) == (65536, 6)


TOPIC_ACTIONS = ["delete", "empty", "pause", "unpause"]
CHANNEL_ACTIONS = ["delete", "empty", "pause", "unpause"]


# case 85
@pytest.mark.parametrize("action", ["create", *TOPIC_ACTIONS])
def test_topic_endpoints_succeed_without_a_word(nsqd: Nsqd, topic: str, action: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    check_empty(nsqd.http("POST", f"/topic/{action}?topic={topic}"))
    assert (topic in nsqd.topic_names()) == (action != "delete")


# case 85
@pytest.mark.parametrize("action", ["create", *CHANNEL_ACTIONS])
def test_channel_endpoints_succeed_without_a_word(nsqd: Nsqd, topic: str, action: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=channel")
    check_empty(nsqd.http("POST", f"/channel/{action}?topic={topic}&channel=channel"))
    assert ("channel" in nsqd.channel_names(topic)) == (action != "delete")


# case 85
@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("/topic/create?topic=", 400, "INVALID_TOPIC"),
        ("/topic/create?topic=a%20b", 400, "INVALID_TOPIC"),
        ("/topic/create?topic=%zz", 400, "INVALID_REQUEST"),
        ("/topic/create?topic=a;b", 400, "INVALID_REQUEST"),
        ("/topic/empty", 400, "MISSING_ARG_TOPIC"),
        ("/topic/empty?topic=a/b", 400, "INVALID_TOPIC"),
        ("/topic/empty?topic=unknown", 404, "TOPIC_NOT_FOUND"),
        *[
            case
            for action in ("delete", "pause", "unpause")
            for case in [
                (f"/topic/{action}", 400, "MISSING_ARG_TOPIC"),
                (f"/topic/{action}?topic=%zz", 400, "INVALID_REQUEST"),
                (f"/topic/{action}?topic=a/b", 404, "TOPIC_NOT_FOUND"),
                (f"/topic/{action}?topic=unknown", 404, "TOPIC_NOT_FOUND"),
            ]
        ],
        *[
            case
            for action in ("create", *CHANNEL_ACTIONS)
            for case in [
                (f"/channel/{action}", 400, "MISSING_ARG_TOPIC"),
                (f"/channel/{action}?topic=%zz", 400, "INVALID_REQUEST"),
                (f"/channel/{action}?topic=a/b&channel=c", 400, "INVALID_ARG_TOPIC"),
                (f"/channel/{action}?topic=t", 400, "MISSING_ARG_CHANNEL"),
                (f"/channel/{action}?topic=t&channel=a/b", 400, "INVALID_ARG_CHANNEL"),
                (f"/channel/{action}?topic=unknown&channel=c", 404, "TOPIC_NOT_FOUND"),
            ]
        ],
    ],
)
def test_errors_of_topic_and_channel_endpoints(nsqd: Nsqd, target: str, status: int, code: str) -> None:
    check_error(nsqd.http("POST", target), status, code)
    assert "unknown" not in nsqd.topic_names()


# case 85
@pytest.mark.parametrize("action", CHANNEL_ACTIONS)
def test_unknown_channel(nsqd: Nsqd, topic: str, action: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    answer = nsqd.http("POST", f"/channel/{action}?topic={topic}&channel=unknown")
    check_error(answer, 404, "CHANNEL_NOT_FOUND")


# case 85
def test_first_of_two_values_wins_and_a_form_is_not_read(nsqd: Nsqd, topic: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}&topic=second")
    assert topic in nsqd.topic_names()
    assert "second" not in nsqd.topic_names()
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    check_error(nsqd.http("POST", "/topic/create", b"topic=inform", **form), 400, "MISSING_ARG_TOPIC")


# case 85
@pytest.mark.parametrize("command", ["pub", "mpub"])
@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "MISSING_ARG_TOPIC"),
        ("?topic=", "INVALID_TOPIC"),
        ("?topic=a/b", "INVALID_TOPIC"),
        ("?topic=%zz", "INVALID_REQUEST"),
    ],
)
def test_errors_of_publishing(nsqd: Nsqd, command: str, query: str, code: str) -> None:
    check_error(nsqd.http("POST", f"/{command}{query}", b"body"), 400, code)


# case 85
def test_empty_message_is_refused_before_the_topic_is_looked_at(nsqd: Nsqd, topic: str) -> None:
    check_error(nsqd.http("POST", f"/pub?topic={topic}", b""), 400, "MSG_EMPTY")
    check_error(nsqd.http("POST", "/pub", b""), 400, "MSG_EMPTY")
    assert topic not in nsqd.topic_names()


# case 86
@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("POST", "/ping", "GET, OPTIONS"),
        ("GET", "/pub?topic=x", "OPTIONS, POST"),
        ("PUT", "/topic/create?topic=x", "OPTIONS, POST"),
        ("DELETE", "/config/log_level", "GET, OPTIONS, PUT"),
    ],
)
def test_wrong_method(nsqd: Nsqd, method: str, target: str, allowed: str) -> None:
    answer = nsqd.http(method, target)
    check_error(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == allowed


# case 86
def test_head_is_a_wrong_method(nsqd: Nsqd) -> None:
    answer = nsqd.http("HEAD", "/ping")
    assert (answer.status, answer.body, answer.headers["allow"]) == (405, b"", "GET, OPTIONS")


# case 86
@pytest.mark.parametrize(
    ("target", "allowed"), [("/ping", "GET, OPTIONS"), ("/pub", "OPTIONS, POST"), ("/config/x", "GET, OPTIONS, PUT")]
)
def test_options(nsqd: Nsqd, target: str, allowed: str) -> None:
    answer = nsqd.http("OPTIONS", target)
    assert (answer.status, answer.body, answer.headers["allow"]) == (200, b"", allowed)


# case 86
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("target", ["/", "/nowhere", "/topic", "/config/", "/topic/create/x"])
def test_unknown_path(nsqd: Nsqd, method: str, target: str) -> None:
    check_error(nsqd.http(method, target), 404, "NOT_FOUND")


# case 86
@pytest.mark.parametrize(
    ("method", "target", "status", "location"),
    [
        ("GET", "/ping/", 301, "/ping"),
        ("GET", "/PING", 301, "/ping"),
        ("GET", "//ping", 301, "/ping"),
        ("POST", "/pub/?topic=x", 307, "/pub?topic=x"),
        ("POST", "/Topic/Create?topic=x", 307, "/topic/create?topic=x"),
    ],
)
def test_near_misses_are_redirected(nsqd: Nsqd, method: str, target: str, status: int, location: str) -> None:
    answer = nsqd.http(method, target)
    assert (answer.status, answer.headers["location"]) == (status, location)


# case 87
def test_message_of_the_limit_and_one_byte_more(connect: Connect, small: Nsqd, topic: str) -> None:
    check_ok(small.http("POST", f"/pub?topic={topic}", b"x" * 100))
    check_error(small.http("POST", f"/pub?topic={topic}", b"x" * 101), 413, "MSG_TOO_BIG")
    assert small.topic(topic)["depth"] == 1


def chunked(target: str, *parts: bytes) -> bytes:
    """A POST in chunks."""
    head = f"POST {target} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    return head.encode() + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


# case 87
def test_message_in_chunks(connect: Connect, small: Nsqd, topic: str) -> None:
    target = f"/pub?topic={topic}"
    check_ok(raw_request(small.address("HTTP"), chunked(target, b"x" * 60, b"y" * 40)))
    check_error(raw_request(small.address("HTTP"), chunked(target, b"x" * 60, b"y" * 41)), 413, "MSG_TOO_BIG")
    check_error(raw_request(small.address("HTTP"), chunked(target)), 400, "MSG_EMPTY")
    conn = connect(small)
    conn.subscribe(topic, "channel", ready=5)
    assert conn.message().body == b"x" * 60 + b"y" * 40
    conn.round_trip()
    assert not conn.held


def test_connection_is_kept_alive(nsqd: Nsqd, topic: str) -> None:
    request = f"POST /pub?topic={topic} HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody".encode()
    with Conn(nsqd.address("HTTP"), magic=b"") as conn:
        for count in (1, 2):
            conn.send(request)
            head = b""
            while not head.endswith(b"\r\n\r\nOK"):
                head += conn.read_raw(1)
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert nsqd.topic(topic)["message_count"] == count


def test_old_http_closes_after_the_answer(nsqd: Nsqd) -> None:
    with Conn(nsqd.address("HTTP"), magic=b"") as conn:
        conn.send(b"GET /ping HTTP/1.0\r\n\r\n")
        answer = b""
        while not answer.endswith(b"OK"):
            answer += conn.read_raw(1)
            if answer.endswith(b"200 OK"):
                answer += conn.read_raw(2)
        conn.closed()


# case 88
def test_mpub_text_splits_lines_and_keeps_carriage_returns(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    check_ok(nsqd.http("POST", f"/mpub?topic={topic}", b"one\n\ntwo\r\n\n\nlast"))
    conn = connect()
    conn.subscribe(topic, "channel", ready=5)
    assert [message.body for message in conn.messages(3)] == [b"one", b"two\r", b"last"]
    conn.round_trip()
    assert not conn.held


# case 88
@pytest.mark.parametrize("body", [b"", b"\n", b"\n\n\n"])
def test_mpub_text_of_nothing_is_fine(nsqd: Nsqd, topic: str, body: bytes) -> None:
    check_ok(nsqd.http("POST", f"/mpub?topic={topic}", body))
    assert nsqd.topic(topic)["message_count"] == 0


# case 88
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"good\n" + b"x" * 101, "MSG_TOO_BIG"),
        (b"good\n" * 101, "BODY_TOO_BIG"),
        (b"x" * 501, "BODY_TOO_BIG"),
    ],
)
@pytest.mark.parametrize("how", ["length", "chunks"])
def test_mpub_text_is_all_or_nothing(small: Nsqd, topic: str, body: bytes, code: str, how: str) -> None:
    target = f"/mpub?topic={topic}"
    if how == "length":
        answer = small.http("POST", target, body)
    else:
        answer = raw_request(small.address("HTTP"), chunked(target, body[:50], body[50:]))
        # Which of two faults is named first depends on how the body is read.
        code = answer.json["message"] if answer.json["message"] in {"MSG_TOO_BIG", "BODY_TOO_BIG"} else code
    check_error(answer, 413, code)
    assert topic not in small.topic_names() or small.topic(topic)["message_count"] == 0


# case 88
def test_mpub_text_of_the_limit(small: Nsqd, topic: str) -> None:
    check_ok(small.http("POST", f"/mpub?topic={topic}", (b"x" * 99 + b"\n") * 5))
    assert small.topic(topic)["message_count"] == 5


# case 88
@pytest.mark.parametrize("value", ["true", "1", "yes", "", "TRUE"])
def test_mpub_binary(connect: Connect, nsqd: Nsqd, topic: str, value: str) -> None:
    check_ok(nsqd.http("POST", f"/mpub?topic={topic}&binary={value}", mpub_body(b"one", b"t\nwo", b"three")))
    conn = connect()
    conn.subscribe(topic, "channel", ready=5)
    assert [message.body for message in conn.messages(3)] == [b"one", b"t\nwo", b"three"]


# case 88
@pytest.mark.parametrize("bodies", [[b"one", b"three"], [b"12345678"] * 9], ids=["few", "of one size"])
@pytest.mark.parametrize("rest", [b"\n", b"\0" * 100], ids=["line feed", "zeros"])
def test_what_follows_the_messages_of_mpub_binary_is_ignored(
    connect: Connect, nsqd: Nsqd, topic: str, bodies: list[bytes], rest: bytes
) -> None:
    check_ok(nsqd.http("POST", f"/mpub?topic={topic}&binary=true", mpub_body(*bodies) + rest))
    conn = connect()
    conn.subscribe(topic, "channel", ready=10)
    assert [message.body for message in conn.messages(len(bodies))] == bodies


# case 88
@pytest.mark.parametrize("value", ["false", "0"])
def test_mpub_that_is_not_binary(connect: Connect, nsqd: Nsqd, topic: str, value: str) -> None:
    check_ok(nsqd.http("POST", f"/mpub?topic={topic}&binary={value}", b"one\ntwo"))
    assert nsqd.topic(topic)["message_count"] == 2


# case 88
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "BAD_BODY"),
        (b"\0\0", "BAD_BODY"),
        (struct.pack(">i", 0), "BAD_BODY"),
        (struct.pack(">i", -1), "BAD_BODY"),
        (struct.pack(">i", 1000), "BAD_BODY"),
        (struct.pack(">i", 2) + with_length(b"one"), "BAD_MESSAGE"),
        (struct.pack(">ii", 1, 0), "BAD_MESSAGE"),
        (struct.pack(">ii", 1, -1), "BAD_MESSAGE"),
        (struct.pack(">ii", 1, 50) + b"short", "BAD_MESSAGE"),
        (mpub_body(b"one", b"") + b"\n", "BAD_MESSAGE"),
        (struct.pack(">i", 2**31 - 1) + with_length(b"one") + struct.pack(">i", -4) * 3, "BAD_BODY"),
        (mpub_body(b"x" * 101), "BAD_MESSAGE"),
    ],
)
def test_wrong_mpub_binary(small: Nsqd, topic: str, body: bytes, code: str) -> None:
    check_error(small.http("POST", f"/mpub?topic={topic}&binary=true", body), 413, code)
    assert topic not in small.topic_names() or small.topic(topic)["message_count"] == 0


# case 89
@pytest.mark.parametrize("delay", ["-1", "5001", "abc", "", "1.5", "99999999999999999999"])
def test_wrong_defer(small: Nsqd, topic: str, delay: str) -> None:
    check_error(small.http("POST", f"/pub?topic={topic}&defer={delay}", b"body"), 400, "INVALID_DEFER")
    assert topic not in small.topic_names() or small.topic(topic)["message_count"] == 0


# case 89
@pytest.mark.parametrize("delay", ["0", "5000", "%2B1"])
def test_good_defer(small: Nsqd, topic: str, delay: str) -> None:
    check_ok(small.http("POST", f"/pub?topic={topic}&defer={delay}", b"body"))
    assert small.topic(topic)["message_count"] == 1


# case 89
def test_topic_is_created_despite_a_wrong_defer(small: Nsqd, topic: str) -> None:
    check_error(small.http("POST", f"/pub?topic={topic}&defer=x", b"body"), 400, "INVALID_DEFER")
    assert topic in small.topic_names()


# case 92
def test_compressed_body_is_stored_as_it_is(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    body = gzip.compress(b"body")
    check_ok(nsqd.http("POST", f"/pub?topic={topic}", body, Content_Encoding="gzip"))
    conn = connect()
    conn.subscribe(topic, "channel", ready=1)
    assert conn.message().body == body


def test_deferred_publish_is_counted_as_deferred(nsqd: Nsqd, topic: str) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=channel")
    nsqd.post(f"/pub?topic={topic}&defer=60000", b"body")
    wait_until(lambda: nsqd.channel(topic, "channel")["deferred_count"] == 1)
    assert nsqd.channel(topic, "channel")["depth"] == 0


# case 86
@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
    ],
)
def test_what_is_not_http_is_answered_400(nsqd: Nsqd, request_bytes: bytes) -> None:
    assert raw_request(nsqd.address("HTTP"), request_bytes).status == 400


def test_endless_header_is_cut_off(nsqd: Nsqd) -> None:
    def send_for_ever(conn: Conn) -> None:
        conn.send(b"GET /ping HTTP/1.1\r\nX: ")
        for _ in range(64):
            conn.send(b"x" * 65536)
        conn.read_raw(1 << 20)

    with Conn(nsqd.address("HTTP"), magic=b"") as conn, pytest.raises(ConnectionError):
        send_for_ever(conn)


@pytest.mark.known_defect("D13")
@pytest.mark.parametrize(("method", "target"), [("POST", "/debug/freememory"), ("PUT", "/debug/setblockrate?rate=1")])
def test_debug_endpoints_that_do_something_say_so(nsqd: Nsqd, method: str, target: str) -> None:
    # An implementation without such a thing says that it has none.
    assert nsqd.http(method, target).status in {200, 404}


def test_debug_index(nsqd: Nsqd) -> None:
    assert nsqd.http("GET", "/debug/pprof/").status in {200, 404}
