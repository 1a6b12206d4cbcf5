"""Hostile bytes: every reader of the wire ends in a result or in its documented error, within its memory.

Each target takes any bytes. Whatever else than ``WireError`` comes out of one is a bug, and so is more memory than
the bytes themselves and the declared limits account for.
"""

import functools
import itertools
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.proto import chains, columns, commands, mpub
from pyspark_nsq.proto.columns import decode_frames
from pyspark_nsq.proto.compression import (
    DeflateCompressor,
    DeflateDecompressor,
    SnappyCompressor,
    SnappyDecompressor,
)
from pyspark_nsq.proto.errors import WireError
from pyspark_nsq.proto.frames import ERROR, OK, RESPONSE, encode_frame, encode_message, split_frames
from pyspark_nsq.proto.mpub import decode_mpub
from pyspark_nsq.proto.names import decode_name, quote
from pyspark_nsq.proto.parser import CommandParser, Limits, Malformed
from pyspark_nsq.proto.runs import REQ, decode_run, encode_run

LIMITS = Limits(msg_size_max=64 * 1024, body_size_max=256 * 1024)
FRAME_SIZE_MAX = 64 * 1024
ID = b"0123456789abcdef"

# What one call may take for itself (list entries, Arrow's and numpy's small blocks), and for each byte that it got:
# the copy it works on, the copy it returns, borders and ids beside them.
FIXED_MEMORY = 512 * 1024
MEMORY_PER_BYTE = 16


def parse_commands(data: bytes) -> None:
    parser = CommandParser(LIMITS)
    completed = parser.feed(data)
    while completed and not isinstance(completed[-1], Malformed):
        completed = parser.feed(b"")
    parser.eof()


def parse_names(data: bytes) -> None:
    decode_name(data)
    quote(data[:100])


TARGETS: dict[str, Callable[[bytes], object]] = {
    "commands": parse_commands,
    "names": parse_names,
    "frames to columns": lambda data: decode_frames(data, FRAME_SIZE_MAX),
    "frames to objects": lambda data: split_frames(data, FRAME_SIZE_MAX),
    "mpub": lambda data: decode_mpub(data, LIMITS.msg_size_max),
    "run of FIN": lambda data: decode_run(data, 0, b"FIN ", b"\n"),
    "snappy": lambda data: sum(map(len, SnappyDecompressor().decompress(data))),
    "deflate": lambda data: sum(map(len, DeflateDecompressor().decompress(data))),
}

SEEDS = [
    commands.identify({"client_id": "a", "feature_negotiation": True}),
    commands.sub("t", "c") + commands.rdy(100) + commands.NOP + commands.CLS + commands.auth(b"secret"),
    commands.pub("t", b"body") * 5 + commands.dpub("t", 100, b"body"),
    commands.mpub("t", [b"a", b"bc", b"def"] * 9),
    commands.mpub("t", [b"a", b"bc", b"def"] * 9)[len("MPUB t\n") + 4 :],
    encode_run(b"FIN", ID * 50) + encode_run(REQ, ID * 50, 10),
    encode_frame(RESPONSE, OK) + encode_message(1, 1, ID, b"body") * 40 + encode_frame(ERROR, b"E_INVALID"),
    SnappyCompressor().compress(b"snappy " * 1000) + b"\xfe\x01\x00\x00.",
    DeflateCompressor(6).compress(b"deflate " * 1000),
]

