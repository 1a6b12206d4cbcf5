"""What happens to messages: copies, time-outs, delays, failing disks."""

import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from blackbox.daemons import Nsqd
from blackbox.diskqueue import Record, write_nsqd_dat, write_queue
from blackbox.steps import consumer, has_depth
from blackbox.wire import Conn, Message, wait_until

Connect = Callable[..., Conn]
StartNsqd = Callable[..., Nsqd]
ModuleNsqd = Callable[..., Nsqd]

# A timer may fire a little before the moment at which this side saw the question go out.
EARLY_SECONDS = 0.05
NOT_IN_FLIGHT = "E_FIN_FAILED FIN {id} failed ID not in flight"


# case 54
def test_first_channel_gets_the_backlog_and_later_ones_what_is_new(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conn, first, second = connect(), connect(), connect()
    conn.publish(topic, b"before")
    assert nsqd.topic(topic)["depth"] == 1
    first.subscribe(topic, "first", ready=10)
    assert first.message().body == b"before"
    second.subscribe(topic, "second", ready=10)
    conn.publish(topic, b"after")
    assert first.message().body == b"after"
    assert second.message().body == b"after"
    assert nsqd.channel(topic, "second")["message_count"] == 1
    assert nsqd.topic(topic)["message_count"] == 2
    assert nsqd.topic(topic)["message_bytes"] == len(b"beforeafter")


# case 54
def test_messages_stay_in_the_topic_again_when_its_last_channel_is_gone(
    connect: Connect, nsqd: Nsqd, topic: str
) -> None:
    nsqd.post(f"/topic/create?topic={topic}")
    nsqd.post(f"/channel/create?topic={topic}&channel=gone")
    nsqd.post(f"/channel/delete?topic={topic}&channel=gone")
    conn = connect()
    conn.publish(topic, b"one", b"two")
    assert nsqd.topic(topic)["depth"] == 2
    conn.subscribe(topic, "next", ready=2)
    assert {message.body for message in conn.messages(2)} == {b"one", b"two"}


# case 55
def test_channels_share_id_and_timestamp_but_not_attempts(connect: Connect, topic: str) -> None:
    conn, first, second = connect(), connect(), connect()
    first.subscribe(topic, "first", ready=1)
    second.subscribe(topic, "second", ready=1)
    conn.publish(topic, b"body")
    one, other = first.message(), second.message()
    assert one[:4] == other[:4]
    first.requeue(one, 0)
    again = first.message()
    assert (again.attempts, again.id, again.timestamp_ns) == (2, one.id, one.timestamp_ns)
    second.finish(other)
    second.round_trip()
    first.requeue(again, 0)
    assert first.message().attempts == 3


# case 56
def test_id_tells_node_and_time(connect: Connect, module_nsqd: ModuleNsqd, topic: str) -> None:
    conn = connect(module_nsqd("--node-id=777"))
    before = time.time_ns()
    conn.mpub(topic, b"one", b"two", b"three")
    conn.publish(topic, b"four")
    after = time.time_ns()
    conn.subscribe(topic, "channel", ready=4)
    ids = [int(message.id, 16) for message in conn.messages(4)]
    assert ids == sorted(set(ids))
    for number in ids:
        assert number >> 12 & 1023 == 777
        when = (number >> 22) + 1288834974288 << 20
        assert before - (1 << 20) <= when <= after + (1 << 20)


def test_id_is_sixteen_lower_case_hexadecimal_digits(connect: Connect, topic: str) -> None:
    conn = connect()
    conn.publish(topic, b"body")
    conn.subscribe(topic, "channel", ready=1)
    identifier = conn.message().id
    assert len(identifier) == 16
    assert set(identifier) <= set(b"0123456789abcdef")


# case 57
def test_message_times_out_and_comes_again(connect: Connect, nsqd: Nsqd, ripe_topic: str) -> None:
    conn = consumer(connect(), ripe_topic, "ch", output_buffer_timeout=25)
    start = time.monotonic()
    conn.publish(ripe_topic, b"body")
    first = conn.message()
    again = conn.message()
    assert (first.attempts, again.attempts) == (1, 2)
    assert again[2:4] == first[2:4]
    assert again.arrived - start >= 1 - 2 * EARLY_SECONDS
    channel = nsqd.channel(ripe_topic, "ch")
    assert (channel["timeout_count"], channel["requeue_count"], channel["message_count"]) == (1, 0, 1)
    conn.finish(again)
    conn.round_trip()
    assert nsqd.channel(ripe_topic, "ch")["in_flight_count"] == 0


# case 57
def test_time_out_of_the_broker_counts_where_the_client_names_none(connect: Connect, module_nsqd: ModuleNsqd) -> None:
    daemon = module_nsqd("--msg-timeout=1s", ripe=1)
    topic = daemon.take_ripe()
    conn = connect(daemon)
    start = time.monotonic()
    conn.publish(topic, b"body")
    conn.subscribe(topic, "ch", ready=1)
    conn.message()
    assert conn.message().arrived - start >= 1 - 2 * EARLY_SECONDS


@pytest.mark.known_defect("D11")
def test_deadlines_of_a_new_channel_are_kept_from_its_start(
    connect: Connect, start_nsqd: StartNsqd, data_path: Path
) -> None:
    write_nsqd_dat(data_path, {"old": ["channel"]})
    daemon = start_nsqd()
    old, new = connect(daemon), connect(daemon)
    for conn, topic, delay_ms in ((old, "old", 2500), (new, "new", 200)):
        conn.subscribe(topic, "channel", ready=1)
        conn.command(f"DPUB {topic} {delay_ms}", b"body")
        conn.ok()
    assert old.message().body == b"body"
    new.round_trip()
    assert [message.body for message in new.held] == [b"body"]


# case 58
def test_late_fin_after_redelivery_elsewhere_fails_but_is_not_fatal(connect: Connect, ripe_topic: str) -> None:
    slow, fast = connect(), connect()
    consumer(slow, ripe_topic, "ch")
    slow.publish(ripe_topic, b"body")
    first = slow.message()
    slow.ready(0)
    slow.round_trip()
    consumer(fast, ripe_topic, "ch", msg_timeout=60000)
    again = fast.message()
    assert (again.id, again.attempts) == (first.id, 2)
    slow.finish(first)
    assert slow.error() == f"E_FIN_FAILED FIN {first.id.decode()} failed client does not own message"
    fast.finish(again)
    fast.round_trip()
    slow.finish(first)
    assert slow.error() == NOT_IN_FLIGHT.format(id=first.id.decode())
    slow.publish(ripe_topic, b"still there")


# case 58
def test_late_fin_after_the_time_out_fails_but_is_not_fatal(connect: Connect, nsqd: Nsqd, ripe_topic: str) -> None:
    conn = consumer(connect(), ripe_topic, "ch")
    conn.publish(ripe_topic, b"body")
    first = conn.message()
    conn.ready(0)
    wait_until(lambda: nsqd.channel(ripe_topic, "ch")["timeout_count"] == 1)
    for command in ("FIN {id}", "REQ {id} 0", "TOUCH {id}"):
        conn.command(command.format(id=first.id.decode()))
        word = command.split()[0]
        assert conn.error() == f"E_{word}_FAILED {word} {first.id.decode()} failed ID not in flight"
    channel = nsqd.channel(ripe_topic, "ch")
    assert (channel["depth"], channel["clients"][0]["in_flight_count"]) == (1, 0)


# case 59
def test_messages_of_a_consumer_that_went_away_come_again_after_their_time_out(
    connect: Connect, nsqd: Nsqd, ripe_topic: str
) -> None:
    gone, next_one = connect(), connect()
    consumer(gone, ripe_topic, "ch")
    start = time.monotonic()
    gone.publish(ripe_topic, b"body")
    first = gone.message()
    gone.close()
    wait_until(lambda: nsqd.channel(ripe_topic, "ch")["client_count"] == 0)
    assert nsqd.channel(ripe_topic, "ch")["in_flight_count"] == 1
    consumer(next_one, ripe_topic, "ch")
    again = next_one.message()
    assert (again.id, again.attempts) == (first.id, 2)
    assert again.arrived - start >= 1 - 2 * EARLY_SECONDS


# case 60
def test_touch_extends_up_to_the_broker_s_limit(connect: Connect, module_nsqd: ModuleNsqd) -> None:
    daemon = module_nsqd("--max-msg-timeout=3s", ripe=1)
    topic = daemon.take_ripe()
    conn = consumer(connect(daemon), topic, "ch")
    start = time.monotonic()
    conn.publish(topic, b"body")
    first = conn.message()
    again: list[Message] = []

    def touch_until_it_comes_again() -> bool:
        try:
            again.append(conn.message(patience=0.2))
        except TimeoutError:
            conn.touch(first)
        return bool(again)

    wait_until(touch_until_it_comes_again)
    assert again[0].attempts == 2
    assert again[0].arrived - start >= 3 - 2 * EARLY_SECONDS


# case 61
def test_requeue_without_delay_comes_at_once_behind_the_others(connect: Connect, nsqd: Nsqd, topic: str) -> None:
    conn = connect()
    conn.mpub(topic, b"one", b"two")
    conn.subscribe(topic, "channel", ready=1)
    first = conn.message()
    conn.requeue(first, 0)
    second = conn.message()
    assert (second.body, second.attempts) == (b"two", 1)
    conn.finish(second)
    again = conn.message()
    assert (again.id, again.attempts) == (first.id, 2)
    channel = nsqd.channel(topic, "channel")
    assert (channel["requeue_count"], channel["timeout_count"], channel["message_count"]) == (1, 0, 2)
    assert channel["clients"][0]["requeue_count"] == 1


# case 61
def test_requeue_with_delay_does_not_come_before_it(connect: Connect, nsqd: Nsqd, ripe_topic: str) -> None:
    conn = connect()
    conn.publish(ripe_topic, b"body")
    conn.subscribe(ripe_topic, "ch", ready=1)
    first = conn.message()
    start = time.monotonic()
    conn.requeue(first, 2000)
    conn.round_trip()
    channel = nsqd.channel(ripe_topic, "ch")
    assert (channel["deferred_count"], channel["in_flight_count"], channel["depth"]) == (1, 0, 0)
    again = conn.message()
    assert again.arrived - start >= 2 - EARLY_SECONDS
    assert (again.attempts, again.id) == (2, first.id)
    assert nsqd.channel(ripe_topic, "ch")["deferred_count"] == 0


# case 62
@pytest.mark.parametrize("how", ["DPUB", "HTTP"])
def test_deferred_message_does_not_come_before_its_time(
    connect: Connect, nsqd: Nsqd, ripe_topic: str, how: str
) -> None:
    conn = connect()
    conn.subscribe(ripe_topic, "ch", ready=5)
    start = time.monotonic()
    if how == "DPUB":
        conn.command(f"DPUB {ripe_topic} 2000", b"late")
        conn.ok()
    else:
        nsqd.post(f"/pub?topic={ripe_topic}&defer=2000", b"late")
    wait_until(lambda: nsqd.channel(ripe_topic, "ch")["deferred_count"] == 1)
    conn.publish(ripe_topic, b"now")
    assert conn.message().body == b"now"
    message = conn.message()
    assert (message.body, message.attempts) == (b"late", 1)
    assert message.arrived - start >= 2 - EARLY_SECONDS
    assert nsqd.channel(ripe_topic, "ch")["message_count"] == 2


def with_stored_attempts(folder: Path, attempts: int) -> None:
    """A data path of Go's nsqd with one message in a channel."""
    write_nsqd_dat(folder, {"topic": ["channel"]})
    write_queue(folder, "topic:channel", [Record(b"body", attempts=attempts)])


# case 63
@pytest.mark.known_defect("D10")
def test_attempts_stay_at_their_highest_value(connect: Connect, start_nsqd: StartNsqd, data_path: Path) -> None:
    with_stored_attempts(data_path, 65535)
    conn = connect(start_nsqd())
    conn.subscribe("topic", "channel", ready=1)
    message = conn.message()
    assert message.attempts == 65535
    conn.requeue(message, 0)
    assert conn.message().attempts == 65535


# case 63
def test_attempts_go_on_from_what_was_stored(connect: Connect, start_nsqd: StartNsqd, data_path: Path) -> None:
    with_stored_attempts(data_path, 65533)
    conn = connect(start_nsqd())
    conn.subscribe("topic", "channel", ready=1)
    message = conn.message()
    assert message.attempts == 65534
    conn.requeue(message, 0)
    assert conn.message().attempts == 65535


# case 70
def test_without_memory_queue_the_order_is_kept(connect: Connect, module_nsqd: ModuleNsqd, topic: str) -> None:
    daemon = module_nsqd("--mem-queue-size=0")
    conn = connect(daemon)
    bodies = [b"%d" % number for number in range(300)]
    conn.mpub(topic, *bodies[:200])
    conn.publish(topic, *bodies[200:])
    conn.subscribe(topic, "channel", ready=50)
    for at in range(0, 300, 50):
        messages = conn.messages(50)
        assert [message.body for message in messages] == bodies[at : at + 50]
        conn.finish(*messages)


def test_nothing_is_lost_beyond_the_memory_queue(connect: Connect, module_nsqd: ModuleNsqd, topic: str) -> None:
    daemon = module_nsqd("--mem-queue-size=20")
    conn, other = connect(daemon), connect(daemon)
    other.subscribe(topic, "other")
    conn.subscribe(topic, "channel")
    bodies = [b"%d" % number for number in range(1000)]
    conn.mpub(topic, *bodies)
    for connection, channel in ((conn, "channel"), (other, "other")):
        wait_until(partial(has_depth, daemon, topic, channel, 1000))
        connection.ready(1000)
        messages = connection.messages(1000)
        assert {message.body for message in messages} == set(bodies)
        connection.finish(*messages)
        connection.round_trip()
        channel_stats = daemon.channel(topic, channel)
        assert (channel_stats["depth"], channel_stats["in_flight_count"], channel_stats["backend_depth"]) == (0, 0, 0)


# case 71
def test_failing_disk_is_told_to_publishers_and_ping_until_it_works_again(
    connect: Connect, start_nsqd: StartNsqd, data_path: Path
) -> None:
    daemon = start_nsqd("--mem-queue-size=0")
    conn = connect(daemon)
    conn.publish("topic", b"before")
    moved = data_path.with_name("moved")
    # Without its folder no file can be made, whoever runs the broker.
    data_path.rename(moved)
    conn.command("PUB other", b"lost")
    assert conn.fatal().startswith("E_PUB_FAILED PUB failed ")
    answer = daemon.http("GET", "/ping")
    assert (answer.status, answer.text[:6]) == (500, "NOK - ")
    assert daemon.stats()["health"].startswith("NOK - ")
    assert daemon.http("POST", "/pub?topic=another", b"lost").status == 503
    conn = connect(daemon)
    conn.command("MPUB other", b"\0\0\0\1\0\0\0\4lost")
    assert conn.fatal().startswith("E_MPUB_FAILED MPUB failed ")
    moved.rename(data_path)
    conn = connect(daemon)
    conn.publish("other", b"after")
    answer = daemon.http("GET", "/ping")
    assert (answer.status, answer.text) == (200, "OK")
    conn.subscribe("other", "channel", ready=5)
    assert conn.message().body == b"after"


# case 71
@pytest.mark.known_defect("D18")
def test_failing_disk_has_its_own_code_over_http(start_nsqd: StartNsqd, data_path: Path) -> None:
    daemon = start_nsqd("--mem-queue-size=0")
    data_path.rename(data_path.with_name("moved"))
    for target in ("/pub?topic=one", "/mpub?topic=two"):
        answer = daemon.http("POST", target, b"lost")
        assert (answer.status, answer.json) == (503, {"message": "WRITE_FAILED"})


# case 71
@pytest.mark.known_defect("D18")
def test_failing_queue_is_told_until_it_works_whatever_others_do(
    connect: Connect, start_nsqd: StartNsqd, data_path: Path
) -> None:
    daemon = start_nsqd("--mem-queue-size=0")
    works, fails = connect(daemon), connect(daemon)
    works.publish("works", b"before")
    moved = data_path.with_name("moved")
    data_path.rename(moved)  # what is open stays open
    fails.command("PUB fails", b"lost")
    assert fails.fatal().startswith("E_PUB_FAILED PUB failed ")
    works.publish("works", b"meanwhile")
    assert daemon.http("GET", "/ping").status == 500
    moved.rename(data_path)
    works.publish("fails", b"after")
    assert daemon.http("GET", "/ping").status == 200


# case 71
@pytest.mark.parametrize("target", ["/topic/delete?topic=topic", "/channel/delete?topic=topic&channel=channel"])
def test_consumers_of_what_is_deleted_are_closed_also_while_the_disk_fails(
    connect: Connect, start_nsqd: StartNsqd, data_path: Path, target: str
) -> None:
    daemon = start_nsqd()
    conn = connect(daemon)
    conn.publish("topic", b"body")
    conn.subscribe("topic", "channel", ready=1)
    conn.message()
    data_path.rename(data_path.with_name("moved"))
    daemon.http("POST", target)
    conn.closed()


# case 71
@pytest.mark.only("ours", "Go's runtime does not survive the signal that comes with a full file")
def test_full_disk_is_told_to_publishers_and_nothing_acknowledged_is_lost(
    connect: Connect, start_nsqd: StartNsqd
) -> None:
    daemon = start_nsqd()
    conn = connect(daemon)
    acknowledged: list[bytes] = []
    soft, hard = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (200_000, hard))
    for number in range(100):
        body = (b"%d " % number).ljust(10_000, b"x")
        conn.command("PUB topic", body)
        frame = conn.reply()
        if frame.kind:
            assert frame.data.startswith(b"E_PUB_FAILED PUB failed "), frame
            break
        acknowledged.append(body)
    assert 0 < len(acknowledged) < 100
    assert daemon.http("GET", "/ping").status == 500
    resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (soft, hard))
    conn = connect(daemon)
    conn.publish("topic", b"after")
    assert daemon.http("GET", "/ping").status == 200
    daemon.kill()
    conn = connect(start_nsqd())
    conn.subscribe("topic", "channel", ready=100)
    bodies = {conn.message().body for _ in range(len(acknowledged) + 1)}
    assert bodies >= {*acknowledged, b"after"}


