"""Sessions over a real engine, without sockets: bytes in, frames out, time by hand."""

from collections.abc import Callable

import pytest
from simulation.session_world import CLOSED, MS, OK, SECOND, Client, World, greeted, messages, subscribed

from pyspark_nsq.broker.session import MAGIC_TIMEOUT_NS
from pyspark_nsq.proto.commands import MAGIC_V2, auth, fin, identify, mpub, pub, rdy, req, sized, sub, touch
from pyspark_nsq.proto.frames import ERROR, MESSAGE, RESPONSE

# Framing


def test_wrong_magic(world: World):
    client = Client(world)
    assert client.say(b"  V1") == [(ERROR, b"E_BAD_PROTOCOL"), CLOSED]


@pytest.mark.parametrize("step", [1, 2, 7, 1 << 20])
def test_a_conversation_in_steps(world: World, step: int):
    client = Client(world, step)
    told = client.say(
        MAGIC_V2
        + identify({"client_id": "x"})
        + b"PUB t\r\n" + sized(b"one")
        + pub("t", b"two") + pub("t", b"three") + pub("u", b"four")
        + mpub("t", [b"five", b"six"])
        + b"NOP\n"
        + sub("t", "c")
        + rdy(4)
    )  # fmt: skip
    assert told[:7] == [OK] * 7
    assert [body for _, _, body in messages(told[7:])] == [b"one", b"two", b"three", b"five"]
    assert client.session.pub_counts == {"t": 5, "u": 1}


