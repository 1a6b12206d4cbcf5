"""What the model of test_engine_model leaves out of the disk: deletion, fsync, health, what is missing or strange."""

import pytest
from simulation.memory_files import Killed, MemoryFiles
from simulation.small_broker import NOW, SECOND, Broker, bodies

from pyspark_nsq.broker import journal
from pyspark_nsq.broker.engine import DataPathError, Engine, EngineOptions, Event


def test_memory_holds_at_most_mem_queue_size_and_files_go_as_channels_finish() -> None:
    broker = Broker(mem_queue_size=50, max_bytes_per_file=2000)
    channel, slow = broker.channel("t", "c"), broker.channel("t", "slow")
    consumer, slow_consumer = broker.consumer(channel), broker.consumer(slow)
    topic = broker.engine.topics["t"]
    for number in range(60):
        broker.publish("t", *[b"%d" % number] * 10)
        assert topic.store.resident <= 50
    assert (channel.depth, channel.backend_depth) == (600, 550)
    for reader, group in ((consumer, channel), (slow_consumer, slow)):
        for _ in range(6):
            frames = broker.get(group, reader, 100)
            assert not group.finish(reader, b"".join(frame.message_id for frame in frames), broker.now)
        broker.wait(2 * SECOND)
        files = [path for path in broker.files.entries if path.endswith(".log")]
        assert len(files) > 10 if group is channel else len(files) <= 1
    assert topic.log_bytes <= 2000


def test_files_go_as_ephemeral_channels_finish() -> None:
    broker = Broker(max_bytes_per_file=2000)
    channel = broker.channel("t", "c#ephemeral")
    consumer = broker.consumer(channel)
    for _ in range(60):
        broker.publish("t", b"x" * 500)
    broker.wait(SECOND)
    frames = broker.get(channel, consumer)
    assert broker.engine.topics["t"].log_bytes > 30_000
    channel.finish(consumer, b"".join(frame.message_id for frame in frames), broker.now)
    broker.wait(SECOND)
    assert broker.engine.topics["t"].log_bytes <= 2000


def test_deleted_topics_and_channels_stay_deleted_after_a_kill() -> None:
    broker = Broker()
    broker.channel("gone", "c")
    broker.channel("kept", "gone")
    broker.channel("kept", "kept")
    broker.publish("gone", b"x")
    broker.publish("kept", b"x")
    broker.wait(2 * SECOND)
    (deleted,) = broker.engine.delete_topic("gone", broker.now)
    assert deleted.deleted
    broker.engine.topics["kept"].delete_channel("gone", broker.now)
    broker.files.kill()
    broker.open()
    assert {name: set(topic.channels) for name, topic in broker.engine.topics.items()} == {"kept": {"kept"}}
    assert not [path for path in broker.files.entries if "gone" in path]
    with pytest.raises(KeyError):
        broker.engine.delete_topic("gone", broker.now)


def fill_disk(broker: Broker) -> None:
    broker.files.capacity = sum(len(inode.data) for inode in broker.files.entries.values())


def test_deleting_a_topic_makes_room_on_a_full_disk() -> None:
    broker = Broker()
    broker.channel("t", "c")
    broker.publish("t", b"x" * 1000)
    fill_disk(broker)
    broker.engine.delete_topic("t", NOW)
    assert list(broker.files.entries) == ["data/nsqd.dat"]
    broker.files.kill()
    broker.open()
    assert broker.engine.topics == {}