@pytest.mark.known_defect("D5")
@pytest.mark.parametrize("where", ["restart", "spill"])
def test_delay_survives(connect: Connect, start_nsqd: StartNsqd, where: str) -> None:
    flags = ["--mem-queue-size=0"] if where == "spill" else []
    daemon = start_nsqd(*flags)
    conn = connect(daemon)
    start = time.monotonic()
    conn.command("DPUB topic 3000", b"late")
    conn.ok()
    if where == "restart":
        daemon.post("/channel/create?topic=topic&channel=channel")
        daemon.stop()
        daemon = start_nsqd(*flags)
        conn = connect(daemon)
    conn.subscribe("topic", "channel", ready=1)
    assert conn.message().arrived - start >= 3 - EARLY_SECONDS


@pytest.mark.known_defect("D5")
def test_requeue_delay_survives_a_restart(connect: Connect, start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd()
    conn = connect(daemon)
    conn.publish("topic", b"late")
    conn.subscribe("topic", "channel", ready=1)
    message = conn.message()
    start = time.monotonic()
    conn.requeue(message, 3000)
    conn.round_trip()
    daemon.stop()
    conn = connect(start_nsqd())
    conn.subscribe("topic", "channel", ready=1)
    again = conn.message()
    assert again.arrived - start >= 3 - EARLY_SECONDS
    assert again.attempts == 2