ERRORS_BEFORE_SUB = [
    (b"\n", "E_INVALID invalid command "),
    (b"pub t\n", "E_INVALID invalid command pub"),
    (b" NOP\n", "E_INVALID invalid command "),
    (b"RDY 1\n", "E_INVALID cannot RDY in current state"),
    (b"RDY x\n", "E_INVALID cannot RDY in current state"),
    (fin(b"0" * 16), "E_INVALID cannot FIN in current state"),
    (b"FIN\n", "E_INVALID cannot FIN in current state"),
    (req(b"0" * 16, 0), "E_INVALID cannot REQ in current state"),
    (touch(b"0" * 16), "E_INVALID cannot TOUCH in current state"),
    (b"CLS\n", "E_INVALID cannot CLS in current state"),
    (b"SUB\n", "E_INVALID SUB insufficient number of parameters"),
    (b"SUB  t c\n", 'E_BAD_TOPIC SUB topic name "" is not valid'),
    (b"SUB t c#\n", 'E_BAD_CHANNEL SUB channel name "c#" is not valid'),
    (b"PUB\n", "E_INVALID PUB insufficient number of parameters"),
    (b"PUB t#\n", 'E_BAD_TOPIC PUB topic name "t#" is not valid'),
    (b"PUB t\n" + sized(b""), "E_BAD_MESSAGE PUB invalid message body size 0"),
    (b"PUB t\n\xff\xff\xff\xff", "E_BAD_MESSAGE PUB invalid message body size -1"),
    (b"PUB t\n\x00\x10\x00\x01", "E_BAD_MESSAGE PUB message too big 1048577 > 1048576"),
    (b"MPUB t#\n", 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "t#" is not valid'),
    (b"MPUB t\n" + sized(b"\0\0\0\0"), "E_BAD_BODY MPUB invalid message count 0"),
    (b"DPUB t x\n", "E_INVALID DPUB could not parse timeout x"),
    (b"DPUB t 3600001\n", "E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
    (auth(b"s"), "E_AUTH_DISABLED AUTH disabled"),
    (b"AUTH x\n", "E_INVALID AUTH invalid number of parameters"),
    (b"IDENTIFY\n" + sized(b"[]"), "E_BAD_BODY IDENTIFY failed to decode JSON body"),
    (identify({"heartbeat_interval": 1}), "E_BAD_BODY IDENTIFY heartbeat interval (1) is invalid"),
]


@pytest.mark.parametrize("step", [1, 1 << 20])
@pytest.mark.parametrize(("command", "error"), ERRORS_BEFORE_SUB)
def test_errors_before_sub(world: World, command: bytes, error: str, step: int):
    assert greeted(world, step).error(command) == error
    assert not world.engine.topics


ERRORS_AFTER_SUB = [
    (identify({}), "E_INVALID cannot IDENTIFY in current state"),
    (b"IDENTIFY\n", "E_INVALID cannot IDENTIFY in current state"),
    (auth(b"s"), "E_INVALID cannot AUTH in current state"),
    (sub("t", "c"), "E_INVALID cannot SUB in current state"),
    (b"SUB x\n", "E_INVALID cannot SUB in current state"),
    (b"RDY -1\n", "E_INVALID RDY could not parse count -1"),
    (b"RDY 2501\n", "E_INVALID RDY count 2501 out of range 0-2500"),
    (b"FIN\n", "E_INVALID FIN insufficient number of params"),
    (fin(b"0" * 15), "E_INVALID invalid message ID"),
    (b"REQ 0123456789abcdef\n", "E_INVALID REQ insufficient number of params"),
    (b"REQ 0123456789abcdef -1\n", "E_INVALID REQ could not parse timeout -1"),
    (b"CLS\nCLS\n", "E_INVALID cannot CLS in current state"),
]


@pytest.mark.parametrize(("command", "error"), ERRORS_AFTER_SUB)
def test_errors_after_sub(world: World, command: bytes, error: str):
    assert subscribed(world).error(command) == error


def test_a_line_that_is_too_long_is_answered_by_nothing(world: World):
    assert greeted(world).say(b"x" * 16385) == [CLOSED]


def test_state_is_checked_before_the_body_is_here(world: World):
    assert subscribed(world).error(b"IDENTIFY\n") == "E_INVALID cannot IDENTIFY in current state"


def test_end_of_input_in_a_body_is_complained_about_and_in_a_line_is_not(world: World):
    cut, idle = greeted(world), greeted(world)
    assert cut.say(b"PUB t\n\0\0\0\5he") == []
    assert idle.say(b"PUB ") == []
    for client in (cut, idle):
        client.session.end_of_input(world.now)
    assert cut.heard() == [(ERROR, b"E_BAD_MESSAGE PUB failed to read message body"), CLOSED]
    assert idle.heard() == [CLOSED]


# Consuming


def test_finish_requeue_touch(world: World):
    client = subscribed(world, 2)
    assert client.say(mpub("t", [b"a", b"b"]))[0] == OK
    producer = greeted(world)
    assert producer.say(mpub("t", [b"c", b"d"])) == [OK]
    assert client.heard() == []
    consumer = client.session.consumer
    assert consumer is not None
    assert consumer.in_flight_count == 2


def test_rdy_bounds_what_is_in_flight(world: World):
    greeted(world).say(mpub("t", [b"%d" % number for number in range(5)]))
    client = subscribed(world)
    first = messages(client.say(rdy(2)))
    assert [body for _, _, body in first] == [b"0", b"1"]
    assert messages(client.say(rdy(1))) == []
    assert messages(client.say(fin(first[0][0]))) == []
    assert [body for _, _, body in messages(client.say(fin(first[1][0])))] == [b"2"]


def test_requeued_at_once_and_later(world: World):
    greeted(world).say(pub("t", b"x"))
    client = subscribed(world)
    ((message_id, attempts, _),) = messages(client.say(rdy(1)))
    assert attempts == 1
    assert [attempts for _, attempts, _ in messages(client.say(req(message_id, 0)))] == [2]
    assert client.say(req(message_id, 5000)) == []
    world.sleep(4 * SECOND)
    assert client.heard() == []
    world.sleep(2 * SECOND)
    assert [attempts for _, attempts, _ in messages(client.heard())] == [3]


def test_a_message_times_out_unless_it_is_touched(world: World):
    greeted(world).say(pub("t", b"x"))
    client = greeted(world)
    client.say(identify({"msg_timeout": 10_000, "heartbeat_interval": -1}))
    client = greeted(world)
    client.say(identify({"msg_timeout": 10_000}))
    client.say(sub("t", "c"))
    ((message_id, _, _),) = messages(client.say(rdy(1)))
    world.sleep(9 * SECOND)
    assert client.say(touch(message_id)) == []
    world.sleep(9 * SECOND)
    assert client.heard() == []
    world.sleep(2 * SECOND)
    assert [attempts for _, attempts, _ in messages(client.heard())] == [2]


def test_unknown_and_foreign_ids_are_told_and_nothing_ends(world: World):
    owner = subscribed(world, 1)
    other = subscribed(world, 0)
    greeted(world).say(pub("t", b"x"))
    ((message_id, _, _),) = messages(owner.heard())
    for word, command in (("FIN", fin), ("TOUCH", touch), ("REQ", lambda one: req(one, 0))):
        unknown = f"E_{word}_FAILED {word} {'0' * 16} failed ID not in flight".encode()
        foreign = f"E_{word}_FAILED {word} {message_id.decode()} failed client does not own message".encode()
        assert other.say(command(b"0" * 16)) == [(ERROR, unknown)]
        assert other.say(command(message_id)) == [(ERROR, foreign)]
    assert owner.say(fin(message_id)) == []
    assert owner.say(fin(message_id))[0][0] == ERROR


def test_after_cls_rdy_means_nothing_and_fin_still_works(world: World):
    client = subscribed(world, 1)
    greeted(world).say(mpub("t", [b"a", b"b"]))
    ((message_id, _, _),) = messages(client.heard())
    assert client.say(b"CLS\n") == [(RESPONSE, b"CLOSE_WAIT")]
    assert client.say(rdy(5) + b"RDY nonsense\n" + fin(message_id)) == []
    assert client.session.state == 4


def test_two_consumers_share(world: World):
    first, second = subscribed(world, 100), subscribed(world, 100)
    greeted(world).say(mpub("t", [b"x"] * 10))
    assert (len(first.heard()), len(second.heard())) == (5, 5)


def test_single_messages_go_round(world: World):
    clients = [subscribed(world, 100) for _ in range(3)]
    for _ in range(9):
        greeted(world).say(pub("t", b"x"))
    assert [len(client.heard()) for client in clients] == [3, 3, 3]


def test_consumers_are_limited(make_world: Callable[..., World]):
    world = make_world(max_channel_consumers=1)
    subscribed(world)
    error = greeted(world).error(sub("t", "c"))
    assert error == "E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 1"


def test_a_consumer_whose_output_is_not_read_gets_a_bounded_amount(world: World):
    client = subscribed(world, 2500)
    client.unsent_size = 1 << 40
    greeted(world).say(mpub("t", [b"x" * 1000] * 100))
    assert client.heard() == []
    client.unsent_size = 0
    assert client.starved
    assert client.session.channel is not None
    world.turn.wake(client.session.channel, client.session.consumer)
    assert len(client.heard()) == 100


def test_messages_wait_where_the_timed_flush_is_off(world: World):
    client = greeted(world)
    client.say(identify({"output_buffer_timeout": -1}) + sub("t", "c") + rdy(2))
    greeted(world).say(pub("t", b"x"))
    assert client.heard() == []
    world.sleep(31 * SECOND, client)
    assert [frame[0] for frame in client.heard()] == [MESSAGE, RESPONSE]


# Time


def test_heartbeats_from_the_greeting_on_and_the_end_of_who_is_silent(world: World):
    client = greeted(world)
    world.sleep(30 * SECOND, client)
    assert client.heard() == [(RESPONSE, b"_heartbeat_")]
    client.say(identify({"heartbeat_interval": 1000}))
    world.sleep(SECOND, client)
    assert client.heard() == [(RESPONSE, b"_heartbeat_")]
    client.say(b"NOP\n")
    world.sleep(SECOND + SECOND // 2, client)
    assert client.heard() == [(RESPONSE, b"_heartbeat_")]
    world.sleep(SECOND, client)
    assert client.heard()[-1] == CLOSED


def test_without_heartbeats_there_are_no_deadlines_and_no_sub(world: World):
    client = greeted(world)
    assert client.say(identify({"heartbeat_interval": -1})) == [OK]
    world.sleep(3600 * SECOND, client)
    assert client.say(pub("t", b"x")) == [OK]
    assert client.error(sub("t", "c")) == "E_INVALID cannot SUB with heartbeats disabled"


def test_a_body_that_does_not_come_is_complained_about(world: World):
    client = greeted(world)
    client.say(identify({"heartbeat_interval": 1000}))
    client.say(b"PUB t\n\0\0\0\5he")
    world.sleep(3 * SECOND, client)
    assert client.heard()[-2:] == [(ERROR, b"E_BAD_MESSAGE PUB failed to read message body"), CLOSED]


def test_who_never_speaks_is_not_kept(world: World):
    client = Client(world)
    world.sleep(MAGIC_TIMEOUT_NS, client)
    assert client.heard() == [CLOSED]


def test_a_second_identify_holds_in_full(world: World):
    client = greeted(world)
    client.say(identify({"heartbeat_interval": 10_000, "sample_rate": 5, "msg_timeout": 1000}))
    client.say(identify({"heartbeat_interval": 2_000, "sample_rate": 0, "msg_timeout": 5000}) + sub("t", "c"))
    consumer = client.session.consumer
    assert consumer is not None
    assert (consumer.msg_timeout_ns, consumer.sample_rate) == (5000 * MS, 0)
    world.sleep(2 * SECOND, client)
    assert client.heard() == [(RESPONSE, b"_heartbeat_")]


# Writing that fails or is not done


def test_a_failed_write_replaces_the_ok_and_all_that_followed(world: World):
    client = greeted(world)
    assert client.say(pub("t", b"x")) == [OK]
    topic = world.engine.topics["t"]
    ticket = topic.publish([b"y"], world.now)
    world.engine.commit(world.now)
    ticket.error = OSError(28, "No space left on device")
    client.session.output.say_ok_if(ticket, topic, b"PUB", 3)
    client.session.receive(b"NOP\n" + pub("u", b"z"), world.now)
    assert client.heard() == [(ERROR, b"E_PUB_FAILED PUB failed no space left on device"), CLOSED]


def test_replies_wait_for_the_fsync(make_world: Callable[..., World]):
    world = make_world(sync_every=1)
    client = greeted(world)
    assert client.say(pub("t", b"x")) == []
    (job,) = world.sync_jobs
    job.run()  # type: ignore[attr-defined]
    world.turn.synced(job)  # type: ignore[arg-type]
    assert client.heard() == [OK]
