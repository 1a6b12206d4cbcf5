"""What cannot be read back from the log: now, for long, or ever again."""

import errno
import os

import pytest
from simulation.memory_files import Inode
from simulation.small_broker import SECOND, Broker, bodies

from pyspark_nsq.broker.channel import Channel, Consumer
from pyspark_nsq.broker.segment import FRAME_OVERHEAD, RECORD_HEADER_SIZE

BLOCK = 4096
FILE_SIZE = 40 * BLOCK
PAD = b"x" * 500


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO], ids=os.strerror)
def test_messages_wait_while_their_file_cannot_be_opened(error: int) -> None:
    broker = Broker(mem_queue_size=1, max_bytes_per_file=500)
    channel = broker.channel("t", "c")
    expected = [b"%d" % number for number in range(100)]
    for body in expected:
        broker.publish("t", body)
    broker.get(channel, broker.consumer(channel), 50)
    broker.engine.close(broker.now)
    broker.open()
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    broker.engine.take_ready()
    broker.files.read_error = error
    for _ in range(5):
        assert not broker.get(channel, consumer)
        assert broker.engine.next_deadline(broker.now) <= broker.now + SECOND
        assert not broker.engine.take_ready()
        broker.wait(SECOND)
        assert broker.engine.take_ready() == [channel]
    assert os.strerror(error) in broker.log[0]
    assert len(broker.log) == 1
    broker.files.heal()
    frames = broker.get(channel, consumer)
    assert sorted(bodies(frames)) == sorted(expected)
    assert [frame.attempts for frame in frames] == [2] * 50 + [1] * 50


@pytest.fixture
def broker() -> Broker:
    """Its only topic has 2,000 messages in some files, of which none is in memory."""
    broker = Broker(mem_queue_size=1, max_bytes_per_file=FILE_SIZE)
    broker.channel("t", "c")
    for number in range(2000):
        broker.publish("t", b"%04d" % number + PAD)
    return broker


def numbers(broker: Broker, channel: Channel, consumer: Consumer) -> list[int]:
    """Of all messages that are there."""
    found = []
    while frames := broker.get(channel, consumer):
        found += [int(frame.body[:4]) for frame in frames]
        assert not channel.finish(consumer, b"".join(frame.message_id for frame in frames), broker.now)
    return found


def second_file(broker: Broker) -> tuple[str, Inode]:
    return sorted((path, inode) for path, inode in broker.files.entries.items() if path.endswith(".log"))[1]


def test_nothing_is_given_up_while_the_disk_reads_nothing(broker: Broker) -> None:
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    inodes = [inode for path, inode in broker.files.entries.items() if path.endswith(".log")]
    for inode in inodes:
        inode.unreadable = [range(FILE_SIZE)]
    for _ in range(600):
        assert not broker.get(channel, consumer)
        broker.wait(SECOND)
    assert channel.depth == 2000
    assert len(broker.log) == 1
    assert "failed to read" in broker.log[0]
    for inode in inodes:
        inode.unreadable = []
    assert numbers(broker, channel, consumer) == list(range(2000))


def test_a_moment_in_which_the_disk_cannot_read_costs_a_moment(broker: Broker) -> None:
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    _, inode = second_file(broker)
    inode.unreadable = [range(10 * BLOCK, 11 * BLOCK)]
    found = []
    for _ in range(50):
        found += numbers(broker, channel, consumer)
        broker.wait(SECOND)
    assert len(found) < 1000
    inode.unreadable = []
    assert found + numbers(broker, channel, consumer) == list(range(2000))


def test_a_disk_that_cannot_read_is_asked_once_a_second(broker: Broker) -> None:
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    for inode in broker.files.entries.values():
        inode.unreadable = [range(FILE_SIZE)]
    assert not broker.get(channel, consumer)
    reads = broker.files.reads
    for _ in range(10):
        assert not broker.get(channel, consumer)
    assert broker.files.reads == reads


@pytest.mark.parametrize(
    "bad",
    [
        [range(10 * BLOCK, 11 * BLOCK)],
        [range(10 * BLOCK, 11 * BLOCK), range(12 * BLOCK, 13 * BLOCK), range(17 * BLOCK, 30 * BLOCK)],
        [range(1)],
        [range(30 * BLOCK, FILE_SIZE)],
    ],
    ids=["one block", "several", "the beginning", "the end"],
)
def test_what_the_disk_never_reads_is_stepped_over_and_kept(broker: Broker, bad: list[range]) -> None:
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    path, inode = second_file(broker)
    inode.unreadable = bad
    lost = {number for number in range(2000) if any(overlaps(inode, number, part) for part in bad)}
    found = []
    for _ in range(100):
        found += numbers(broker, channel, consumer)
        broker.wait(SECOND)
    assert found == sorted(set(range(2000)) - lost)
    assert len(lost) <= 8 * sum(len(range(0, len(part), BLOCK)) + 1 for part in bad)
    assert path not in broker.files.entries
    assert broker.files.entries[f"{path}.bad"] is inode
    for text in ("stepped over bytes", f"is kept as {path}.bad", f"messages {min(lost)} to "):
        assert [line for line in broker.log if text in line], text


def overlaps(inode: Inode, number: int, bad: range) -> bool:
    """Whether the message has a part in the blocks of the disk that cannot be read."""
    at = bytes(inode.data).find(b"%04d" % number + PAD)
    start, stop = bad.start // BLOCK * BLOCK, -(-bad.stop // BLOCK) * BLOCK
    return at >= 0 and start < at + 4 + len(PAD) and at - RECORD_HEADER_SIZE - FRAME_OVERHEAD < stop


def test_a_file_of_which_nothing_can_be_read_can_be_taken_away(broker: Broker) -> None:
    channel = broker.channel("t", "c")
    consumer = broker.consumer(channel)
    path, inode = second_file(broker)
    inode.unreadable = [range(FILE_SIZE)]
    found = numbers(broker, channel, consumer)
    broker.wait(100 * SECOND)
    assert not numbers(broker, channel, consumer)
    del broker.files.entries[path]
    broker.wait(SECOND)
    rest = numbers(broker, channel, consumer)
    assert rest[-1] == 1999
    assert found[-1] + 1 < rest[0] < found[-1] + 1 + FILE_SIZE // 500
