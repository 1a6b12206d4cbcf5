import errno
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.frames import parse
from simulation.memory_files import MemoryFiles
from simulation.uniform import together

from pyspark_nsq.broker import log as log_module
from pyspark_nsq.broker import log_file
from pyspark_nsq.broker.log import Log
from pyspark_nsq.broker.message_id import IdGenerator
from pyspark_nsq.broker.segment import RECORD_HEADER_SIZE, Segment, new_segment, uniform_segment
from pyspark_nsq.proto.uniform import UniformBodies

START = 1_763_000_000_000_000_000


class World:
    """A log in a file system in memory."""

    def __init__(self, max_bytes: int = 1000) -> None:
        self.files = MemoryFiles()
        self.files.make_directory("data/t.log")
        self.max_bytes = max_bytes
        self.warnings: list[str] = []
        self.ids = IdGenerator(7)
        self.now = START
        self.log = self.open()

    def open(self) -> Log:
        log = Log(self.files, "data/t.log", self.max_bytes, self.warnings.append)
        log.load((0, 0, 0, 0))
        self.log = log
        return log

    def segment(self, count: int, size: int = 20, due: int = 0) -> Segment:
        """Some are packed as large MPUBs are."""
        base = self.log.end
        bodies = [b"%d " % (base + at) + b"x" * (size + at % 2 * (size % 3)) for at in range(count)]
        self.now += 1_000_000  # often within what shares a tick of ids
        prefix, first = self.ids.take(count, self.now)
        if base % 3 == 1 and isinstance(uniform := together(bodies), UniformBodies):
            return uniform_segment(uniform, base, prefix, first, self.now, due)
        return new_segment(bodies, list(map(len, bodies)), base, prefix, first, self.now, due)

    def append(self, *counts: int) -> None:
        for count in counts:
            self.log.append([self.segment(count)])

    def numbers(self, seq: int = 0, stop: int | None = None) -> list[int]:
        """The messages from `seq` on, as a channel reads them."""
        found: list[int] = []
        stop = self.log.end if stop is None else stop
        while seq < stop:
            segments = self.log.read(seq, stop)
            if not segments:
                break
            for segment in segments:
                for at, frame in enumerate(parse([segment.frames])):
                    assert int(frame.body.split()[0]) == segment.base + at
                    if segment.base + at >= seq:
                        found.append(segment.base + at)
                        seq = segment.base + at + 1
        return found

    def only_file(self) -> bytearray:
        (path,) = [path for path in self.files.entries if path.endswith(".log")]
        return self.files.entries[path].data


@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=40), max_bytes=st.sampled_from([1, 300, 3000]))
def test_what_is_appended_is_read_from_any_message_on(counts: list[int], max_bytes: int) -> None:
    world = World(max_bytes)
    world.append(*counts)
    total = sum(counts)
    for _ in range(2):
        for seq in range(0, total, 3):
            assert world.numbers(seq) == list(range(seq, total))
        world.open()
        assert world.log.end == total


def test_files_are_rolled_before_they_grow_beyond_the_limit_but_hold_one_record_at_least() -> None:
    world = World(400)
    world.append(2, 2, 2, 50, 1)
    sizes = [file.size for file in world.log.log_files]
    assert all(size <= 400 for size in sizes if size != max(sizes))
    assert max(sizes) > 400
    assert world.numbers() == list(range(57))


def test_torn_tail_is_cut_off_at_start_and_said() -> None:
    world = World(10_000)
    world.append(3, 3)
    intact = len(world.only_file())
    world.append(3)
    whole = len(world.only_file())
    for size in range(intact + 1, whole):
        del world.only_file()[size:]
        world.open()
        assert world.log.end == 6
        assert len(world.only_file()) == intact
        assert f"cut off {size - intact} bytes" in world.warnings[-1]
        world.append(3)
        assert world.numbers() == list(range(9))


def test_flipped_byte_costs_its_record_only() -> None:
    world = World(10_000)
    world.append(1, 1, 3, 1, 2, 1, 1)
    data = world.only_file()
    rest = list(range(10))
    for position in range(len(data)):
        data[position] ^= 0x10
        world.warnings.clear()
        damaged = set(rest) - set(world.numbers())
        assert damaged in ({0}, {1}, {2, 3, 4}, {5}, {6, 7}, {8}, {9}), position
        assert "damaged bytes" in world.warnings[0]
        data[position] ^= 0x10
    assert world.numbers() == rest


