"""What is scarce: room on the disk, file descriptors."""

import resource

from simulation.memory_files import MemoryFiles
from simulation.small_broker import SECOND, Broker, bodies

from pyspark_nsq.broker.limits import raise_file_limit
from pyspark_nsq.broker.log import Log
from pyspark_nsq.broker.open_logs import OpenLogs


def fill_the_disk(broker: Broker, topic: str) -> list[bytes]:
    """Publish until that is refused; what was accepted."""
    accepted: list[bytes] = []
    while broker.publish(topic, body := b"%06d" % len(accepted) * 50).error is None:
        accepted.append(body)
    return accepted


def test_a_full_disk_becomes_free_by_reading() -> None:
    broker = Broker(MemoryFiles(), mem_queue_size=10, max_bytes_per_file=4000)
    broker.files.capacity = 50_000
    channel = broker.channel("t", "c")
    accepted = fill_the_disk(broker, "t")
    assert broker.engine.health is not None
    # Others have taken the last of the room, so that not even the state can be written.
    broker.files.capacity = sum(len(inode.data) for inode in broker.files.entries.values())
    consumer = broker.consumer(channel)
    while frames := broker.get(channel, consumer, 20):
        assert bodies(frames) == accepted[: len(frames)]
        del accepted[: len(frames)]
        assert not channel.finish(consumer, b"".join(frame.message_id for frame in frames), broker.now)
        broker.wait(2 * SECOND)
    assert not accepted
    broker.wait(2 * SECOND)
    assert broker.engine.health is None
    assert broker.publish("t", b"again").error is None
    # What was finished stays finished, and the numbers go on.
    broker.files.kill()
    broker.open()
    channel = broker.engine.topics["t"].channels["c"]
    assert bodies(broker.get(channel, broker.consumer(channel))) == [b"again"]


def test_a_kill_while_the_state_cannot_be_written_loses_nothing() -> None:
    broker = Broker(MemoryFiles(), mem_queue_size=10, max_bytes_per_file=4000)
    broker.files.capacity = 50_000
    channel = broker.channel("t", "c")
    accepted = fill_the_disk(broker, "t")
    broker.files.capacity = 0
    consumer = broker.consumer(channel)
    frames = broker.get(channel, consumer, 40)
    channel.finish(consumer, b"".join(frame.message_id for frame in frames), broker.now)
    broker.wait(2 * SECOND)  # deletes files whose messages the state on disk still names
    broker.files.kill()
    broker.open()
    channel = broker.engine.topics["t"].channels["c"]
    survivors = bodies(broker.get(channel, broker.consumer(channel)))
    assert survivors == accepted[-len(survivors) :]
    assert len(survivors) >= len(accepted) - 40


def test_few_logs_of_many_topics_keep_files_open() -> None:
    broker = Broker(open_logs_max=3)
    channels = [broker.channel(f"t{number}", "c") for number in range(8)]
    for _ in range(2):
        for channel in channels:
            broker.publish(channel.topic.name, b"x")
            assert len(broker.files.handles) <= 6
    for channel in channels:
        assert len(broker.get(channel, broker.consumer(channel))) == 2
        assert len(broker.files.handles) <= 6


def test_the_log_that_opened_last_is_never_closed_for_it() -> None:
    files = MemoryFiles()
    files.make_directory("data/t.log")
    shared = OpenLogs(1)
    logs = [Log(files, "data/t.log", 1000, print, shared) for _ in range(2)]
    for log in (*logs, *logs):
        log.probe()
        assert len(files.handles) == 1


def test_the_soft_limit_of_files_is_raised_to_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        assert raise_file_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_torn_state_can_be_read_on_a_full_disk() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    broker.publish("t", b"x")
    broker.wait(2 * SECOND)
    assert channel.depth == 1
    broker.files.kill()
    state = broker.files.entries["data/t.log/state"].data
    whole = bytes(state)
    state += b"0badbeef {" + b"0" * 1000 + b"\n"  # longer than what comes next
    broker.files.capacity = 0
    broker.open()
    channel = broker.engine.topics["t"].channels["c"]
    assert bodies(broker.get(channel, broker.consumer(channel))) == [b"x"]
    # There is no room for what is to be written, until there is: it stands where the line was cut off.
    broker.wait(2 * SECOND)
    broker.files.capacity = None
    broker.wait(2 * SECOND)
    state = broker.files.entries["data/t.log/state"].data
    assert state.startswith(whole)
    assert len(state) > len(whole)
    assert b"0badbeef" not in state
    broker.files.kill()
    broker.log.clear()
    broker.open()
    assert not broker.log
    channel = broker.engine.topics["t"].channels["c"]
    assert bodies(broker.get(channel, broker.consumer(channel))) == [b"x"]
