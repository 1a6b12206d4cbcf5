"""A receiver's connection: what bytes from nsqd mean, however they are cut, and which it does not believe."""

import tracemalloc

import pytest

from pyspark_nsq.connector.connection import RECENT_FINS_MIN, Connection, Source
from pyspark_nsq.connector.errors import ConnectError, RefusedError
from pyspark_nsq.connector.handshake import ServerFacts
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.proto.errors import WireError
from pyspark_nsq.proto.frames import CLOSE_WAIT, ERROR, HEARTBEAT, OK, RESPONSE, encode_frame, encode_message

FRAME_SIZE_MAX = 10_000
SIZES = [1, 0, 50, 9_000, 7]
IDS = [b"%016d" % number for number in range(5)]


def connection() -> Connection:
    source = Source("topic", Address("127.0.0.1", 4150))
    return Connection(source, ServerFacts("1.3.0", 2500, 60_000, 900_000), "channel", FRAME_SIZE_MAX)


def output(of: Connection) -> bytes:
    return b"".join(of.take_output())


STREAM = (
    encode_frame(RESPONSE, OK)
    + b"".join(encode_message(1, 1, message_id, b"x" * size) for message_id, size in zip(IDS, SIZES, strict=True))
    + encode_frame(RESPONSE, HEARTBEAT)
    + encode_frame(ERROR, b"E_TOUCH_FAILED TOUCH " + IDS[0] + b" failed ID not in flight")
)


@pytest.mark.parametrize("size", [1, 3, 1000, len(STREAM)])
def test_bytes_mean_the_same_however_they_are_cut(size: int) -> None:
    one = connection()
    one.set_rdy(5, 0.0, 1.0)
    one.touch(IDS[0])
    ids, sizes, failed = [], [], []
    for start in range(0, len(STREAM), size):
        events = one.receive(STREAM[start : start + size])
        ids += events.messages.column("id").to_pylist()
        sizes += [len(body) for body in events.messages.column("body").to_pylist()]
        failed += events.failed
    assert (ids, sizes) == (IDS, SIZES)
    assert [(each.word, each.message_id) for each in failed] == [(b"TOUCH", IDS[0])]
    assert one.subscribed
    assert one.in_flight == 5
    assert output(one) == b"SUB topic channel\nRDY 5\nTOUCH %b\nNOP\n" % IDS[0]


