"""Framing, command lines, states and names of the TCP protocol."""

import json
import struct
from collections.abc import Callable

import pytest
from blackbox.daemons import Nsqd
from blackbox.wire import ERROR, RESPONSE, Conn, mpub_body, with_length

Connect = Callable[..., Conn]
StartNsqd = Callable[..., Nsqd]


# case 1
@pytest.mark.parametrize("magic", [b"  V1", b"GET ", b"\0\0\0\0"])
def test_bad_magic_is_answered_with_one_exact_frame_and_eof(connect: Connect, magic: bytes) -> None:
    conn = connect(magic=magic)
    assert conn.read_raw(22) == bytes.fromhex("00000012 00000001") + b"E_BAD_PROTOCOL"
    conn.closed()


# case 2
def test_magic_in_two_packets_works(connect: Connect, topic: str) -> None:
    conn = connect(magic=b" ")
    conn.send(b" V")
    conn.send(b"2")
    conn.publish(topic, b"body")


# case 3
def test_lines_end_in_lf_or_crlf(connect: Connect, topic: str) -> None:
    conn = connect()
    conn.send(b"PUB " + topic.encode() + b"\r\n" + with_length(b"one"))
    conn.ok()
    conn.send(b"PUB " + topic.encode() + b"\n" + with_length(b"two"))
    conn.ok()


# cases 4 and 5
@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", "E_INVALID invalid command "),
        (" NOP", "E_INVALID invalid command "),
        ("pub topic", "E_INVALID invalid command pub"),
        ("nop", "E_INVALID invalid command nop"),
        ("HELLO there world", "E_INVALID invalid command HELLO"),
        ("NOP\r", "E_INVALID invalid command NOP\r"),
    ],
)
def test_unknown_command_is_fatal_and_named(connect: Connect, line: str, text: str) -> None:
    conn = connect()
    conn.command(line + ("\r" if line.endswith("\r") else ""))
    assert conn.fatal() == text


# case 6
def test_line_of_16384_bytes_is_accepted(connect: Connect, topic: str) -> None:
    conn = connect()
    conn.send(b"NOP ".ljust(16383, b"x") + b"\n")
    conn.publish(topic, b"still there")


# case 6
def test_line_of_16385_bytes_closes_without_a_frame(connect: Connect) -> None:
    conn = connect()
    conn.send(b"NOP ".ljust(16384, b"x") + b"\n")
    conn.closed()


# case 7
@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("SUB  topic channel", 'E_BAD_TOPIC SUB topic name "" is not valid'),
        ("SUB topic  channel", 'E_BAD_CHANNEL SUB channel name "" is not valid'),
        ("PUB  topic", 'E_BAD_TOPIC PUB topic name "" is not valid'),
        ("PUB ", 'E_BAD_TOPIC PUB topic name "" is not valid'),
    ],
)
def test_double_or_trailing_space_makes_an_empty_name(run: Callable[[str], str], line: str, text: str) -> None:
    assert run(line) == text


# case 8
def test_extra_parameters_are_ignored(connect: Connect, topic: str) -> None:
    conn = connect()
    conn.command(f"PUB {topic} and more", b"body")
    conn.ok()
    conn.command(f"SUB {topic} channel and more")
    conn.ok()
    conn.command("RDY 1 and more")
    conn.command(b"FIN " + conn.message().id + b" and more")
    conn.round_trip()


# case 8
def test_extra_parameters_of_auth_are_fatal(run: Callable[[str], str]) -> None:
    assert run("AUTH please") == "E_INVALID AUTH invalid number of parameters"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("SUB topic", "E_INVALID SUB insufficient number of parameters"),
        ("PUB", "E_INVALID PUB insufficient number of parameters"),
        ("MPUB", "E_INVALID MPUB insufficient number of parameters"),
        ("DPUB topic", "E_INVALID DPUB insufficient number of parameters"),
    ],
)
def test_missing_parameters_are_fatal(run: Callable[[str], str], line: str, text: str) -> None:
    assert run(line) == text