@given(st.data())
def test_rubbish_in_the_middle_is_stepped_over(data: st.DataObject) -> None:
    world = World(10_000)
    world.append(*[1] * 30)
    content = world.only_file()
    start = data.draw(st.integers(0, len(content) - 1))
    rubbish = data.draw(st.binary(max_size=200))
    content[start : start + len(rubbish)] = rubbish[: len(content) - start]
    numbers = world.numbers()
    assert numbers == sorted(set(numbers))
    assert len(numbers) >= 30 - 2 - len(rubbish) // 50


def test_message_that_looks_like_a_record_does_not_become_one() -> None:
    world = World(100_000)
    fake = world.segment(2)
    fake.base = 1
    record = b"".join(fake.record(0))
    world.append(1)
    prefix, first = world.ids.take(1, world.now)
    world.log.append([new_segment([b"1 " + record], [len(record) + 2], 1, prefix, first, world.now, 0)])
    world.append(1)
    second = world.log.log_files[0].size - 400
    world.only_file()[RECORD_HEADER_SIZE + 60 + second * 0] ^= 1  # damages the first or the second record's header
    assert all(number in (0, 1, 2) for number in world.numbers())
    assert 2 in world.numbers()


def test_a_message_in_a_large_file_without_index_is_found_by_bisecting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "INDEX_EVERY", 500)
    monkeypatch.setattr(log_file, "INDEX_EVERY", 500)
    monkeypatch.setattr(log_module, "CHUNK_MIN", 300)
    world = World(1 << 30)
    world.append(*random.Random(1).choices([1, 2, 3, 30], k=400))
    world.append(1)
    total = world.log.end
    for seq in range(0, total, 29):
        log = Log(world.files, "data/t.log", 1 << 30, world.warnings.append)
        log.load(world.log.checkpoint)  # so that nothing is scanned
        assert log.read(seq, total)[0].base <= seq < log.read(seq, total)[0].end
    assert not world.warnings


def test_a_missing_file_costs_its_messages_only() -> None:
    world = World(300)
    world.append(*[2] * 12)
    lost = world.log.log_files[1]
    world.files.remove(lost.path)
    expected = [number for number in range(24) if not lost.base <= number < lost.end]
    assert world.numbers() == expected
    assert "No such file" in world.warnings[0]
    world.warnings.clear()
    world.open()
    for _ in range(3):
        assert world.numbers() == expected
    (warning,) = world.warnings
    assert f"messages {lost.base} to {lost.end - 1} are missing" in warning


def test_a_missing_first_or_only_file_is_said_once() -> None:
    world = World(300)
    world.append(*[2] * 12)
    first = world.log.log_files[0]
    world.files.remove(first.path)
    world.open()
    for _ in range(3):
        assert world.numbers() == list(range(first.end, 24))
    (warning,) = world.warnings
    assert f"messages 0 to {first.end - 1} are missing" in warning
    checkpoint = world.log.checkpoint
    for path in [path for path in world.files.entries if path.endswith(".log")]:
        world.files.remove(path)
    log = Log(world.files, "data/t.log", 300, world.warnings.append)
    log.load(checkpoint)
    world.warnings.clear()
    for seq in range(24):
        assert log.read(seq, seq + 1) == []
    (warning,) = world.warnings
    assert "messages 0 to 23 are missing" in warning


def test_a_missing_last_file_is_said_at_the_start() -> None:
    world = World(300)
    world.append(*[2] * 12)
    checkpoint = world.log.checkpoint
    lost = world.log.log_files[-1]
    for file in reversed(world.log.log_files):
        world.files.remove(file.path)
        log = Log(world.files, "data/t.log", 300, world.warnings.append)
        log.load(checkpoint)
        assert log.end == 24
        assert f"the file of messages {lost.base} to 23 is missing" in world.warnings[-1]
        world.log = log
        assert world.numbers() == list(range(file.base))