any_bytes = st.binary(max_size=300)
big_and_small_numbers = st.sampled_from(
    [b"\0\0\0\0", b"\0\0\0\1", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff"]
)


@st.composite
def damaged_seeds(draw: st.DrawFn) -> bytes:
    """Well-formed bytes with a few pieces overwritten, cut out, or repeated."""
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        piece = draw(st.binary(max_size=8) | big_and_small_numbers)
        data[start : start + draw(st.sampled_from([0, len(piece), 40]))] = piece * draw(st.sampled_from([1, 1, 30]))
    return bytes(data)


def check_memory(work: Callable[[], object], size: int) -> None:
    """What the work keeps and needs is in proportion to the bytes it was given.

    Other threads of the process are counted too: only what comes again is the work's.
    """
    peaks = [peak_memory(work)]
    while peaks[-1] > FIXED_MEMORY + MEMORY_PER_BYTE * size:
        assert len(peaks) < 5, f"{peaks} bytes of memory for {size} bytes"
        peaks.append(peak_memory(work))


def peak_memory(work: Callable[[], object]) -> int:
    arrow_before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        kept = work()
        peak = tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - arrow_before
    finally:
        tracemalloc.stop()
    del kept
    return peak


@pytest.mark.parametrize("target", TARGETS)
@given(data=any_bytes | damaged_seeds() | damaged_seeds())
def test_any_bytes_end_in_a_result_or_the_documented_error(target: str, data: bytes) -> None:
    with suppress(WireError):
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(len(SEEDS)))
@pytest.mark.parametrize("lie", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\4\0\0"])
def test_a_lying_length_costs_no_memory(target: str, seed: int, lie: bytes) -> None:
    """Each position in turn claims that much is to come; the memory stays that of what did come."""
    data = SEEDS[seed]
    for start in range(min(len(data), 60)):
        lying = data[:start] + lie + data[start + 4 :]
        check_memory(functools.partial(result_or_none, target, lying), len(lying))


# Of such a size records are not gone through but searched for, block by block.
BODIES = [b"%d " % number * (number % 12 + 1) for number in range(3000)]
LARGE = {
    "frames to columns": b"".join(encode_message(number, 1, ID, body) for number, body in enumerate(BODIES)),
    "mpub": commands.mpub("t", BODIES)[len("MPUB t\n") + 4 :],
}


# What a size is overwritten with, a lie or one that takes in so many of the next records, which may be too many; and
# what comes to stand somewhere in a record.
lies = big_and_small_numbers | st.binary(min_size=4, max_size=4) | st.sampled_from([2, 3, 40, 1500])
noises = big_and_small_numbers | st.binary(min_size=1, max_size=8) | st.sampled_from([ID, b"\0\0\0\x1e\0\0\0\2"])
damages = st.lists(
    st.tuples(st.integers(0, len(BODIES) - 1), st.just(0), lies)
    | st.tuples(st.integers(0, len(BODIES) - 1), st.integers(0, 20), noises),
    min_size=1,
    max_size=4,
)


def damaged(target: str, damages: list[tuple[int, int, bytes | int]]) -> bytes:
    data = bytearray(LARGE[target])
    head, overhead = (4, 4) if target == "mpub" else (0, len(encode_message(1, 1, ID, b"")))
    starts = list(itertools.accumulate((overhead + len(body) for body in BODIES), initial=head))
    for record, offset, lie in damages:
        if isinstance(lie, int):
            end = starts[min(record + lie, len(BODIES))]
            lie = (end - starts[record] - 4).to_bytes(4, "big")
        start = starts[record] + offset
        data[start : start + len(lie)] = lie
    return bytes(data)


def searched(target: str, data: bytes) -> object:
    """What comes of it where its two halves are searched one after the other."""
    with mock.patch.object(chains, "_BLOCK_SIZE", len(LARGE[target]) // 2 + 1):
        return result_or_error(target, data)


def result_or_error(target: str, data: bytes) -> object:
    try:
        return TARGETS[target](data)
    except WireError as error:
        return str(error)


@pytest.mark.parametrize("target", LARGE)
def test_large_buffers_are_searched(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []

    def counting(*places: Any, **bounds: Any) -> Any:
        borders = chains.chain_borders(*places, **bounds)
        found.append(len(borders) - 1)
        return borders

    for module in (columns, mpub):
        monkeypatch.setattr(module, "chain_borders", counting)
    searched(target, LARGE[target])
    assert len(found) == 2
    assert sum(found) > 0.99 * len(BODIES)


@pytest.mark.parametrize("target", LARGE)
@given(damages=damages, cut=st.integers(0, 40))
def test_damage_in_what_is_searched_ends_as_it_does_one_by_one(
    target: str, damages: list[tuple[int, int, bytes | int]], cut: int
) -> None:
    data = damaged(target, damages)
    hostile = data[: len(data) - cut]
    found = searched(target, hostile)
    with mock.patch.object(chains, "_SEARCHED_SIZE_MIN", len(data) + 1):
        assert found == result_or_error(target, hostile)


@pytest.mark.parametrize("target", LARGE)
@pytest.mark.parametrize("lie", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\1"])
def test_a_lying_length_in_what_is_searched_costs_no_memory(target: str, lie: bytes) -> None:
    data = LARGE[target]
    for start in (0, 4, len(data) // 2, len(data) - 4):
        lying = data[:start] + lie + data[start + 4 :]
        check_memory(functools.partial(searched, target, lying), len(lying))


@pytest.mark.parametrize("piece", [b"\0\0\0\x1e\0\0\0\2", b"\0\0\1\1\1\1\1\0\0\0\2", b"\2"])
def test_what_looks_like_many_messages_costs_no_memory(piece: bytes) -> None:
    data = encode_message(1, 1, ID, b"body") + piece * (2**20 // len(piece))
    check_memory(functools.partial(result_or_none, "frames to columns", data), len(data))


def result_or_none(target: str, data: bytes) -> object:
    with suppress(WireError):
        return TARGETS[target](data)
    return None


def test_a_body_in_small_pieces_is_kept_once() -> None:
    """Pieces of a large body wait for the rest; they are neither joined nor searched again and again."""

    def all_but_the_last() -> CommandParser:
        parser = CommandParser(LIMITS)
        parser.feed(b"PUB t\n" + LIMITS.msg_size_max.to_bytes(4, "big"))
        for _ in range(LIMITS.msg_size_max // 64 - 1):
            assert parser.feed(bytes(64)) == []
        return parser

    check_memory(all_but_the_last, LIMITS.msg_size_max)
    assert len(all_but_the_last().feed(bytes(64))) == 1


def test_an_endless_line_is_not_kept() -> None:
    parser = CommandParser(LIMITS)
    sizes = []
    for _ in range(16):
        sizes += [len(command) for command in parser.feed(b"x" * 1023)]
    assert sizes == []
    (malformed,) = parser.feed(b"x" * 1023)
    assert isinstance(malformed, Malformed)
    assert parser.feed(b"") == []
