"""PUB, MPUB, DPUB: sizes, bounds, and what a refused publish leaves behind."""

import struct
import time
from collections.abc import Callable

import pytest
from blackbox.daemons import Nsqd
from blackbox.wire import Conn, mpub_body, with_length

Connect = Callable[..., Conn]
ModuleNsqd = Callable[..., Nsqd]


@pytest.fixture(scope="module")
def small(module_nsqd: ModuleNsqd) -> Nsqd:
    """A broker that takes messages of 100 bytes in bodies of 504: (504 - 4) / 5 = 100 messages at most."""
    return module_nsqd("--max-msg-size=100", "--max-body-size=504")


def refused(conn: Conn, line: str, sent: bytes) -> str:
    """The error that a command brings whose body is sent as it is."""
    conn.send(line.encode() + b"\n" + sent)
    return conn.fatal()


def size(number: int) -> bytes:
    """A length alone: what would follow must not be waited for."""
    return struct.pack(">i", number)


# case 22
@pytest.mark.parametrize("command", ["PUB {topic}", "DPUB {topic} 0"])
@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0, "invalid message body size 0"),
        (-1, "invalid message body size -1"),
        (101, "message too big 101 > 100"),
        (2**31 - 1, "message too big 2147483647 > 100"),
    ],
)
def test_wrong_size_of_a_message(
    connect: Connect, small: Nsqd, topic: str, command: str, length: int, text: str
) -> None:
    word = command.split(maxsplit=1)[0]
    answer = refused(connect(small), command.format(topic=topic), size(length))
    assert answer == f"E_BAD_MESSAGE {word} {text}"


# case 22
def test_smallest_and_biggest_message_arrive(connect: Connect, small: Nsqd, topic: str) -> None:
    conn = connect(small)
    bodies = [b"a", b"z" * 100]
    conn.publish(topic, *bodies)
    conn.mpub(topic, *bodies)
    conn.subscribe(topic, "channel", ready=4)
    assert [message.body for message in conn.messages(4)] == bodies * 2


# case 22
def test_message_of_the_default_limit_arrives_whole(connect: Connect, topic: str) -> None:
    conn = connect()
    bodies = [bytes(range(256)) * 4096, b"y" * 65537]
    conn.publish(topic, bodies[0])
    conn.mpub(topic, bodies[1])
    conn.subscribe(topic, "channel", ready=2)
    assert [message.body for message in conn.messages(2)] == bodies


# case 23
@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (size(0), "E_BAD_BODY MPUB invalid body size 0"),
        (size(-1), "E_BAD_BODY MPUB invalid body size -1"),
        (size(505), "E_BAD_BODY MPUB body too big 505 > 504"),
        (size(4) + size(0), "E_BAD_BODY MPUB invalid message count 0"),
        (size(4) + size(-1), "E_BAD_BODY MPUB invalid message count -1"),
        (size(504) + size(101), "E_BAD_BODY MPUB invalid message count 101"),
        (size(13) + size(2) + with_length(b"a") + size(0), "E_BAD_MESSAGE MPUB invalid message(1) body size 0"),
        (size(13) + size(2) + with_length(b"a") + size(-5), "E_BAD_MESSAGE MPUB invalid message(1) body size -5"),
        (size(109) + size(1) + size(101), "E_BAD_MESSAGE MPUB message too big 101 > 100"),
    ],
)
def test_wrong_sizes_in_mpub(connect: Connect, small: Nsqd, topic: str, sent: bytes, text: str) -> None:
    # A server may wait for the whole body before it looks inside: give it all that was announced.
    (announced,) = struct.unpack_from(">i", sent)
    conn = connect(small)
    conn.send(b"MPUB " + topic.encode() + b"\n" + sent.ljust(4 + max(0, min(announced, 504)), b"\0"))
    assert conn.error() == text


# case 23
def test_no_message_of_a_refused_mpub_is_queued(connect: Connect, small: Nsqd, topic: str) -> None:
    small.post(f"/topic/create?topic={topic}")
    answer = refused(connect(small), f"MPUB {topic}", size(13) + size(2) + with_length(b"a") + size(0))
    assert answer == "E_BAD_MESSAGE MPUB invalid message(1) body size 0"
    assert small.topic(topic)["message_count"] == 0


# case 23
def test_every_message_of_an_mpub_arrives_in_order(connect: Connect, topic: str) -> None:
    conn = connect()
    bodies = [b"message %d" % number for number in range(500)]
    conn.mpub(topic, *bodies)
    conn.subscribe(topic, "channel", ready=500)
    messages = conn.messages(500)
    assert [message.body for message in messages] == bodies
    assert len({message.id for message in messages}) == 500
    assert {message.attempts for message in messages} == {1}


