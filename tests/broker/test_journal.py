import copy
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.memory_files import MemoryFiles

from pyspark_nsq.broker.journal import ChannelState, Journal, TopicState

seqs = st.integers(0, 20)
counts = st.integers(1, 9)
ranges = st.tuples(seqs, seqs).map(lambda pair: (min(pair), max(pair)))


@st.composite
def updates(draw: st.DrawFn) -> TopicState:
    channels = {
        name: ChannelState(
            draw(seqs),
            draw(st.lists(st.tuples(seqs, counts).map(list), max_size=3)),
            draw(seqs),
            draw(st.lists(st.tuples(seqs, counts, seqs).map(list), max_size=3)),
            [[draw(seqs), 1, 2]],
            [[seq, 1, 0, draw(st.integers(1, 9))] for seq in draw(st.sets(seqs, max_size=4))],
            draw(st.lists(seqs, max_size=4)),
            draw(st.booleans()),
        )
        for name in draw(st.sets(st.sampled_from("abc")))
    }
    checkpoint = (draw(seqs), draw(seqs), draw(seqs), draw(seqs))
    gone = draw(st.lists(st.sampled_from("abc"), max_size=1))
    return TopicState(checkpoint, [draw(ranges)], channels, gone)


def opened(files: MemoryFiles) -> tuple[Journal, list[str]]:
    warnings: list[str] = []
    return Journal(files, "data", warnings.append), warnings


def one_by_one(entries: list[list[int]]) -> list[list[int]]:
    """The same messages, each with an entry of its own."""
    return [[seq + at, 1, *rest] for seq, count, *rest in entries for at in range(count)]


@given(st.lists(updates(), max_size=6))
def test_updates_add_up(states: list[TopicState]) -> None:
    files = MemoryFiles()
    journal, _ = opened(files)
    deferred: dict[str, dict[int, list[int]]] = {}
    queues: dict[str, tuple[list[list[int]], list[list[int]]]] = {}
    channels: dict[str, ChannelState] = {}
    for state in states:
        journal.append(copy.deepcopy(state))
        for name in state.gone:
            channels.pop(name, None)
        for name, channel in state.channels.items():
            if channel.everything or name not in channels:
                deferred[name], queues[name] = {}, ([], [])
            known = {seq: entry for seq, entry in deferred[name].items() if seq not in channel.removed}
            deferred[name] = {**known, **{entry[0]: entry for entry in channel.deferred}}
            backlog, requeued = queues[name]
            queues[name] = (
                one_by_one(backlog)[channel.passed :] + one_by_one(channel.backlog),
                one_by_one(requeued)[channel.taken :] + one_by_one(channel.requeued),
            )
            channels[name] = channel
    loaded = opened(files)[0].load()
    if not states:
        assert loaded is None
        return
    assert loaded is not None
    assert (loaded.checkpoint, loaded.held) == (states[-1].checkpoint, states[-1].held)
    assert loaded.channels.keys() == channels.keys()
    for name, channel in loaded.channels.items():
        assert (one_by_one(channel.backlog), one_by_one(channel.requeued)) == queues[name]
        assert channel.in_flight == channels[name].in_flight
        assert {entry[0]: entry for entry in channel.deferred} == deferred[name]
    journal.rewrite(loaded)
    assert opened(files)[0].load() == loaded


def test_a_torn_last_line_is_dropped_and_writing_goes_on() -> None:
    files = MemoryFiles()
    journal, _ = opened(files)
    journal.append(TopicState(checkpoint=(0, 0, 1, 0)))
    first = len(files.entries["data/state"].data)
    journal.append(TopicState(checkpoint=(0, 0, 2, 0)))
    whole = bytes(files.entries["data/state"].data)
    for size in range(first, len(whole)):
        files.entries["data/state"].data[:] = whole[:size]
        journal, _ = opened(files)
        loaded = journal.load()
        assert loaded is not None
        assert loaded.checkpoint[2] == 1
        journal.append(TopicState(checkpoint=(0, 0, 3, 0)))
        again = opened(files)[0].load()
        assert again is not None
        assert again.checkpoint[2] == 3


def test_a_changed_byte_ends_the_reading_with_a_warning() -> None:
    files = MemoryFiles()
    journal, _ = opened(files)
    for end in (1, 2, 3):
        journal.append(TopicState(checkpoint=(0, 0, end, 0)))
    data = files.entries["data/state"].data
    data[data.index(b"\n") + 20] ^= 1
    journal, warnings = opened(files)
    loaded = journal.load()
    assert loaded is not None
    assert loaded.checkpoint[2] == 1
    assert "the state ends early" in warnings[0]


