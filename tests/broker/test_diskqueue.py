"""Data paths as Go's nsqd leaves them, taken over whole, whatever happens on the way."""

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.frames import Frame, parse
from simulation.memory_files import Killed, MemoryFiles

from pyspark_nsq.broker.channel import Consumer
from pyspark_nsq.broker.diskqueue import GoQueues, segments
from pyspark_nsq.broker.engine import Engine, EngineOptions
from pyspark_nsq.broker.shared import Shared

NOW = 1_763_000_000_000_000_000
Message = tuple[int, int, bytes, bytes]


def message(number: int, attempts: int = 0) -> Message:
    return NOW + number, attempts, b"189f6f935240%04x" % number, b"body %d" % number


def record(timestamp: int, attempts: int, message_id: bytes, body: bytes) -> bytes:
    content = struct.pack(">qH", timestamp, attempts) + message_id + body
    return struct.pack(">i", len(content)) + content


def records(messages: list[Message]) -> bytes:
    return b"".join(record(*one) for one in messages)


class GoData:
    """A data path in memory."""

    def __init__(self, channels: str = '[{"name":"c","paused":true}]') -> None:
        self.files = MemoryFiles()
        self.warnings: list[str] = []
        text = '{"topics":[{"name":"t","paused":false,"channels":%s}],"version":"1.3.0"}'
        self.files.replace_file("data/nsqd.dat", (text % channels).encode())

    def add(self, name: str, meta: str | None, *contents: bytes) -> None:
        if meta is not None:
            self.files.replace_file(f"data/{name}.diskqueue.meta.dat", meta.encode())
        for number, content in enumerate(contents):
            self.files.replace_file(f"data/{name}.diskqueue.{number:06d}.dat", content)

    def options(self, max_msg_size: int = 1000) -> EngineOptions:
        return EngineOptions("data", max_msg_size=max_msg_size, log=lambda _level, text: self.warnings.append(text))

    def queue(self, name: str, max_msg_size: int = 1000) -> list[Message]:
        shared = Shared(self.options(max_msg_size), self.files)
        queue = GoQueues(shared, self.files.list_directory("data")).find(name)
        assert queue is not None
        return list(queue.messages())

    def open(self) -> Engine:
        return Engine(self.options(), self.files, NOW)

    def go_files(self) -> list[str]:
        return sorted(path for path in self.files.entries if ".diskqueue." in path)


def drain(engine: Engine, name: str) -> list[Frame]:
    channel = engine.topics["t"].channel(name, NOW)
    channel.unpause(NOW)
    consumer = Consumer()
    channel.subscribe(consumer)
    frames: list[Frame] = []
    while True:
        buffers, count = channel.deliver(consumer, NOW, 100, 1 << 20)
        if not count:
            return frames
        frames += parse(buffers)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.data())
def test_every_position_in_every_file_is_a_start(counts: list[int], data: st.DataObject) -> None:
    messages = [message(number) for number in range(sum(counts))]
    go = GoData()
    starts = [sum(counts[:at]) for at in range(len(counts))]
    contents = [records(messages[start : start + count]) for start, count in zip(starts, counts, strict=True)]
    file = data.draw(st.integers(0, len(counts) - 1))
    skipped = data.draw(st.integers(0, counts[file]))
    position = len(records(messages[starts[file] : starts[file] + skipped]))
    go.add("t", f"99\n{file},{position}\n{len(counts) - 1},{len(contents[-1])}\n", *contents)
    assert go.queue("t") == messages[starts[file] + skipped :]
    assert not go.warnings


@pytest.mark.parametrize("meta", ["3\n0,0\n0,0\n", "3\r\n0,0\r\n0,0", "x\n0,0\n0,0\n", "", None, "3\n0,0\n0,0\nmore"])
def test_all_is_read_beyond_old_odd_or_missing_positions(meta: str | None) -> None:
    go = GoData()
    messages = [message(number) for number in range(3)]
    go.add("t", meta, records(messages))
    assert go.queue("t") == messages


def test_large_messages_cross_the_pieces_a_file_is_read_in() -> None:
    go = GoData()
    messages = [(NOW, 0, b"0123456789abcdef", bytes([number]) * 400_000) for number in range(9)]
    go.add("t", None, records(messages))
    assert go.queue("t", 400_000) == messages


@pytest.mark.parametrize(
    "bad", [b"\0\0\0\x05abcde", b"\xff\xff\xff\xff" + bytes(40), b"\0\0", b"\0\0\0\x40short", bytes(50)]
)
def test_a_bad_record_costs_the_rest_of_its_file(bad: bytes) -> None:
    go = GoData()
    good = [message(number) for number in range(4)]
    go.add("t", "4\n0,0\n1,999\n", records(good[:2]) + bad, records(good[2:]))
    assert go.queue("t") == good
    assert f"t.diskqueue.000000.dat: no message at byte {len(records(good[:2]))}" in go.warnings[0]
    drain(go.open(), "c")
    assert go.go_files() == ["data/t.diskqueue.000000.dat.bad"]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 65535), st.binary(min_size=1, max_size=9)), max_size=30))