# case 24
@pytest.mark.known_defect("D9")
def test_mpub_longer_than_its_messages_is_refused(connect: Connect, topic: str) -> None:
    inner = mpub_body(b"one", b"two")
    conn = connect()
    conn.send(b"MPUB " + topic.encode() + b"\n" + size(len(inner) + 4) + inner + b"NOP\n")
    assert conn.error().startswith("E_BAD_BODY MPUB ")
    conn.closed()


# case 24
@pytest.mark.known_defect("D9")
def test_mpub_shorter_than_its_messages_is_refused(connect: Connect, topic: str) -> None:
    inner = mpub_body(b"one", b"two")
    conn = connect()
    conn.send(b"MPUB " + topic.encode() + b"\n" + size(len(inner) - 2) + inner)
    assert conn.error().startswith(("E_BAD_BODY MPUB ", "E_BAD_MESSAGE MPUB "))


# case 25
def test_bad_topic_of_mpub_carries_the_code_twice(run: Callable[[str], str]) -> None:
    assert run("MPUB a/b") == 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a/b" is not valid'


# case 26
@pytest.mark.parametrize("command", ["PUB {topic}", "DPUB {topic} 0"])
def test_refused_message_creates_no_topic(connect: Connect, nsqd: Nsqd, topic: str, command: str) -> None:
    refused(connect(), command.format(topic=topic), size(0))
    assert topic not in nsqd.topic_names()


# case 26
@pytest.mark.known_defect("D9")
def test_refused_mpub_creates_no_topic(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    refused(connect(), f"MPUB {topic}", size(4) + size(0))
    assert topic not in nsqd.topic_names()


# case 27
@pytest.mark.parametrize(
    ("delay", "text"),
    [
        ("-1", "DPUB could not parse timeout -1"),
        ("+1", "DPUB could not parse timeout +1"),
        ("abc", "DPUB could not parse timeout abc"),
        ("1.5", "DPUB could not parse timeout 1.5"),
        ("3600001", "DPUB timeout 3600001 out of range 0-3600000"),
    ],
)
def test_wrong_delay_of_dpub(run: Callable[[str], str], delay: str, text: str) -> None:
    assert run(f"DPUB topic {delay}") == f"E_INVALID {text}"


# case 27
@pytest.mark.parametrize("delay", ["", "0", "00", "3600000"])
def test_good_delay_of_dpub(connect: Connect, topic: str, delay: str) -> None:
    conn = connect()
    conn.command(f"DPUB {topic} {delay}", b"body")
    conn.ok()


def test_publishers_are_shown_with_what_they_published(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conn = connect()
    conn.identify(client_id=topic)
    conn.publish(topic, b"one", b"two")
    conn.mpub(topic, b"three", b"four", b"five")
    (shown,) = [producer for producer in nsqd.stats()["producers"] if producer["client_id"] == topic]
    assert shown["pub_counts"] == [{"topic": topic, "count": 5}]


@pytest.mark.known_defect("D12")
def test_publishers_are_shown_with_every_topic(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conn = connect()
    conn.identify(client_id=topic)
    conn.publish(topic + "a", b"one")
    conn.publish(topic + "b", b"one", b"two")
    (shown,) = [producer for producer in nsqd.stats()["producers"] if producer["client_id"] == topic]
    counts = {entry["topic"]: entry["count"] for entry in shown["pub_counts"]}
    assert counts == {topic + "a": 1, topic + "b": 2}


def test_timestamp_is_the_time_of_publishing_in_nanoseconds(connect: Connect, topic: str) -> None:
    conn = connect()
    before = time.time_ns()
    conn.publish(topic, b"one")
    conn.mpub(topic, b"two", b"three")
    after = time.time_ns()
    conn.subscribe(topic, "channel", ready=3)
    for message in conn.messages(3):
        assert before <= message.timestamp_ns <= after


def test_many_publishers_at_once_lose_nothing(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conns = [connect() for _ in range(8)]
    for index, conn in enumerate(conns):
        bodies = [b"%d/%d" % (index, number) for number in range(50)]
        conn.send(b"".join(b"PUB %b\n%b" % (topic.encode(), with_length(body)) for body in bodies))
        conn.send(b"MPUB %b\n%b" % (topic.encode(), with_length(mpub_body(*bodies))))
    for conn in conns:
        for _ in range(51):
            conn.ok()
    consumer = connect()
    consumer.subscribe(topic, "channel", ready=800)
    messages = consumer.messages(800)
    assert len({message.id for message in messages}) == 800
    assert sorted(message.body for message in messages) == sorted(
        b"%d/%d" % (index, number) for index in range(8) for number in range(50) for _ in range(2)
    )
