"""RDY, heartbeats, output buffering, sampling: who gets what, and when."""

import struct
import time
from collections.abc import Callable

import pytest
from blackbox.daemons import Nsqd
from blackbox.wire import HEARTBEAT, Conn, wait_until

Connect = Callable[..., Conn]
ModuleNsqd = Callable[..., Nsqd]

# A timer may fire a little before the moment at which this side saw the question go out.
EARLY_SECONDS = 0.05


# case 29
@pytest.mark.parametrize(
    ("line", "granted"),
    [("RDY", 1), ("RDY ", 0), ("RDY 0", 0), ("RDY 2500", 2500), ("RDY 007", 7), (f"RDY {2**64 + 1}", 1)],
)
def test_rdy_is_granted(connect: Connect, nsqd: Nsqd, topic: str, line: str, granted: int) -> None:
    conn = connect()
    conn.subscribe(topic, "channel", ready=3)
    conn.command(line)
    conn.round_trip()
    assert nsqd.channel(topic, "channel")["clients"][0]["ready_count"] == granted


# case 29
@pytest.mark.parametrize(
    ("count", "text"),
    [
        ("-1", "RDY could not parse count -1"),
        ("abc", "RDY could not parse count abc"),
        ("2501", "RDY count 2501 out of range 0-2500"),
    ],
)
def test_rdy_is_refused(connect: Connect, topic: str, count: str, text: str) -> None:
    conn = connect()
    conn.subscribe(topic, "channel")
    conn.command(f"RDY {count}")
    assert conn.fatal() == f"E_INVALID {text}"