STATES = ("init", "subscribed", "closing")
BODIES = {
    "IDENTIFY": (b"{}",),
    "AUTH": (b"secret",),
    "PUB": (b"body",),
    "MPUB": (mpub_body(b"a", b"b"),),
    "DPUB": (b"body",),
}
LINES = {
    "SUB": "SUB {topic} channel",
    "PUB": "PUB {topic}",
    "MPUB": "MPUB {topic}",
    "DPUB": "DPUB {topic} 1000",
    "RDY": "RDY 1",
    "FIN": "FIN 0123456789abcdef",
    "REQ": "REQ 0123456789abcdef 0",
    "TOUCH": "TOUCH 0123456789abcdef",
}
NOT_HERE = "E_INVALID cannot {command} in current state"
NOT_IN_FLIGHT = "E_{command}_FAILED {command} 0123456789abcdef failed ID not in flight"
# What each command brings in the states init, subscribed, closing; None is silence.
TABLE: dict[str, tuple[str | None, str | None, str | None]] = {
    "IDENTIFY": ("OK", NOT_HERE, NOT_HERE),
    "AUTH": ("E_AUTH_DISABLED AUTH disabled", NOT_HERE, NOT_HERE),
    "SUB": ("OK", NOT_HERE, NOT_HERE),
    "RDY": (NOT_HERE, None, None),
    "FIN": (NOT_HERE, NOT_IN_FLIGHT, NOT_IN_FLIGHT),
    "REQ": (NOT_HERE, NOT_IN_FLIGHT, NOT_IN_FLIGHT),
    "TOUCH": (NOT_HERE, NOT_IN_FLIGHT, NOT_IN_FLIGHT),
    "CLS": (NOT_HERE, "CLOSE_WAIT", NOT_HERE),
    "PUB": ("OK", "OK", "OK"),
    "MPUB": ("OK", "OK", "OK"),
    "DPUB": ("OK", "OK", "OK"),
    "NOP": (None, None, None),
}


# cases 16, 17, 18, 34
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("command", TABLE)
def test_each_command_in_each_state(connect: Connect, topic: str, command: str, state: str) -> None:
    conn = connect()
    if state != "init":
        conn.subscribe(topic + "x", "channel")
    if state == "closing":
        conn.command("CLS")
        assert conn.reply().data == b"CLOSE_WAIT"
    conn.command(LINES.get(command, command).format(topic=topic), *BODIES.get(command, ()))
    expected = TABLE[command][STATES.index(state)]
    if expected is not None:
        text = expected.format(command=command)
        frame = conn.reply()
        assert (frame.kind, frame.data.decode()) == (ERROR if text.startswith("E_") else RESPONSE, text)
        if text.startswith("E_") and expected != NOT_IN_FLIGHT:
            conn.closed()
            return
    conn.publish(topic, b"still there")


# case 34
def test_after_cls_rdy_is_ignored_and_fin_works(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conn = connect()
    conn.mpub(topic, b"one", b"two")
    conn.subscribe(topic, "channel", ready=1)
    message = conn.message()
    conn.command("CLS")
    assert conn.reply().data == b"CLOSE_WAIT"
    conn.command("RDY not-even-parsed")
    conn.ready(10)
    conn.finish(message)
    conn.round_trip()
    channel = nsqd.channel(topic, "channel")
    assert (channel["depth"], channel["in_flight_count"], channel["clients"][0]["finish_count"]) == (1, 0, 1)
    assert channel["clients"][0]["state"] == 4
    assert not conn.held


GOOD_NAMES = ["a", ".", "_", "-", "A.b_c-9", "n" * 64, "x#ephemeral", "n" * 54 + "#ephemeral"]
BAD_NAMES = [
    "n" * 65,
    "n" * 55 + "#ephemeral",
    "#ephemeral",
    "x#ephemeral#ephemeral",
    "x#",
    "x#Ephemeral",
    "a/b",
    "é",
    "a\t",
]


# case 21
@pytest.mark.parametrize("name", GOOD_NAMES)
def test_good_names(connect: Connect, nsqd: Nsqd, name: str) -> None:
    conn = connect()
    conn.subscribe(name, name)
    assert name in nsqd.channel_names(name.replace("#", "%23"))


QUOTED = {"a\t": '"a\\t"'}


# case 21
@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names(run: Callable[[str], str], name: str) -> None:
    quoted = QUOTED.get(name, f'"{name}"')
    assert run(f"SUB {name} channel") == f"E_BAD_TOPIC SUB topic name {quoted} is not valid"
    assert run(f"SUB topic {name}") == f"E_BAD_CHANNEL SUB channel name {quoted} is not valid"
    assert run(f"PUB {name}") == f"E_BAD_TOPIC PUB topic name {quoted} is not valid"
    assert run(f"DPUB {name} 10") == f"E_BAD_TOPIC DPUB topic name {quoted} is not valid"


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        (b'a"b', '"a\\"b"'),
        (b"a\\b", '"a\\\\b"'),
        (b"a\x00\x7f\xff", '"a\\x00\\x7f\\xff"'),
        ("\u2028ü漢".encode(), '"\\u2028ü漢"'),
    ],
)
def test_bad_names_are_quoted_as_go_does(connect: Connect, name: bytes, quoted: str) -> None:
    conn = connect()
    conn.command(b"PUB " + name)
    assert conn.fatal() == f"E_BAD_TOPIC PUB topic name {quoted} is not valid"