def test_it_asks_to_be_rewritten_when_it_has_grown() -> None:
    files = MemoryFiles()
    journal, _ = opened(files)
    state = TopicState(held=[(number, number) for number in range(1000)])
    journal.rewrite(state)
    for _ in range(2):
        whole = len(files.entries["data/state"].data)
        while not journal.bloated:
            assert len(files.entries["data/state"].data) < 1_000_000
            journal.append(state)
        journal.begin_rewrite(state)
        assert not journal.bloated
        journal.append(state)
        assert journal.take_unsynced() == ["data/state", "data/state.next"]
        assert journal.synced()
        assert not journal.bloated
        assert len(files.entries["data/state"].data) < 2 * whole + 20


def test_what_a_killed_process_has_left_of_the_next_file_is_no_part_of_it() -> None:
    files = MemoryFiles()
    journal, _ = opened(files)
    journal.append(TopicState())
    journal.begin_rewrite(TopicState())
    for end in range(1, 4):
        journal.append(TopicState(checkpoint=(0, 0, end, 0)))
    journal, _ = opened(files)
    journal.load()
    state = TopicState(checkpoint=(0, 0, 3, 0))
    journal.begin_rewrite(state)
    journal.take_unsynced()
    assert journal.synced()
    assert opened(files)[0].load() == state
    assert files.entries["data/state"].data.count(b"\n") == 1


@settings(max_examples=300)
@given(st.lists(st.one_of(updates(), st.sampled_from(["begin", "exchange", "take", "fail", "restart"])), max_size=20))
def test_a_file_that_takes_the_others_place_has_all_of_it(steps: list[TopicState | str]) -> None:
    files, plain_files = MemoryFiles(), MemoryFiles()
    journal, _ = opened(files)
    plain, _ = opened(plain_files)
    for step in steps:
        if isinstance(step, TopicState):
            for each in (journal, plain):
                each.append(copy.deepcopy(step))
        elif step == "begin":
            if not journal.take_unsynced()[1:]:
                journal.begin_rewrite(opened(plain_files)[0].load() or TopicState())
        elif step == "exchange":
            journal.take_unsynced()
            journal.synced()
        elif step == "take":
            journal.take_unsynced()
        elif step == "restart":
            journal, _ = opened(files)
            journal.load()
        else:
            journal.abandon_rewrite()
            files.fail_from = files.calls
            with pytest.raises(OSError, match="No space left"):
                journal.begin_rewrite(TopicState())
            files.heal()
        loaded, expected = opened(files)[0].load() or TopicState(), opened(plain_files)[0].load() or TopicState()
        for channel in (*loaded.channels.values(), *expected.channels.values()):
            channel.backlog, channel.requeued = one_by_one(channel.backlog), one_by_one(channel.requeued)
            channel.deferred.sort()
        assert loaded == expected


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b"[]",
        b'{"log":[0,0,1],"held":[]}',
        b'{"log":[0,0,1,-1],"held":[]}',
        b'{"log":[0,0,1,0],"held":[[5,3]]}',
        b'{"log":[0,0,1,0],"held":[],"channels":{"c":[0,[],0,[[1,2]],[],[],[],true]}}',
        b'{"log":[0,0,1,0],"held":[],"channels":{"c":[0.5,[],0,[],[],[],[],true]}}',
        b'{"log":[0,0,1,0],"held":[],"channels":{"c":[0,[],[],[],true]}}',
        b'{"log":[0,0,1,0],"held":[],"channels":[]}',
        b'{"log":[0,0,1,0],"held":[],"imported":{"a":[1,2,true]}}',
        b"[" * 2000,
    ],
)
def test_a_line_of_another_shape_ends_the_reading(text: bytes) -> None:
    """The checksum is right: somebody else has written it."""
    files = MemoryFiles()
    journal, _ = opened(files)
    journal.append(TopicState(checkpoint=(0, 0, 1, 0)))
    files.entries["data/state"].data += b"%08x %b\n" % (zlib.crc32(text), text)
    loaded = opened(files)
    assert loaded[0].load() == TopicState(checkpoint=(0, 0, 1, 0))
    assert "the state ends early" in loaded[1][0]


def test_a_channel_that_has_gone_stays_gone_though_neither_that_nor_the_whole_could_be_written() -> None:
    files = MemoryFiles()
    journal, _ = opened(files)
    journal.append(TopicState(channels={"kept": ChannelState(), "gone": ChannelState()}))
    files.fail_from = files.calls
    with pytest.raises(OSError, match="No space left"):
        journal.append(TopicState(gone=["gone"]))
    with pytest.raises(OSError, match="No space left"):
        journal.rewrite(TopicState(channels={"kept": ChannelState()}))
    files.heal()
    journal.append(TopicState())
    loaded = opened(files)[0].load()
    assert loaded == TopicState(channels={"kept": ChannelState()})