def test_heartbeats_are_answered_once_and_not_where_something_waits_to_be_sent() -> None:
    one = connection()
    output(one)
    one.receive(encode_frame(RESPONSE, HEARTBEAT) * 50)
    one.receive(encode_frame(RESPONSE, HEARTBEAT) * 50)
    assert one.has_output
    assert output(one) == b"NOP\n"
    assert not one.has_output
    one.receive(encode_frame(RESPONSE, HEARTBEAT))
    one.set_rdy(5, 0.0, 1.0)
    assert one.take_output(is_sending=True) == [b"RDY 5\n"]
    assert not one.has_output


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x7f\xff\xff\xff\x00\x00\x00\x02", WireError),
        (b"\x00\x00\x00\x03\x00\x00\x00", WireError),
        (encode_frame(3, b"?"), WireError),
        (encode_frame(2, b"too short for a message"), WireError),
        (encode_frame(RESPONSE, b"whatever"), WireError),
        (encode_frame(RESPONSE, OK) * 2, WireError),
        (encode_frame(ERROR, b"E_BAD_TOPIC SUB topic name is not valid"), RefusedError),
        (encode_frame(ERROR, b"E_UNAUTHORIZED AUTH failed for SUB"), ConnectError),
        (encode_frame(ERROR, b"E_FIN_FAILED FIN short"), RefusedError),
        (encode_frame(ERROR, b"E_FIN_FAILED FIN " + IDS[0]), WireError),
        (encode_frame(RESPONSE, CLOSE_WAIT), WireError),
    ],
)
def test_what_no_nsqd_says_and_fatal_errors_end_the_connection(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        connection().receive(data)


def test_no_more_commands_are_refused_than_were_sent() -> None:
    """What is refused is remembered, and takes time in which nobody else is heard."""
    one = connection()
    one.finish(IDS[0] + IDS[1])
    one.touch(IDS[2])
    one.requeue(IDS[3])
    refusals = [encode_frame(ERROR, b"E_FIN_FAILED FIN " + message_id) for message_id in IDS]
    assert [each.message_id for each in one.receive(b"".join(refusals[:4])).failed] == IDS[:4]
    with pytest.raises(WireError, match="an answer to nothing that was asked: b'E_FIN_FAILED"):
        one.receive(refusals[4])


def test_it_is_closed_once() -> None:
    one = connection()
    one.close()
    one.receive(encode_frame(RESPONSE, CLOSE_WAIT))
    assert one.closed_by_nsqd
    with pytest.raises(WireError, match="an answer to nothing that was asked: b'CLOSE_WAIT'"):
        one.receive(encode_frame(RESPONSE, CLOSE_WAIT))


def test_what_rdy_allowed_counts_until_nsqd_has_read_the_new_one() -> None:
    one = connection()
    one.set_rdy(100, 0.0, 1.0)
    one.set_rdy(10, 5.0, 1.0)
    one.set_rdy(20, 5.5, 1.0)
    assert [one.charge(now) for now in (5.5, 5.9, 6.1)] == [100, 100, 20]
    assert output(one).endswith(b"RDY 100\nRDY 10\nRDY 20\n")
    one.set_rdy(20, 7.0, 1.0)
    assert not one.has_output


def test_the_memory_of_fins_is_bounded() -> None:
    one = connection()
    for _ in range(3):
        one.finish(b"".join(b"%016d" % number for number in range(RECENT_FINS_MIN)))
    assert len(one.recent_fins()) == RECENT_FINS_MIN * 16
    one.recent_fins_min = 100
    one.finish(b"%016d" % 7)
    assert one.recent_fins() == b"".join(
        b"%016d" % number for number in [*range(RECENT_FINS_MIN - 99, RECENT_FINS_MIN), 7]
    )


def test_fins_that_come_one_by_one_cost_no_more_memory() -> None:
    one = connection()
    tracemalloc.start()
    try:
        for number in range(2 * RECENT_FINS_MIN):
            one.finish(b"%016d" % number)
            one.take_output()
        assert tracemalloc.get_traced_memory()[0] < 1.5 * RECENT_FINS_MIN * 16
    finally:
        tracemalloc.stop()


def test_as_many_fins_are_remembered_as_nsqd_may_not_have_read() -> None:
    one = connection()
    one.set_rdy(3 * RECENT_FINS_MIN, 0.0, 1.0)
    one.set_rdy(1, 0.0, 1.0)
    for number in range(40):
        one.finish(b"%016d" % number * 1000)
    assert len(one.recent_fins()) == 3 * RECENT_FINS_MIN * 16


def test_a_dead_letter_is_confirmed_in_the_order_of_publishing() -> None:
    one = connection()
    one.receive(encode_frame(RESPONSE, OK))
    one.publish("dead", IDS[0], b"a")
    one.publish("dead", IDS[1], b"b")
    assert one.receive(encode_frame(RESPONSE, OK)).published == [IDS[0]]
    assert one.receive(encode_frame(RESPONSE, OK)).published == [IDS[1]]


def test_more_messages_than_were_ever_allowed_end_the_connection() -> None:
    """Up to twice as many come where nsqd counts anew, as when a channel is emptied."""
    one = connection()
    messages = [encode_message(1, 1, b"%016d" % number, b"body") for number in range(21)]
    with pytest.raises(WireError, match="1 messages are in flight, RDY never allowed more than 0"):
        one.receive(messages[0])
    one = connection()
    one.set_rdy(10, 0.0, 1.0)
    one.set_rdy(0, 1.0, 1.0)
    assert len(one.receive(b"".join(messages[:20])).messages) == 20
    with pytest.raises(WireError, match="21 messages are in flight, RDY never allowed more than 10"):
        one.receive(messages[20])


def test_what_nsqd_sends_for_many_fins_it_sends_together() -> None:
    one = connection()
    one.set_rdy(40, 0.0, 1.0)
    ids = [b"%016d" % number for number in range(40)]
    one.receive(encode_frame(RESPONSE, OK) + b"".join(encode_message(1, 1, message_id, b"x") for message_id in ids))
    output(one)
    one.finish(ids[0])
    assert output(one) == b"FIN %b\n" % ids[0]
    one.finish(b"".join(ids[1:]))
    fins = b"".join(b"FIN %b\n" % message_id for message_id in ids[1:])
    assert output(one) == b"RDY 0\n" + fins + b"RDY 40\n"
    # Where nothing more shall come, it stays so.
    one.set_rdy(0, 1.0, 1.0)
    one.finish(b"".join(ids[1:]))
    assert output(one) == b"RDY 0\n" + fins
