"""Pieces of any size come to the same whole, and many small ones to few objects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.proto.pieces import append_piece


@given(st.lists(st.binary(max_size=50)))
def test_together_they_are_what_came(parts: list[bytes]) -> None:
    pieces: list[bytes] = []
    for part in parts:
        append_piece(pieces, part)
    assert b"".join(pieces) == b"".join(parts)


@pytest.mark.parametrize("sizes", [[1] * 100_000, [2, 1] * 30_000, list(range(700, 0, -1)), [1, 20_000] * 100])
def test_many_small_pieces_are_few_objects(sizes: list[int]) -> None:
    pieces: list[bytes] = []
    for size in sizes:
        append_piece(pieces, bytes(size))
    assert len(pieces) <= 20 + sum(sizes) // 350


def test_large_pieces_are_not_copied() -> None:
    large = [bytes([number]) * 20_000 for number in range(3)]
    pieces: list[bytes] = []
    for piece in large:
        append_piece(pieces, piece)
    assert all(kept is piece for kept, piece in zip(pieces, large, strict=True))