def test_what_is_deleted_on_a_full_disk_is_off_the_record_once_there_is_room() -> None:
    broker = Broker(persist_interval_ns=SECOND)
    broker.engine.topic("unused", NOW)
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    broker.wait(SECOND)
    fill_disk(broker)
    broker.engine.delete_topic("unused", NOW)
    assert broker.engine.topics["t"].delete_channel("c", NOW).consumers == [consumer]
    for _ in range(10):
        broker.wait(SECOND // 10)
    assert len([line for line in broker.log if "failed to persist metadata" in line]) == 1
    broker.files.capacity = None
    broker.wait(2 * SECOND)
    broker.files.kill()
    broker.open()
    assert {name: set(topic.channels) for name, topic in broker.engine.topics.items()} == {"t": set()}


def test_a_channel_is_served_after_its_pause_even_if_that_cannot_be_put_on_record() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    channel.pause(NOW)
    broker.publish("t", b"x")
    broker.wait(SECOND)
    broker.engine.take_ready()
    fill_disk(broker)
    with pytest.raises(OSError, match="No space"):
        channel.unpause(broker.now)
    assert broker.engine.take_ready() == [channel]
    assert bodies(broker.get(channel, consumer)) == [b"x"]


def test_a_topic_whose_files_cannot_be_put_aside_stays() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    broker.publish("t", b"x")
    broker.files.fail_from = broker.files.calls
    with pytest.raises(OSError, match="No space"):
        broker.engine.delete_topic("t", NOW)
    broker.files.heal()
    assert broker.engine.topics["t"].channels == {"c": channel}
    broker.publish("t", b"y")
    assert bodies(broker.get(channel, broker.consumer(channel))) == [b"x", b"y"]


def test_publishing_to_a_topic_that_is_deleted_in_the_same_turn_is_no_error() -> None:
    broker = Broker()
    ticket = broker.engine.topic("t", NOW).publish([b"x"], NOW)
    broker.engine.delete_topic("t", NOW)
    broker.engine.commit(NOW)
    assert ticket.done
    assert ticket.error is None
    assert not [path for path in broker.files.entries if path.endswith(".log")]


def test_a_state_that_is_missing_beside_its_log_is_said_and_costs_nothing() -> None:
    broker = Broker(max_bytes_per_file=2000)
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    for _ in range(60):
        broker.publish("t", b"x" * 500)
    frames = broker.get(channel, consumer, 30)
    channel.finish(consumer, b"".join(frame.message_id for frame in frames), broker.now)
    broker.wait(SECOND)
    broker.files.kill()
    broker.files.remove("data/t.log/state")
    broker.open()
    (warning,) = broker.log
    assert "data/t.log/state is missing" in warning
    channel = broker.engine.topics["t"].channels["c"]
    depth = channel.depth
    assert 30 <= depth < 40
    assert len(broker.get(channel, broker.consumer(channel))) == depth
    assert broker.log == [warning]


def test_a_log_whose_messages_are_all_finished_misses_nothing_at_the_start() -> None:
    broker = Broker(max_bytes_per_file=2000)
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    for size in (1500, 1500, 5000):
        broker.publish("t", b"x" * size)
        frames = broker.get(channel, consumer)
        channel.finish(consumer, b"".join(frame.message_id for frame in frames), broker.now)
        broker.wait(SECOND)
        broker.files.kill()
        broker.open()
        channel = broker.channel("t", "c")
        consumer = broker.consumer(channel)
    assert broker.engine.topics["t"].log_bytes == 0
    assert broker.log == []


def test_data_path_is_locked_and_must_exist() -> None:
    broker = Broker()
    with pytest.raises(DataPathError, match="failed to lock data-path: data: in use by another nsqd"):
        Engine(broker.options, broker.files, NOW)
    with pytest.raises(DataPathError, match="failed to lock data-path: elsewhere: No such file"):
        Engine(EngineOptions("elsewhere"), broker.files, NOW)


def test_what_is_not_ours_in_the_data_path_is_left_alone() -> None:
    files = MemoryFiles()
    files.directories |= {"data/folder.log", "data/other", "data/bad name.log"}
    files.replace_file("data/folder.log/readme", b"text")
    files.replace_file("data/nsqd.log", b"text")
    broker = Broker(files)
    assert broker.engine.topics == {}
    assert files.read_file("data/folder.log/readme") == files.read_file("data/nsqd.log") == b"text"


HOSTILE_NAMES = [
    ".",
    "..",
    "a",
    "A",
    "a.log",
    "a.log.log",
    "a.log.deleted-2026",
    "a.log.deleted-0123abcd",
    "a.log.deleted-0123abcd.log",
    ".log",
    ".log.deleted-0123abcd",
    "state",
    "nsqd.dat",
    "nsqd.dat.tmp",
    "a.diskqueue.meta.dat",
    "a.diskqueue.000000.dat",
    "-ephemeral",
    "a.ephemeral",
    "0" * 64,
]


def test_names_that_look_like_something_else_are_names_all_the_same() -> None:
    broker = Broker()
    for name in HOSTILE_NAMES:
        for channel in HOSTILE_NAMES:
            broker.channel(name, channel)
        broker.publish(name, name.encode())
    broker.engine.delete_topic("a", NOW)
    kept = HOSTILE_NAMES[:2] + HOSTILE_NAMES[3:]
    for _ in range(2):
        broker.files.kill()
        broker.open()
        assert sorted(broker.engine.topics) == sorted(kept)
        for name in kept:
            assert sorted(broker.engine.topics[name].channels) == sorted(HOSTILE_NAMES)
            for channel in broker.engine.topics[name].channels.values():
                assert bodies(broker.get(channel, broker.consumer(channel))) == [name.encode()]
    assert not [line for line in broker.log if "a.log" in line]


def test_what_a_kill_left_of_a_deleted_topic_goes_at_the_next_start() -> None:
    broker = Broker()
    broker.publish("gone", b"x")
    broker.files.kill_at = broker.files.calls + 2  # renamed, but not yet removed
    with pytest.raises(Killed):
        broker.engine.delete_topic("gone", NOW)
    broker.files.kill()
    assert [path for path in broker.files.entries if "gone" in path]
    broker.open()
    assert not [path for path in [*broker.files.entries, *broker.files.directories] if "gone" in path]


def test_publishers_share_an_fsync_and_wait_for_it() -> None:
    broker = Broker(sync_every=1)
    channel = broker.channel("t", "c")
    first = broker.publish("t", b"1")
    assert (first.done, channel.depth) == (False, 0)
    job = broker.engine.next_sync(NOW)
    assert job is not None
    second, third = broker.publish("t", b"2"), broker.publish("u", b"3")
    assert broker.engine.next_sync(NOW) is None
    job.run()
    broker.engine.synced(job, NOW)
    assert (first.done, second.done, third.done, channel.depth) == (True, False, False, 1)
    broker.files.synced_paths.clear()
    job = broker.engine.next_sync(NOW)
    assert job is not None
    job.run()
    broker.engine.synced(job, NOW)
    assert (second.done, third.done, channel.depth) == (True, True, 2)
    assert len([path for path in broker.files.synced_paths if path.endswith(".log") and "-" in path]) == 2
    assert broker.engine.next_sync(NOW) is None


def test_fsync_comes_after_sync_every_appends_or_sync_timeout() -> None:
    broker = Broker(sync_every=3, sync_timeout_ns=2 * SECOND)
    for _ in range(2):
        assert broker.publish("t", b"x").done
    assert broker.engine.next_sync(NOW) is None
    broker.publish("t", b"x")
    job = broker.engine.next_sync(NOW)
    assert job is not None
    broker.engine.synced(job, NOW)
    broker.publish("t", b"x")
    assert broker.engine.next_deadline(NOW + SECOND + 1) <= NOW + 2 * SECOND
    assert broker.engine.next_sync(NOW + 2 * SECOND - 1) is None
    assert broker.engine.next_sync(NOW + 2 * SECOND) is not None


def test_a_message_that_waits_for_its_fsync_while_state_is_saved_survives_a_kill() -> None:
    broker = Broker(sync_every=1, max_bytes_per_file=100)
    channel = broker.channel("t", "c")
    for body in (b"before", b"x"):
        ticket = broker.publish("t", body)
        job = broker.engine.next_sync(NOW)
        assert job is not None
        job.run()
        broker.wait(2 * SECOND)
        broker.engine.synced(job, broker.now)
        assert ticket.done
        if body == b"before":
            consumer = broker.consumer(channel)
            (frame,) = broker.get(channel, consumer)
            channel.finish(consumer, frame.message_id, broker.now)
    broker.files.kill()
    broker.open()
    channel = broker.channel("t", "c")
    assert bodies(broker.get(channel, broker.consumer(channel))) == [b"x"]


def test_deferred_messages_of_an_emptied_channel_do_not_come_back_after_a_kill() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    broker.publish("t", b"x", defer_ns=SECOND)
    broker.wait(SECOND - 1)
    broker.wait(1)
    broker.publish("t", b"y", defer_ns=9 * SECOND)
    broker.wait(2 * SECOND)
    channel.empty(broker.now)
    broker.files.kill()
    broker.open()
    channel = broker.channel("t", "c")
    assert (channel.depth, channel.deferred_count) == (0, 0)


def test_time_outs_count_an_attempt() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    broker.publish("t", b"x", b"y")
    consumer = broker.consumer(channel, SECOND)
    for attempt in (1, 2, 3):
        assert [frame.attempts for frame in broker.get(channel, consumer)] == [attempt, attempt]
        broker.wait(SECOND - 1)
        assert channel.in_flight_count == 2
        broker.wait(1)
    assert channel.timeout_count == 6


def test_health_recovers_by_itself_when_writing_works_again() -> None:
    broker = Broker()
    broker.publish("t", b"x")
    broker.files.fail_from = 0
    error = broker.publish("t", b"y").error
    assert error is not None
    assert broker.engine.health is not None
    broker.wait(2 * SECOND)
    assert broker.engine.health is not None
    broker.files.heal()
    broker.wait(2 * SECOND)
    assert broker.engine.health is None
    channel = broker.channel("t", "c")
    assert bodies(broker.get(channel, broker.consumer(channel))) == [b"x"]


def test_idle_topics_keep_no_files_open() -> None:
    broker = Broker()
    for number in range(20):
        broker.publish(f"t{number}", b"x")
    assert len(broker.files.handles) == 20
    for _ in range(3):
        broker.wait(31 * SECOND)
    assert not broker.files.handles
    broker.publish("t3", b"y")
    assert broker.engine.topics["t3"].depth == 2


def test_a_log_that_is_drained_goes_without_an_fsync() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    for _ in range(5):
        broker.publish("t", b"x" * 1024 * 1024)
    broker.wait(SECOND)
    broker.files.replaced_paths.clear()
    while frames := broker.get(channel, consumer):
        channel.finish(consumer, b"".join(frame.message_id for frame in frames), broker.now)
    assert broker.engine.topics["t"].log_bytes > 5_000_000
    broker.wait(SECOND)
    assert broker.engine.topics["t"].log_bytes == 0
    assert broker.files.replaced_paths == []


def test_the_end_writes_only_what_has_changed() -> None:
    broker = Broker()
    for name in ("idle", "finished", "delivered", "published"):
        broker.publish(name, b"x", b"y")
        broker.channel(name, "c")
    broker.wait(2 * SECOND)
    broker.engine.close(broker.now)
    broker.open()
    broker.wait(2 * SECOND)
    for name in ("finished", "delivered"):
        channel = broker.channel(name, "c")
        consumer = broker.consumer(channel)
        frames = broker.get(channel, consumer)
        if name == "finished":
            channel.finish(consumer, frames[0].message_id + frames[1].message_id, broker.now)
    broker.publish("published", b"z")
    broker.files.replaced_paths.clear()
    broker.engine.close(broker.now)
    changed = [f"data/{name}.log/state" for name in ("delivered", "finished", "published")]
    assert sorted(broker.files.replaced_paths) == changed
    broker.open()
    attempts = {}
    for name, topic in broker.engine.topics.items():
        channel = topic.channels["c"]
        attempts[name] = [frame.attempts for frame in broker.get(channel, broker.consumer(channel))]
    assert attempts == {"idle": [1, 1], "finished": [], "delivered": [2, 2], "published": [1, 1, 1]}


def test_events_tell_what_came_and_went() -> None:
    broker = Broker()
    broker.channel("t", "c")
    broker.channel("t", "c")
    expected = [Event("topic_created", "t"), Event("channel_created", "t", "c")]
    assert broker.engine.take_events() == expected
    assert broker.engine.take_events() == []
    broker.engine.close(NOW)
    broker.open()
    assert broker.engine.take_events() == expected
    broker.engine.delete_topic("t", NOW)
    assert broker.engine.take_events() == [Event("channel_deleted", "t", "c"), Event("topic_deleted", "t")]


def test_what_was_read_ahead_of_its_fsync_takes_nothing_away() -> None:
    """A piece of the log has messages that channels may not have yet: the first ones in the segment that a channel is
    at, and behind them others."""
    broker = Broker(sync_every=1, mem_queue_size=1)
    engine, channel = broker.engine, broker.channel("t", "c")
    consumer = broker.consumer(channel)

    def sync() -> None:
        job = engine.next_sync(broker.now)
        assert job is not None
        job.run()
        engine.synced(job, broker.now)

    broker.publish("t", b"0", b"1")
    sync()
    broker.publish("t", b"2", b"3")
    broker.now += SECOND  # what comes now is a segment of its own
    broker.publish("t", b"4", b"5")
    assert bodies(broker.get(channel, consumer)) == [b"0", b"1"]
    sync()
    assert bodies(broker.get(channel, consumer)) == [b"2", b"3", b"4", b"5"]
    assert not channel.depth


def test_a_state_that_has_grown_is_rewritten_without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_REWRITE_BYTES_MIN", 2000)
    broker = Broker(sync_every=1000)
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    rewritten = 0
    broker.wait(SECOND)
    broker.files.replaced_paths.clear()
    for number in range(200):
        broker.publish("t", b"%d" % number)
        channel.finish(consumer, broker.get(channel, consumer)[0].message_id, broker.now)
        before = broker.files.entries["data/t.log/state"]
        broker.files.synced_paths.clear()
        broker.now += 2 * SECOND
        broker.engine.tick(broker.now)
        assert broker.files.synced_paths == []
        broker.sync()
        rewritten += broker.files.entries["data/t.log/state"] is not before
        assert len(before.data) < 10_000
    assert rewritten > 3
    assert broker.files.replaced_paths == []
    broker.publish("t", b"last")
    broker.wait(SECOND)
    broker.files.kill()
    broker.open()
    assert [
        frame.body for frame in broker.get(broker.channel("t", "c"), broker.consumer(broker.channel("t", "c")))
    ] == [b"last"]
