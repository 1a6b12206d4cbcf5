import copy
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.memory_files import MemoryFiles

from pyspark_nsq.broker.journal import ChannelState, Journal, TopicState

seqs = st.integers(0, 20)
ranges = st.tuples(seqs, seqs).map(lambda pair: (min(pair), max(pair)))


@st.composite
def updates(draw: st.DrawFn) -> TopicState:
    channels = {
        name: ChannelState(
            [draw(ranges)],
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


@given(st.lists(updates(), max_size=6))
def test_updates_add_up(states: list[TopicState]) -> None:
    files = MemoryFiles()
    journal, _ = opened(files)
    deferred: dict[str, dict[int, list[int]]] = {}
    channels: dict[str, ChannelState] = {}
    for state in states:
        journal.append(copy.deepcopy(state))
        for name in state.gone:
            channels.pop(name, None)
            deferred.pop(name, None)
        for name, channel in state.channels.items():
            known = {} if channel.everything or name not in channels else deferred[name]
            known = {seq: entry for seq, entry in known.items() if seq not in channel.removed}
            deferred[name] = {**known, **{entry[0]: entry for entry in channel.deferred}}
            channels[name] = channel
    loaded = opened(files)[0].load()
    if not states:
        assert loaded is None
        return
    assert loaded is not None
    assert (loaded.checkpoint, loaded.held) == (states[-1].checkpoint, states[-1].held)
    assert loaded.channels.keys() == channels.keys()
    for name, channel in loaded.channels.items():
        assert (channel.backlog, channel.again) == (channels[name].backlog, channels[name].again)
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
    while not journal.bloated:
        assert len(files.entries["data/state"].data) < 1_000_000
        journal.append(state)
    journal.rewrite(state)
    assert not journal.bloated


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b"[]",
        b'{"log":[0,0,1],"held":[]}',
        b'{"log":[0,0,1,-1],"held":[]}',
        b'{"log":[0,0,1,0],"held":[[5,3]]}',
        b'{"log":[0,0,1,0],"held":[],"channels":{"c":[[],[[1,2]],[],[],true]}}',
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
    files.append_file("data/state", b"%08x %b\n" % (zlib.crc32(text), text))
    loaded = opened(files)
    assert loaded[0].load() == TopicState(checkpoint=(0, 0, 1, 0))
    assert "the state ends early" in loaded[1][0]
