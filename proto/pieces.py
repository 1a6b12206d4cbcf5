"""Bytes that come in pieces of any size, and are joined once when they are whole, or wait to be sent."""

from collections.abc import MutableSequence
from typing import Final, TypeVar

_Piece = TypeVar("_Piece", bytes, bytes | memoryview)

# Larger pieces are kept as they are: to copy them again would cost more than it saves.
_GATHERED_SIZE: Final = 16 * 1024


def append_piece(pieces: MutableSequence[_Piece], piece: _Piece) -> None:
    """Add a piece. Small ones are joined as they come, so that many of them do not cost an object each.

    A piece is only joined to one that is no larger, so each byte is copied a few times at most.
    """
    pieces.append(piece)
    while len(pieces) > 1 and len(pieces[-2]) <= len(pieces[-1]) < _GATHERED_SIZE:
        last = pieces.pop()
        pieces[-1] = b"".join((pieces[-1], last))
