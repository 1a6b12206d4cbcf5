import gc
import mmap
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.broker import arena as arena_module
from pyspark_nsq.broker.arena import CHUNK_BYTES, KEPT_BYTES_MIN, Arena


@given(st.lists(st.sampled_from([1, KEPT_BYTES_MIN - 1, KEPT_BYTES_MIN, 300_000, CHUNK_BYTES, CHUNK_BYTES + 1])))
def test_what_is_kept_stays_what_it_was(sizes: list[int]) -> None:
    arena = Arena()
    pieces = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    kept = [arena.keep(piece) for piece in pieces]
    assert [bytes(one) for one in kept] == pieces
    for piece, one in zip(pieces, kept, strict=True):
        assert isinstance(one, bytes) == (not KEPT_BYTES_MIN <= len(piece) <= CHUNK_BYTES)
        assert memoryview(one).readonly


def test_a_chunk_goes_with_its_last_piece() -> None:
    class Chunk(mmap.mmap):
        """One that can be watched."""

    chunks: list[weakref.ref[Chunk]] = []

    def begin(*arguments: int, **flags: int) -> Chunk:
        chunk = Chunk(*arguments, **flags)
        chunks.append(weakref.ref(chunk))
        return chunk

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena_module.mmap, "mmap", begin)
        arena = Arena()
        kept = [arena.keep(bytes(CHUNK_BYTES // 4)) for _ in range(9)]
    gc.collect()
    assert [chunk() is not None for chunk in chunks] == [True, True, True]
    del kept[:3]
    assert chunks[0]() is not None
    del kept[:1]
    assert [chunk() is not None for chunk in chunks] == [False, True, True]


def test_without_memory_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    piece = bytes(KEPT_BYTES_MIN)

    def refuse(*_: object, **__: object) -> mmap.mmap:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(arena_module.mmap, "mmap", refuse)
    assert Arena().keep(piece) is piece