# case 39
def test_no_more_in_flight_than_rdy(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conn = connect()
    conn.mpub(topic, *[b"%d" % number for number in range(10)])
    conn.subscribe(topic, "channel")
    conn.round_trip()
    assert not conn.held
    conn.ready(3)
    first = conn.messages(3)
    conn.round_trip()
    channel = nsqd.channel(topic, "channel")
    assert (channel["in_flight_count"], channel["depth"]) == (3, 7)
    assert channel["clients"][0]["in_flight_count"] == 3
    assert not conn.held
    conn.finish(first[0])
    assert conn.message().body == b"3"
    conn.round_trip()
    assert not conn.held


# case 39
def test_lowering_rdy_keeps_what_is_in_flight(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conn = connect()
    conn.mpub(topic, *[b"%d" % number for number in range(6)])
    conn.subscribe(topic, "channel", ready=4)
    messages = conn.messages(4)
    conn.ready(1)
    conn.round_trip()
    assert nsqd.channel(topic, "channel")["in_flight_count"] == 4
    conn.finish(*messages[:3])
    conn.round_trip()
    assert nsqd.channel(topic, "channel")["in_flight_count"] == 1
    assert not conn.held
    conn.finish(messages[3])
    assert conn.message().body == b"4"
    conn.round_trip()
    assert nsqd.channel(topic, "channel")["clients"][0]["finish_count"] == 4


def test_consumers_of_a_channel_share_its_messages(connect: Connect, topic: str) -> None:
    conns = [connect() for _ in range(4)]
    for conn in conns:
        conn.subscribe(topic, "channel", ready=5)
    conns[0].mpub(topic, *[b"%d" % number for number in range(20)])
    bodies = [message.body for conn in conns for message in conn.messages(5)]
    assert sorted(bodies) == sorted(b"%d" % number for number in range(20))


# case 33
@pytest.mark.parametrize(
    ("delay", "text"),
    [("-1", "REQ could not parse timeout -1"), ("abc", "REQ could not parse timeout abc")],
)
def test_req_with_a_wrong_delay_is_fatal(connect: Connect, topic: str, delay: str, text: str) -> None:
    conn = connect()
    conn.subscribe(topic, "channel")
    conn.command(f"REQ 0123456789abcdef {delay}")
    assert conn.fatal() == f"E_INVALID {text}"


# case 33
def test_req_above_the_limit_is_clamped_to_it(connect: Connect, module_nsqd: ModuleNsqd) -> None:
    daemon = module_nsqd("--max-req-timeout=1s", ripe=1)
    topic = daemon.take_ripe()
    conn = connect(daemon)
    conn.publish(topic, b"body")
    conn.subscribe(topic, "ch", ready=1)
    sent = time.monotonic()
    conn.requeue(conn.message(), 5_000_000)
    again = conn.message()
    assert again.attempts == 2
    assert again.arrived - sent >= 1 - EARLY_SECONDS
    conn.requeue(again, 2**64 // 2_000_000)
    assert conn.message().attempts == 3


# case 35
def test_heartbeats_come_at_the_interval_asked_for(connect: Connect) -> None:
    conn = connect()
    start = time.monotonic()
    conn.identify(heartbeat_interval=1000)
    for number in range(1, 4):
        frame = conn.frame()
        assert (frame.kind, frame.data) == (0, HEARTBEAT)
        assert frame.arrived - start >= number - EARLY_SECONDS
        conn.send(b"NOP\n")


# case 35
def test_silent_client_is_closed_after_two_intervals_without_a_frame(connect: Connect) -> None:
    conn = connect()
    start = time.monotonic()
    conn.identify(heartbeat_interval=1000)
    conn.closed()
    assert time.monotonic() - start >= 2 - EARLY_SECONDS


# case 35
def test_any_command_keeps_a_connection_alive(connect: Connect, topic: str) -> None:
    conn = connect()
    conn.identify(heartbeat_interval=1000)
    for _ in range(3):
        assert conn.frame().data == HEARTBEAT
        conn.publish(topic, b"instead of NOP")


# case 36
@pytest.mark.waits_long
def test_heartbeats_come_to_producers_and_before_identify_too(nsqd: Nsqd) -> None:
    for conn in nsqd.early_birds:
        assert conn.frame(patience=60).data == HEARTBEAT


# case 37
@pytest.mark.parametrize("command", ["PUB", "MPUB"])
def test_stalled_body_is_given_up_after_two_intervals(connect: Connect, topic: str, command: str) -> None:
    conn = connect()
    conn.answer_heartbeats = False
    start = time.monotonic()
    conn.identify(heartbeat_interval=1000)
    conn.send(f"{command} {topic}\n".encode() + struct.pack(">i", 20) + struct.pack(">ii", 1, 12) + b"half")
    assert conn.fatal() == f"E_BAD_MESSAGE {command} failed to read message body"
    assert time.monotonic() - start >= 2 - EARLY_SECONDS


# case 38
def test_last_message_that_rdy_allows_is_not_held_back(connect: Connect, topic: str) -> None:
    conn = connect()
    conn.identify(output_buffer_timeout=-1, heartbeat_interval=60000)
    conn.subscribe(topic, "channel", ready=1)
    connect().publish(topic, b"body")
    assert conn.message().body == b"body"
    assert not conn.heartbeats


# case 38
def test_buffered_message_comes_with_the_flush(connect: Connect, topic: str) -> None:
    conn = connect()
    conn.identify(output_buffer_timeout=100, heartbeat_interval=60000)
    conn.subscribe(topic, "channel", ready=2)
    connect().publish(topic, b"body")
    assert conn.message().body == b"body"
    assert not conn.heartbeats


# case 38
def test_without_timed_flush_a_message_comes_with_the_heartbeat_at_the_latest(connect: Connect, topic: str) -> None:
    conn = connect()
    conn.identify(output_buffer_timeout=-1, heartbeat_interval=1000)
    conn.subscribe(topic, "channel", ready=2)
    connect().publish(topic, b"body")
    assert conn.message().body == b"body"


def test_without_buffer_a_message_comes_at_once(connect: Connect, topic: str) -> None:
    conn = connect()
    conn.identify(output_buffer_size=-1, heartbeat_interval=60000)
    conn.subscribe(topic, "channel", ready=100)
    connect().publish(topic, b"one", b"two")
    assert [message.body for message in conn.messages(2)] == [b"one", b"two"]
    assert not conn.heartbeats


def drain_sample(connect: Connect, nsqd: Nsqd, topic: str, rate: int, count: int) -> int:
    """How many of `count` messages a sampling consumer gets before the channel is empty."""
    conn = connect()
    for _ in range(count // 1000):
        conn.mpub(topic, *[b"x"] * 1000)
    conn.identify(sample_rate=rate, output_buffer_timeout=25)
    conn.subscribe(topic, "channel", ready=2500)

    def received() -> bool:
        channel = nsqd.channel(topic, "channel")
        return bool(channel["depth"] == 0 and nsqd.topic(topic)["depth"] == 0)

    wait_until(received)
    conn.round_trip()
    got = len(conn.held)
    channel = nsqd.channel(topic, "channel")
    assert (channel["in_flight_count"], channel["deferred_count"], channel["depth"]) == (got, 0, 0)
    return got


# case 40
def test_sample_rate_passes_its_share_and_the_rest_vanishes(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    assert 850 < drain_sample(connect, nsqd, topic, rate=50, count=2000) < 1150


# case 40
@pytest.mark.known_defect("D6")
def test_sample_rate_of_one_passes_one_percent(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    # 1 % of 20000 is 200, and 2 % is 400, with a deviation below 20.
    assert 100 < drain_sample(connect, nsqd, topic, rate=1, count=20000) < 300


@pytest.mark.known_defect("D7")
def test_consumer_that_paused_reading_is_served_again_or_closed(connect: Connect, topic: str, patience: float) -> None:
    conn, publisher = connect(), connect()
    conn.identify(heartbeat_interval=1000)
    conn.subscribe(topic, "channel", ready=64)
    bodies = [bytes([number]) * 1_000_000 for number in range(32)]
    publisher.publish(topic, *bodies)
    got: list[bytes] = []
    # Commands go on while nothing is read, for longer than the server's write deadline of one interval.
    reads_again = time.monotonic() + 1.8

    def served_or_closed() -> bool:
        try:
            conn.send(b"NOP\n")
            if time.monotonic() < reads_again:
                time.sleep(0.1)
            else:
                got.append(conn.message(patience=0.3).body)
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return len(got) == len(bodies)

    wait_until(served_or_closed, patience)
    assert got == bodies[: len(got)]
