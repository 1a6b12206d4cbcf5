"""Compressed streams: what nsqd's look like, any pieces in, bounded pieces out."""

import tracemalloc
import zlib
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.proto.compression import (
    PIECE_SIZE_MAX,
    Compressor,
    Decompressor,
    DeflateCompressor,
    DeflateDecompressor,
    SnappyCompressor,
    SnappyDecompressor,
)
from pyspark_nsq.proto.errors import WireError
from pyspark_nsq.proto.frames import OK, RESPONSE, encode_frame

STREAM_ID = b"\xff\x06\x00\x00sNaPpY"

Pair = tuple[Callable[[], Compressor], Callable[[], Decompressor]]
CODECS: dict[str, Pair] = {
    "snappy": (SnappyCompressor, SnappyDecompressor),
    "deflate": (lambda: DeflateCompressor(6), DeflateDecompressor),
}
codecs = st.sampled_from(sorted(CODECS))
texts = st.binary(max_size=300) | st.binary(min_size=1, max_size=20).map(lambda text: text * 9000)


def feed(decompressor: Decompressor, data: bytes, size: int) -> bytes:
    pieces = [piece for i in range(0, len(data), size) for piece in decompressor.decompress(data[i : i + size])]
    assert all(0 < len(piece) <= PIECE_SIZE_MAX for piece in pieces)
    return b"".join(pieces)


@given(codecs, st.lists(texts, max_size=5), st.integers(1, 100_000))
def test_what_goes_in_comes_out_at_once(codec: str, parts: list[bytes], size: int) -> None:
    compressor, decompressor = CODECS[codec][0](), CODECS[codec][1]()
    for part in parts:
        assert feed(decompressor, compressor.compress(part), size) == part


@pytest.mark.parametrize("codec", CODECS)
def test_byte_by_byte(codec: str) -> None:
    compressor, decompressor = CODECS[codec][0](), CODECS[codec][1]()
    parts = [b"a", b"", b"snappy " * 50, bytes(range(256))]
    assert feed(decompressor, b"".join(map(compressor.compress, parts)), 1) == b"".join(parts)


def test_snappys_first_answer_is_nsqds_to_the_byte() -> None:
    frame = encode_frame(RESPONSE, OK)
    assert SnappyCompressor().compress(frame).hex() == "ff060000734e61507059010e000026982bcf00000006000000004f4b"


def test_deflate_is_raw_and_synchronised() -> None:
    compressed = DeflateCompressor(6).compress(b"body")
    assert compressed.endswith(b"\x00\x00\xff\xff")
    assert zlib.decompressobj(-zlib.MAX_WBITS).decompress(compressed) == b"body"


def test_deflate_from_others() -> None:
    """A full flush, a stored block, a finished stream: all that peers send."""
    peer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    stream = peer.compress(b"one") + peer.flush(zlib.Z_FULL_FLUSH) + b"\x00\x00\x00\xff\xff"
    stream += peer.compress(b"two") + peer.flush(zlib.Z_FINISH)
    decompressor = DeflateDecompressor()
    assert feed(decompressor, stream + b"behind the end", 3) == b"onetwo"
    assert decompressor.ended


def test_snappy_from_others() -> None:
    """A repeated identifier, padding and unknown skippable chunks, chunks in one piece and split."""
    chunk = bytes(cramjam.snappy.compress(b"data"))[len(STREAM_ID) :]
    padding = b"\xfe\x05\x00\x00.....\x80\x00\x00\x00" * 3000
    stream = STREAM_ID + padding + chunk + STREAM_ID + b"\x99\x03\x00\x00abc" + chunk
    for size in (1, 2, 7, 100_000):
        assert feed(SnappyDecompressor(), stream, size) == b"datadata"


CHUNK = bytes(cramjam.snappy.compress(b"data"))[len(STREAM_ID) :]


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (b"\x00\x00\x00\x00", "does not begin with the stream identifier"),
        (CHUNK, "does not begin with the stream identifier"),
        (b"\xff\x06\x00\x00sNaPpX", "a wrong stream identifier"),
        (b"\xff\x07\x00\x00", "a wrong stream identifier"),
        (STREAM_ID + b"\x02\x01\x00\x00", "chunk type 2 is reserved"),
        (STREAM_ID + b"\x7f\x01\x00\x00", "chunk type 127 is reserved"),
        (STREAM_ID + b"\x00\x03\x00\x00", r"chunk size 3 is not in 4\.\.76494"),
        (STREAM_ID + b"\x01\xff\xff\xff", r"chunk size 16777215 is not in 4\.\.76494"),
        (STREAM_ID + CHUNK[:4] + bytes(4) + CHUNK[8:], "corrupt snappy stream"),
    ],
)
def test_corrupt_snappy(stream: bytes, text: str) -> None:
    with pytest.raises(WireError, match=text):
        feed(SnappyDecompressor(), stream, 100)


def test_corrupt_deflate() -> None:
    with pytest.raises(WireError, match="corrupt deflate stream"):
        feed(DeflateDecompressor(), b"\xff\xff\xff\xff", 100)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_costs_one_piece_of_memory(codec: str) -> None:
    bomb = CODECS[codec][0]().compress(bytes(50_000_000))
    decompressor = CODECS[codec][1]()
    tracemalloc.start()
    try:
        size = sum(map(len, decompressor.decompress(bomb)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size == 50_000_000
    assert peak < 2 * len(bomb) + 8 * PIECE_SIZE_MAX


def test_a_large_skippable_chunk_is_not_kept() -> None:
    decompressor = SnappyDecompressor()
    tracemalloc.start()
    try:
        assert list(decompressor.decompress(STREAM_ID + b"\xfe\xff\xff\xff")) == []
        for _ in range(16):
            assert list(decompressor.decompress(bytes(2**20 - 1))) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * 2**20
    assert list(decompressor.decompress(bytes(15) + CHUNK)) == [b"data"]