def test_a_last_file_that_has_become_shorter_is_said_at_the_start() -> None:
    world = World(10_000)
    world.append(3, 3)
    size = len(world.only_file())
    world.append(3)
    checkpoint = world.log.checkpoint
    missing = len(world.only_file()) - size
    del world.only_file()[size:]
    log = Log(world.files, "data/t.log", 10_000, world.warnings.append)
    log.load(checkpoint)
    assert log.end == 9
    assert f"{missing} bytes are missing at its end" in world.warnings[0]
    world.log = log
    assert world.numbers() == list(range(6))
    assert "messages 6 to 8 are missing" in world.warnings[1]


def test_a_failed_append_leaves_nothing_behind() -> None:
    world = World(10_000)
    world.append(3)
    before = bytes(world.only_file())
    world.files.fail_from = 0
    segments = [world.segment(2)]
    with pytest.raises(OSError, match="No space left"):
        world.log.append(segments)
    world.files.heal()
    assert bytes(world.only_file()) == before
    world.append(2)
    assert world.numbers() == list(range(5))


def test_what_cannot_be_cut_off_is_superseded_by_the_next_file() -> None:
    for seed in range(20):
        world = World(10_000)
        world.files.random.seed(seed)
        world.append(3)
        world.files.fail_from = world.files.calls
        world.files.truncate_fails = True
        lost = world.segment(1)
        ghost = world.segment(1)
        ghost.base += 1
        with pytest.raises(OSError, match="No space left"):
            world.log.append([lost, ghost])
        world.files.heal()
        world.append(4)
        assert len(world.log.log_files) == 2
        for _ in range(2):
            assert world.numbers() == list(range(7))
            for first in (0, 3):
                frames = [frame for segment in world.log.read(first, 7) for frame in parse([segment.frames])]
                assert {frame.timestamp for frame in frames[3 - first :]} <= {world.now}
            world.open()


def test_probe_tells_whether_writing_works_and_leaves_nothing() -> None:
    world = World()
    world.append(1)
    before = bytes(world.only_file())
    world.files.fail_from = 0
    with pytest.raises(OSError, match="No space left") as caught:
        world.log.probe()
    assert caught.value.errno == errno.ENOSPC
    world.files.heal()
    world.log.probe()
    assert bytes(world.only_file()) == before
    assert world.numbers() == [0]


def test_only_needed_files_are_kept() -> None:
    world = World(300)
    world.append(*[2] * 12)
    files = list(world.log.log_files)
    assert len(files) > 4
    world.log.drop_files([(files[1].base, files[1].base + 1), (files[3].end - 1, files[3].end)], keep_last=True)
    assert world.log.log_files == [files[1], files[3], files[-1]]
    world.log.drop_files([], keep_last=False)
    assert not [path for path in world.files.entries if path.endswith(".log")]
    world.append(1)
    assert world.numbers(24) == [24]


def test_truncate_takes_messages_back() -> None:
    for seq in range(13):
        world = World(300)
        world.append(*[1] * 12)
        world.log.truncate(seq)
        assert world.numbers() == list(range(seq))
        world.append(2)
        world.open()
        assert world.numbers() == list(range(seq + 2))


def test_ids_go_on_after_a_restart() -> None:
    world = World(300)
    world.append(*[2] * 5)
    last = int(parse([world.log.read(9, 10)[-1].frames])[-1].message_id, 16)
    world.open()
    assert world.log.last_id == last
    assert int(b"%b%03x" % IdGenerator(7, last).take(1, START), 16) == last + 1


def test_a_reader_that_stopped_at_the_end_of_a_file_goes_on_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """It remembers where, and that was the last file then."""
    monkeypatch.setattr(log_module, "CHUNK_MIN", 100)
    world = World(400)
    world.append(8)
    (first,) = world.log.log_files
    assert first.size > 100
    assert world.numbers() == list(range(8))
    while len(world.log.log_files) == 1:
        world.append(4)
        if len(world.log.log_files) == 1:
            assert world.numbers() == list(range(world.log.end))
    assert world.log.read(first.end, first.end + 1)
    assert world.numbers(first.end) == list(range(first.end, world.log.end))
    assert world.warnings == []