# case 28
def test_pipelined_commands_are_answered_in_order(connect: Connect, topic: str) -> None:
    conn = connect()
    publish = b"PUB " + topic.encode() + b"\n"
    bodies = [b"one", b"two", b"three"]
    conn.send(
        b"IDENTIFY\n"
        + with_length(b'{"feature_negotiation":true}')
        + b"".join(publish + with_length(body) for body in bodies)
        + b"SUB %b channel\nRDY 3\nFIN 0123456789abcdef\n" % topic.encode()
    )
    assert conn.reply().data.startswith(b'{"max_rdy_count"')
    for _ in range(4):
        conn.ok()
    assert conn.error() == "E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"
    assert [message.body for message in conn.messages(3)] == bodies


# case 30
@pytest.mark.parametrize("command", ["FIN {id}", "REQ {id} 0", "TOUCH {id}"])
@pytest.mark.parametrize("unknown", ["0123456789abcdef", "not hexadecimal!".replace(" ", "-")])
def test_unknown_id_is_not_fatal(connect: Connect, topic: str, command: str, unknown: str) -> None:
    conn = connect()
    conn.subscribe(topic, "channel", ready=1)
    word = command.split(maxsplit=1)[0]
    conn.command(command.format(id=unknown))
    assert conn.error() == f"E_{word}_FAILED {word} {unknown} failed ID not in flight"
    conn.publish(topic, b"body")
    assert conn.message().body == b"body"


# case 31
@pytest.mark.parametrize("command", ["FIN {id}", "REQ {id} 0", "TOUCH {id}"])
def test_message_of_another_consumer_is_not_owned(connect: Connect, topic: str, command: str) -> None:
    owner, other = connect(), connect()
    owner.publish(topic, b"body")
    owner.subscribe(topic, "channel", ready=1)
    message = owner.message()
    other.subscribe(topic, "channel")
    word = command.split(maxsplit=1)[0]
    other.command(command.format(id=message.id.decode()))
    text = f"E_{word}_FAILED {word} {message.id.decode()} failed client does not own message"
    assert other.error() == text
    other.round_trip()
    owner.finish(message)
    owner.round_trip()


# case 32
@pytest.mark.parametrize("command", ["FIN {id}", "REQ {id} 0", "TOUCH {id}"])
@pytest.mark.parametrize("length", [15, 17, 0])
def test_id_of_another_length_than_16_is_fatal(connect: Connect, topic: str, command: str, length: int) -> None:
    conn = connect()
    conn.subscribe(topic, "channel")
    conn.command(command.format(id="f" * length))
    assert conn.fatal() == "E_INVALID invalid message ID"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("FIN", "E_INVALID FIN insufficient number of params"),
        ("REQ 0123456789abcdef", "E_INVALID REQ insufficient number of params"),
        ("TOUCH", "E_INVALID TOUCH insufficient number of params"),
    ],
)
def test_missing_parameters_of_answers_are_fatal(connect: Connect, topic: str, line: str, text: str) -> None:
    conn = connect()
    conn.subscribe(topic, "channel")
    conn.command(line)
    assert conn.fatal() == text


# case 20
def test_one_consumer_too_many(connect: Connect, start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd("--max-channel-consumers=1")
    first, second = connect(daemon), connect(daemon)
    first.subscribe("topic", "channel")
    second.command("SUB topic channel")
    assert second.fatal() == "E_SUB_FAILED SUB failed consumers for topic:channel exceeds limit of 1"
    connect(daemon).subscribe("topic", "other")


def test_eof_inside_a_body_still_brings_the_error(connect: Connect, topic: str) -> None:
    conn = connect()
    conn.send(b"PUB " + topic.encode() + b"\n" + struct.pack(">i", 10) + b"half")
    conn.sock.shutdown(1)
    assert conn.fatal() == "E_BAD_MESSAGE PUB failed to read message body"


def test_identify_that_is_never_sent_leaves_the_address_as_client_id(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    silent, polite = connect(), connect()
    silent.subscribe(topic, "silent")
    polite.command("IDENTIFY", json.dumps({"client_id": "me", "hostname": "here", "user_agent": "test/1"}).encode())
    polite.ok()
    polite.subscribe(topic, "polite")
    client = nsqd.channel(topic, "silent")["clients"][0]
    assert (client["client_id"], client["hostname"], client["user_agent"]) == ("127.0.0.1", "127.0.0.1", "")
    client = nsqd.channel(topic, "polite")["clients"][0]
    assert (client["client_id"], client["hostname"], client["user_agent"]) == ("me", "here", "test/1")
