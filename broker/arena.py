"""Memory for what waits in a queue, taken from the system in large pieces and given back as soon as they are empty.

A backlog that grows takes new memory for every batch. Asking for all pages of a piece at once spares a fault for each.
Huge pages would be fewer still, and are not asked for: where a virtual machine gives free memory back to its host, as
many do, each of them has to be had from the host again, which costs more than all the rest of a publish.
"""

from __future__ import annotations

import mmap
from typing import Final

CHUNK_BYTES: Final = 2 * 1024 * 1024
_FLAGS: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
KEPT_BYTES_MIN: Final = 16 * 1024
"""Of less many small parts would hold on to a chunk."""


class Arena:
    """Lays pieces down one after the other. A chunk is given back with the last piece in it that somebody knows: meant
    for what is forgotten in the order in which it came, as a topic's segments are."""

    __slots__ = ("_chunk", "_used")

    def __init__(self) -> None:
        self._chunk = memoryview(b"")
        self._used = 0

    def keep(self, piece: bytes | memoryview) -> bytes | memoryview:
        """The same bytes, laid down; or the piece itself where that is not worth it or no memory is to be had."""
        size = len(piece)
        if not KEPT_BYTES_MIN <= size <= CHUNK_BYTES:
            return piece
        if self._used + size > len(self._chunk) and not self._begin_chunk():
            return piece
        place = self._chunk[self._used : self._used + size]
        place[:] = piece
        self._used += size
        return place.toreadonly()

    def _begin_chunk(self) -> bool:
        try:
            chunk = mmap.mmap(-1, CHUNK_BYTES, flags=_FLAGS)
        except OSError:
            return False
        self._chunk = memoryview(chunk)
        self._used = 0
        return True