def test_segments_hold_the_messages_with_one_attempt_more(drawn: list[tuple[int, int, bytes]]) -> None:
    messages = [(NOW, attempts, message(number)[2], body) for number, attempts, body in drawn]
    found = list(segments(iter(messages), 7))
    base = 7
    for segment in found:
        assert segment.base == base
        base = segment.end
        frames = parse([segment.frames])
        assert segment.ids(0, segment.count) == b"".join(frame.message_id for frame in frames)
    frames = parse(segment.frames for segment in found)
    expected = [Frame(NOW, min(attempts + 1, 65535), one, body) for _, attempts, one, body in messages]
    assert frames == expected


def whole_data_path() -> GoData:
    go = GoData('[{"name":"c","paused":true},{"name":"d","paused":false}]')
    go.add("t:c", "3\n0,0\n0,0\n", records([message(number, attempts=2) for number in range(3)]))
    go.add("t", None, records([message(number) for number in range(10, 12)]))
    go.add("t:other", None, records([message(99)]))
    return go


def data_path_with_a_bad_record() -> GoData:
    go = whole_data_path()
    go.add("t", None, records([message(number) for number in range(10, 12)]) + b"\0\0")
    return go


def check_taken_over(go: GoData, engine: Engine) -> None:
    frames = drain(engine, "c")
    assert [(frame.body, frame.attempts) for frame in frames] == [
        (b"body 0", 3),
        (b"body 1", 3),
        (b"body 2", 3),
        (b"body 10", 1),
        (b"body 11", 1),
    ]
    assert frames[0].message_id == message(0)[2]
    assert frames[0].timestamp == NOW
    assert [frame.body for frame in drain(engine, "d")] == [b"body 10", b"body 11"]


def test_queues_of_channels_and_topic_are_taken_over_and_deleted() -> None:
    go = whole_data_path()
    engine = go.open()
    assert engine.topics["t"].channels["c"].paused
    assert go.go_files() == ["data/t:other.diskqueue.000000.dat"]  # of no channel that exists
    check_taken_over(go, engine)


@pytest.mark.parametrize(
    ("data_path", "left"),
    [(whole_data_path, []), (data_path_with_a_bad_record, ["data/t.diskqueue.000000.dat.bad"])],
)
def test_a_kill_at_any_call_takes_over_exactly_once(data_path: Callable[[], GoData], left: list[str]) -> None:
    calls = data_path()
    before = calls.files.calls
    calls.open()
    for call in range(1, calls.files.calls - before + 1):
        for power in (False, True):
            go = data_path()
            go.files.random.seed(call)
            go.files.kill_at = go.files.calls + call
            with pytest.raises(Killed):
                go.open()
            if power:
                go.files.lose_power()
            else:
                go.files.kill()
            check_taken_over(go, go.open())
            assert go.go_files() == [*left, "data/t:other.diskqueue.000000.dat"], f"call {call}"


def test_nothing_is_deleted_when_our_copy_cannot_be_written() -> None:
    go = whole_data_path()
    names = go.go_files()
    go.files.fail_from = go.files.calls + 1
    with pytest.raises(OSError, match="No space left"):
        go.open()
    assert go.go_files() == names
    go.files.kill()
    check_taken_over(go, go.open())


def test_the_data_path_is_listed_once_however_many_topics_there_are() -> None:
    go = GoData('[{"name":"c","paused":false}]')
    engine = go.open()
    for number in range(20):
        engine.topic(f"t{number}", NOW).channel("c", NOW)
    engine.close(NOW)
    go.files.listed.clear()
    go.open()
    assert go.files.listed.count("data") == 1


def test_queues_of_topics_that_are_called_like_files_are_told_apart() -> None:
    go = GoData("null")
    names = ["t.diskqueue.meta.dat", "t.diskqueue.000000.dat", "t.diskqueue.000000", "t", "diskqueue"]
    for number, name in enumerate(names):
        go.add(name, None, records([message(number)]))
        go.add(f"{name}:c", None, records([message(100 + number)]))
    for number, name in enumerate(names):
        assert go.queue(name) == [message(number)]
        assert go.queue(f"{name}:c") == [message(100 + number)]


def test_messages_of_go_come_behind_those_we_had() -> None:
    go = GoData("null")
    engine = go.open()
    engine.topics["t"].publish([b"ours"], NOW)
    engine.commit(NOW)
    engine.close(NOW)
    go.add("t", None, records([message(5)]))
    engine = go.open()
    assert [frame.body for frame in drain(engine, "new")] == [b"ours", b"body 5"]
