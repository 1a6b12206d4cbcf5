"""What survives stops and kills, and what is found on a data path that somebody else left."""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from blackbox.daemons import Implementation, Nsqd
from blackbox.diskqueue import (
    Record,
    data_file,
    meta_file,
    read_records,
    records_of,
    write_nsqd_dat,
    write_queue,
)
from blackbox.steps import bodies_of, drain, numbered
from blackbox.wire import Conn, wait_until

Connect = Callable[..., Conn]
StartNsqd = Callable[..., Nsqd]

OWN_FORMAT = "the files are Go's own"


# case 72
def test_graceful_stop_keeps_memory_in_flight_and_deferred(connect: Connect, start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd()
    conn = connect(daemon)
    conn.mpub("topic", *numbered(6))
    conn.publish("lonely", b"without a channel")
    conn.subscribe("topic", "channel", ready=3)
    before = {message.id: message for message in conn.messages(3)}
    first, second, third = before.values()
    conn.finish(first)
    conn.requeue(third, 300)
    conn.ready(1)
    conn.round_trip()
    assert daemon.stop() == 0
    conn.closed()

    daemon = start_nsqd()
    assert daemon.topic("lonely")["depth"] == 1
    messages = {message.body: message for message in drain(connect(daemon), "topic", "channel", 5)}
    assert set(messages) == set(numbered(6)) - {first.body}
    for old in (second, third):
        new = messages[old.body]
        assert (new.attempts, new.id, new.timestamp_ns) == (2, old.id, old.timestamp_ns)
    assert {messages[body].attempts for body in (b"4", b"5")} <= {1, 2}
    assert bodies_of(drain(connect(daemon), "lonely", "channel", 1)) == [b"without a channel"]


# case 72
def test_graceful_stop_keeps_what_was_finished_finished(connect: Connect, start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd()
    conn = connect(daemon)
    conn.mpub("topic", *numbered(500))
    drain(conn, "topic", "channel", 500)
    daemon.stop()
    daemon = start_nsqd()
    conn = connect(daemon)
    conn.publish("topic", b"new")
    assert bodies_of(drain(conn, "topic", "channel", 1)) == [b"new"]
    assert daemon.channel("topic", "channel")["depth"] == 0


# case 72
@pytest.mark.known_defect("D21", strict=False)
def test_what_is_given_back_while_the_broker_ends_is_kept(connect: Connect, start_nsqd: StartNsqd) -> None:
    # On disk, so that Go's takes its time for each.
    daemon = start_nsqd("--mem-queue-size=0")
    connect(daemon).mpub("topic", *numbered(2000))
    conns = [connect(daemon) for _ in range(2)]
    for conn in conns:
        conn.subscribe("topic", "channel", ready=500)
        threading.Thread(target=give_back_until_closed, args=[conn], daemon=True).start()
    wait_until(lambda: daemon.channel("topic", "channel")["requeue_count"] > 2000)
    assert daemon.stop() == 0
    daemon = start_nsqd()
    assert daemon.channel("topic", "channel")["depth"] == 2000
    assert bodies_of(drain(connect(daemon), "topic", "channel", 2000)) == sorted(numbered(2000))


def give_back_until_closed(conn: Conn) -> None:
    """Let messages come, many at once, and give all of them back."""
    with suppress(ConnectionError):
        while True:
            messages = conn.messages(500)
            conn.send(b"".join(b"REQ " + message.id + b" 0\n" for message in messages))


# case 72
@pytest.mark.only("go", OWN_FORMAT)
def test_files_after_a_graceful_stop_are_as_the_tests_write_them(
    connect: Connect, start_nsqd: StartNsqd, data_path: Path
) -> None:
    daemon = start_nsqd()
    conn = connect(daemon)
    conn.mpub("topic", *numbered(3))
    conn.subscribe("topic", "channel", ready=1)
    message = conn.message()
    daemon.stop()
    records = read_records(data_file(data_path, "topic:channel").read_bytes())
    assert bodies_of(records) == numbered(3)
    (in_flight,) = [record for record in records if record.body == message.body]
    assert in_flight == Record(message.body, message.id, 1, message.timestamp_ns)
    size = sum(len(record.encoded) for record in records)
    assert meta_file(data_path, "topic:channel").read_text() == f"3\n0,0\n0,{size}\n"
    written = (data_path / "nsqd.dat").read_text()
    write_nsqd_dat(data_path, {"topic": ["channel"]})
    assert (data_path / "nsqd.dat").read_text() == written


# case 73
@pytest.mark.parametrize("then", ["stop", "kill"])
def test_data_path_of_go_is_taken_over(connect: Connect, start_nsqd: StartNsqd, data_path: Path, then: str) -> None:
    write_nsqd_dat(data_path, {"topic": ["read", "unread"], "lonely": []}, paused=["topic:unread", "lonely"])
    old = records_of(*numbered(30), attempts=7)
    write_queue(data_path, "topic:read", old[:10], old[10:20], old[20:], consumed=4)
    write_queue(data_path, "topic:unread", records_of(*numbered(5)))
    write_queue(data_path, "topic", records_of(*numbered(3, b"topic "), first=100))
    write_queue(data_path, "lonely", records_of(*numbered(2, b"lonely ")))
    daemon = start_nsqd()
    # Nobody consumed: whatever became of the files, all must still be there afterwards.
    if then == "stop":
        daemon.stop()
    else:
        daemon.kill()
    daemon = start_nsqd()
    assert daemon.channel("topic", "unread")["paused"] is True
    assert daemon.topic("lonely")["paused"] is True
    daemon.post("/channel/unpause?topic=topic&channel=unread")
    daemon.post("/topic/unpause?topic=lonely")
    messages = drain(connect(daemon), "topic", "read", 26 + 3)
    by_id = {message.id: message for message in messages if not message.body.startswith(b"topic")}
    assert by_id.keys() == {record.id for record in old[4:]}
    for record in old[4:]:
        message = by_id[record.id]
        assert (message.body, message.attempts, message.timestamp_ns) == (record.body, 8, record.timestamp_ns)
    unread = drain(connect(daemon), "topic", "unread", 5 + 3)
    assert bodies_of(unread) == sorted(numbered(5) + numbered(3, b"topic "))
    assert bodies_of(drain(connect(daemon), "lonely", "first", 2)) == numbered(2, b"lonely ")


# case 73
def test_order_of_go_s_files_is_kept(connect: Connect, start_nsqd: StartNsqd, data_path: Path) -> None:
    write_nsqd_dat(data_path, {"topic": ["channel"]})
    records = records_of(*numbered(90))
    write_queue(data_path, "topic:channel", records[:30], records[30:60], records[60:], consumed=10)
    messages = drain(connect(start_nsqd("--mem-queue-size=0")), "topic", "channel", 80)
    assert [message.body for message in messages] == numbered(90)[10:]


# case 73
@pytest.mark.only("ours", "it takes over what Go's nsqd left")
def test_data_path_that_go_s_nsqd_wrote_is_taken_over(
    connect: Connect, start_nsqd: StartNsqd, go_nsqd: Implementation, tmp_path: Path, data_path: Path
) -> None:
    go = Nsqd(go_nsqd, data_path, ["--mem-queue-size=50", "--max-bytes-per-file=2000"])
    go.await_listening("TCP", "HTTP")
    with go.connect() as conn, go.connect() as other:
        conn.mpub("topic", *numbered(200))
        conn.subscribe("topic", "channel", ready=20)
        other.subscribe("topic", "other")
        finished = conn.messages(20)
        conn.finish(*finished)
        in_flight = conn.messages(20)
        conn.round_trip()
        later = [message.body for message in conn.held]
    assert go.stop() == 0
    daemon = start_nsqd("--mem-queue-size=50")
    messages = drain(connect(daemon), "topic", "channel", 180)
    assert bodies_of(messages) == sorted(set(numbered(200)) - {message.body for message in finished})
    for message in messages:
        delivered = message.body in later or message.body in {old.body for old in in_flight}
        assert message.attempts == (2 if delivered else 1)


# case 74
@pytest.mark.only("go", OWN_FORMAT)
def test_files_roll_before_they_grow_too_big(connect: Connect, start_nsqd: StartNsqd, data_path: Path) -> None:
    daemon = start_nsqd("--mem-queue-size=0", "--max-bytes-per-file=400")
    conn = connect(daemon)
    conn.publish("topic", b"x" * 100, b"y" * 500, *[b"z" * 100] * 4)
    daemon.stop()
    sizes = [data_file(data_path, "topic", number).stat().st_size for number in range(4)]
    assert sizes == [130, 530, 390, 130]


# case 74
def test_small_files_and_oversize_messages_keep_everything_in_order(connect: Connect, start_nsqd: StartNsqd) -> None:
    flags = ["--mem-queue-size=0", "--max-bytes-per-file=400"]
    daemon = start_nsqd(*flags)
    conn = connect(daemon)
    bodies = [b"%d " % number + b"x" * (number * 37 % 900) for number in range(60)]
    conn.publish("topic", *bodies[:30])
    conn.mpub("topic", *bodies[30:])
    daemon.stop()
    messages = drain(connect(start_nsqd(*flags)), "topic", "channel", 60)
    assert [message.body for message in messages] == bodies


# case 75
def test_kill_after_sync_loses_nothing(connect: Connect, start_nsqd: StartNsqd) -> None:
    flags = ["--mem-queue-size=0", "--sync-every=1"]
    daemon = start_nsqd(*flags)
    conn = connect(daemon)
    conn.publish("topic", *numbered(20))
    conn.mpub("topic", *numbered(20, b"m"))
    daemon.kill()
    messages = drain(connect(start_nsqd(*flags)), "topic", "channel", 40)
    assert bodies_of(messages) == sorted(numbered(20) + numbered(20, b"m"))


# case 76
@pytest.mark.known_defect("D2")
def test_kill_before_the_first_sync_loses_nothing(connect: Connect, start_nsqd: StartNsqd, patience: float) -> None:
    flags = ["--mem-queue-size=0", "--sync-every=100000", "--sync-timeout=1h"]
    daemon = start_nsqd(*flags)
    connect(daemon).publish("topic", *numbered(20))
    daemon.kill()
    daemon = start_nsqd(*flags)
    connect(daemon).publish("topic", *numbered(20, b"new "))
    daemon.kill()
    messages = drain(connect(start_nsqd(*flags)), "topic", "channel", 40, patience)
    assert bodies_of(messages) == sorted(numbered(20) + numbered(20, b"new "))


# case 76
@pytest.mark.known_defect("D2")
def test_kill_keeps_large_batches_of_one_size_and_of_several(
    connect: Connect, start_nsqd: StartNsqd, patience: float
) -> None:
    """One size, so much of it that it is cut, several sizes, and single messages between them."""
    daemon = start_nsqd()
    conn = connect(daemon)
    same = [b"%04d " % number + b"s" * 500 for number in range(1000)]
    mixed = [b"%04d " % number + b"m" * (number % 300) for number in range(200)]
    single = [b"%d" % number for number in range(3)]
    conn.mpub("topic", *same[:100])
    conn.publish("topic", single[0])
    conn.mpub("topic", *same[100:])
    conn.publish("topic", single[1])
    conn.mpub("topic", *mixed)
    conn.publish("topic", single[2])
    daemon.kill()
    messages = drain(connect(start_nsqd()), "topic", "channel", 1203, patience)
    assert bodies_of(messages) == sorted(same + mixed + single)


# case 76
@pytest.mark.known_defect("D2")
def test_kill_loses_nothing_in_memory_in_flight_or_deferred(
    connect: Connect, start_nsqd: StartNsqd, patience: float
) -> None:
    daemon = start_nsqd()
    conn = connect(daemon)
    conn.mpub("topic", *numbered(10))
    conn.publish("topic", b"single")
    conn.command("DPUB topic 500", b"deferred")
    conn.ok()
    conn.subscribe("topic", "channel", ready=4)
    first, *_ = conn.messages(4)
    conn.requeue(first, 500)
    conn.round_trip()
    daemon.kill()
    messages = drain(connect(start_nsqd()), "topic", "channel", 12, patience)
    assert bodies_of(messages) == sorted([*numbered(10), b"single", b"deferred"])


def has_grown(acknowledged: set[bytes], size: int) -> bool:
    """Whether so many messages were acknowledged."""
    return len(acknowledged) >= size


# case 76
@pytest.mark.known_defect("D2")
def test_kill_under_load_loses_nothing_acknowledged(connect: Connect, start_nsqd: StartNsqd, patience: float) -> None:
    acknowledged: set[bytes] = set()

    def publish(daemon: Nsqd, turn: int) -> None:
        number = 0
        with daemon.connect() as conn:
            try:
                while True:
                    body = b"%d/%d" % (turn, number)
                    conn.publish("topic", body)
                    acknowledged.add(body)
                    batch = [b"%b/%d" % (body, index) for index in range(5)]
                    conn.mpub("topic", *batch)
                    acknowledged.update(batch)
                    number += 1
            except ConnectionError:
                return

    for turn in range(3):
        daemon = start_nsqd()
        thread = threading.Thread(target=publish, args=(daemon, turn), daemon=True)
        thread.start()
        before = len(acknowledged)
        wait_until(partial(has_grown, acknowledged, before + 300))
        daemon.kill()
        thread.join()
    daemon = start_nsqd()
    conn = connect(daemon)
    conn.subscribe("topic", "channel", ready=2500)
    delivered: set[bytes] = set()
    # Messages whose answer was lost with the broker may come too.
    while not acknowledged <= delivered:
        message = conn.message(patience)
        delivered.add(message.body)
        conn.finish(message)


# case 81
def test_second_broker_on_a_data_path_gives_up(connect: Connect, start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd()
    second = start_nsqd(listening=())
    assert second.wait() == 1
    assert "lock" in second.log
    connect(daemon).publish("topic", b"still served")


# case 81
@pytest.mark.only("ours", "it meets Go's nsqd")
@pytest.mark.parametrize("first", ["go", "ours"])
def test_both_implementations_exclude_each_other(
    start_nsqd: StartNsqd, go_nsqd: Implementation, data_path: Path, first: str
) -> None:
    if first == "ours":
        start_nsqd()
        second = Nsqd(go_nsqd, data_path)
        assert second.wait() == 1
        return
    go = Nsqd(go_nsqd, data_path)
    go.await_listening("TCP")
    assert start_nsqd(listening=()).wait() == 1
    assert go.stop() == 0


# case 81
def test_missing_data_path_is_an_error(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    daemon = start_nsqd(f"--data-path={tmp_path / 'missing'}", listening=())
    assert daemon.wait() == 1
    assert "missing" in daemon.log


# case 82
def test_nsqd_dat_is_byte_equal(connect: Connect, start_nsqd: StartNsqd, data_path: Path) -> None:
    daemon = start_nsqd()
    assert (data_path / "nsqd.dat").read_text() == '{"topics":null,"version":"1.3.0"}'
    for name in ("gone%23ephemeral", "t"):
        daemon.post(f"/topic/create?topic={name}")
    daemon.stop()
    expected = '{"topics":[{"name":"t","paused":false,"channels":null}],"version":"1.3.0"}'
    assert json.loads((data_path / "nsqd.dat").read_text()) == json.loads(expected)
    daemon = start_nsqd()
    daemon.post("/channel/create?topic=t&channel=gone%23ephemeral")
    daemon.post("/channel/create?topic=t&channel=c")
    daemon.post("/topic/pause?topic=t")
    daemon.post("/channel/pause?topic=t&channel=c")
    expected = '{"topics":[{"name":"t","paused":true,"channels":[{"name":"c","paused":true}]}],"version":"1.3.0"}'
    assert (data_path / "nsqd.dat").read_text() == expected
    daemon.stop()
    assert (data_path / "nsqd.dat").read_text() == expected


# case 82
def test_nsqd_dat_is_read_with_tolerance(start_nsqd: StartNsqd, data_path: Path) -> None:
    text = {
        "future": {"a": 1},
        "topics": [
            {"name": "good", "channels": [{"name": "c", "new": 1}, {"name": "bad name"}], "x": None},
            {"name": "not/good", "channels": []},
            {"name": "bare"},
        ],
    }
    (data_path / "nsqd.dat").write_text(json.dumps(text))
    daemon = start_nsqd()
    assert daemon.topic_names() == {"good", "bare"}
    assert daemon.channel_names("good") == {"c"}
    assert daemon.topic("bare")["paused"] is False


# case 82
@pytest.mark.parametrize("text", ["", "{", "[]", '{"topics": 5}'])
def test_broken_nsqd_dat_is_an_error_and_left_alone(start_nsqd: StartNsqd, data_path: Path, text: str) -> None:
    (data_path / "nsqd.dat").write_text(text)
    assert start_nsqd(listening=()).wait() == 1
    assert (data_path / "nsqd.dat").read_text() == text


# case 83
@pytest.mark.known_defect("D4", strict=False)  # a race: it may be won
def test_deleted_topics_and_channels_stay_deleted_after_a_kill(start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd()
    names = [f"topic{number}" for number in range(40)]
    for name in [*names, "kept"]:
        daemon.post(f"/topic/create?topic={name}")
        daemon.post(f"/channel/create?topic={name}&channel=channel")
        daemon.post(f"/channel/create?topic={name}&channel=gone")
    for name in [*names, "kept"]:
        daemon.post(f"/channel/delete?topic={name}&channel=gone")
    for name in names:
        daemon.post(f"/topic/delete?topic={name}")
    daemon.kill()
    daemon = start_nsqd()
    assert daemon.topic_names() == {"kept"}
    assert daemon.channel_names("kept") == {"channel"}


# case 83
def test_deleted_topic_does_not_come_back_with_old_messages(connect: Connect, start_nsqd: StartNsqd) -> None:
    daemon = start_nsqd("--mem-queue-size=0")
    conn = connect(daemon)
    conn.publish("topic", b"old")
    daemon.post("/channel/create?topic=topic&channel=channel")
    daemon.post("/topic/delete?topic=topic")
    conn.publish("topic", b"new")
    daemon.stop()
    daemon = start_nsqd("--mem-queue-size=0")
    assert daemon.channel_names("topic") == set()
    assert bodies_of(drain(connect(daemon), "topic", "channel", 1)) == [b"new"]
    assert daemon.channel("topic", "channel")["depth"] == 0


# case 84
def test_files_are_private_and_no_temporary_ones_stay(connect: Connect, start_nsqd: StartNsqd, data_path: Path) -> None:
    daemon = start_nsqd("--mem-queue-size=0")
    conn = connect(daemon)
    conn.publish("topic", *numbered(10))
    conn.subscribe("topic", "channel", ready=1)
    conn.message()
    daemon.stop()
    files = [path for path in data_path.rglob("*") if path.is_file()]
    assert data_path / "nsqd.dat" in files
    assert len(files) > 1
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o600"}
    assert not [path for path in files if path.suffix == ".tmp"]


def test_stray_temporary_files_are_ignored(connect: Connect, start_nsqd: StartNsqd, data_path: Path) -> None:
    write_nsqd_dat(data_path, {"topic": ["channel"]})
    write_queue(data_path, "topic:channel", records_of(b"body"))
    (data_path / "nsqd.dat.123.tmp").write_text("{")
    (data_path / "topic:channel.diskqueue.meta.dat.7.tmp").write_text("9\n9,9\n9,9\n")
    assert bodies_of(drain(connect(start_nsqd()), "topic", "channel", 1)) == [b"body"]


@pytest.mark.known_defect("D19")
def test_ephemeral_topic_leaves_nothing_on_disk(connect: Connect, start_nsqd: StartNsqd, data_path: Path) -> None:
    daemon = start_nsqd("--mem-queue-size=1")
    conn = connect(daemon)
    conn.subscribe("t#ephemeral", "plain")
    conn.publish("t#ephemeral", *numbered(20))
    wait_until(lambda: daemon.channel("t%23ephemeral", "plain")["message_count"] > 0)
    daemon.stop()
    assert not [path for path in data_path.rglob("*") if "ephemeral" in path.name]


@pytest.mark.known_defect("D20")
def test_two_copies_of_a_message_can_both_be_finished(connect: Connect, start_nsqd: StartNsqd, data_path: Path) -> None:
    write_nsqd_dat(data_path, {"topic": ["channel"]})
    write_queue(data_path, "topic:channel", [Record(b"body"), Record(b"body"), Record(b"other", b"0f00000000000002")])
    daemon = start_nsqd()
    conn = connect(daemon)
    conn.subscribe("topic", "channel", ready=3)
    wait_until(lambda: daemon.channel("topic", "channel")["depth"] == 0)
    conn.round_trip()
    messages = conn.held
    assert {message.body for message in messages} == {b"body", b"other"}
    conn.finish(*messages)
    conn.round_trip()
    assert daemon.channel("topic", "channel")["in_flight_count"] == 0
