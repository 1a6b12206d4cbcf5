"""What a disk cannot read of a file: when that is given up, and how the rest is read all the same."""

from __future__ import annotations

import errno
from typing import Final

from pyspark_nsq.broker.files import Files

BLOCK: Final = 4096
_PATIENCE_NS: Final = 60_000_000_000
# Once a part was given up it is the disk that is damaged, and not the way to it.
_PATIENCE_WITH_DAMAGED_NS: Final = 5_000_000_000


class UnreadableError(OSError):
    """The disk has failed to read a part of a file; perhaps only now."""

    def __init__(self, path: str, offset: int, length: int, patience_ns: int) -> None:
        super().__init__(errno.EIO, f"the disk cannot read bytes {offset} to {offset + length - 1}", path)
        self.path = path
        self.offset = offset
        self.length = length
        self.patience_ns = patience_ns  # how long it is to be tried


class Holes:
    """The parts of one file that were given up. They are read as zeros, which are no record."""

    __slots__ = ("_holes", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._holes: list[tuple[int, int]] = []  # ascending

    def __bool__(self) -> bool:
        return bool(self._holes)

    def read(self, files: Files, handle: int, offset: int, length: int) -> bytes:
        """As `Files.read`. UnreadableError where the disk fails at something that was not given up."""
        if not self._holes:
            return self._read(files, handle, offset, length)
        pieces = []
        stop = offset + length
        for first, end in self._holes:
            if offset < end and first < stop:
                if offset < first:
                    pieces.append(self._read(files, handle, offset, first - offset))
                pieces.append(bytes(min(end, stop) - max(first, offset)))
                offset = min(end, stop)
        if offset < stop:
            pieces.append(self._read(files, handle, offset, stop - offset))
        return b"".join(pieces)

    def _read(self, files: Files, handle: int, offset: int, length: int) -> bytes:
        try:
            return files.read(handle, offset, length)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            patience_ns = _PATIENCE_WITH_DAMAGED_NS if self._holes else _PATIENCE_NS
            raise UnreadableError(self._path, offset, length, patience_ns) from error

    def give_up(self, files: Files, handle: int, error: UnreadableError) -> tuple[int, int] | None:
        """What cannot be read at the place of the error, which is a hole from now on.

        None, and nothing is given up, where it can be read now, or where nothing else of the file can: then it is not
        the place, but the disk or the way to it.
        """
        start, stop = error.offset - error.offset % BLOCK, error.offset + error.length
        bad = next((at for at in range(start, stop, BLOCK) if not _is_readable(files, handle, at)), None)
        if bad is None:
            return None
        size = files.size(handle)
        first, good, step = bad, bad + BLOCK, BLOCK
        while good < size and not _is_readable(files, handle, good):
            bad, step = good, 2 * step
            good += step
        if good >= size:
            good = size
            if not _is_readable(files, handle, 0):
                return None
        while (blocks := -(-(good - bad) // BLOCK)) > 1:
            middle = bad + blocks // 2 * BLOCK
            if _is_readable(files, handle, middle):
                good = middle
            else:
                bad = middle
        self._holes = sorted([*self._holes, (first, good)])
        return first, good


def _is_readable(files: Files, handle: int, offset: int) -> bool:
    try:
        files.read(handle, offset, BLOCK)
    except OSError:
        return False
    return True
