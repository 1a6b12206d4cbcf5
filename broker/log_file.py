"""One file of a log: its sparse index, and a scan over its records that steps over what is damaged."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from typing import Final

from pyspark_nsq.broker.files import Files
from pyspark_nsq.broker.segment import (
    RECORD_HEADER_SIZE,
    RECORD_MAGIC,
    SMALL_RECORD_BYTES,
    Record,
    Segment,
    gather,
    record_at,
)
from pyspark_nsq.broker.unreadable import Holes

INDEX_EVERY: Final = 1024 * 1024
"""Bytes between two entries of the index: 100 entries for a file of 100 MB."""
_SCAN_CHUNK: Final = 1024 * 1024


class LogFile:
    """One file of the log."""

    __slots__ = ("_offsets", "_seqs", "base", "end", "holes", "next_note", "path", "salt", "size")

    def __init__(self, path: str, base: int, salt: int, size: int) -> None:
        self.path = path
        self.base = base  # the sequence number of its first message
        self.end = base  # the one after its last
        self.salt = salt
        self.size = size
        self.holes = Holes(path)
        self._seqs = [base]  # the record at _offsets[i] begins with message _seqs[i]
        self._offsets = [0]
        self.next_note = INDEX_EVERY  # the offset from which on `note` does something

    def note(self, seq: int, offset: int) -> None:
        """Extend the index, if far enough from its last entry."""
        if offset >= self.next_note and seq > self._seqs[-1]:
            self._seqs.append(seq)
            self._offsets.append(offset)
            self.next_note = offset + INDEX_EVERY

    def nearest(self, seq: int) -> tuple[int, int]:
        """Offsets between which the record of message `seq` begins; the first is a record's."""
        position = bisect.bisect_right(self._seqs, seq)
        return self._offsets[position - 1], self._offsets[position] if position < len(self._offsets) else self.size


class Scan:
    """Iterates (record, the buffer it is in, its offset in the file) over the intact records from `offset` on.

    Damaged bytes are stepped over and, with `warn`, reported. Those that reach the end of the file may be a write that
    did not come to its end: `damaged_tail` says from where on.
    """

    def __init__(
        self,
        files: Files,
        handle: int,
        file: LogFile,
        offset: int,
        warn: Callable[[str], None] | None,
        chunk: int = _SCAN_CHUNK,
    ) -> None:
        self._files = files
        self._handle = handle
        self._file = file
        self._offset = offset
        self._warn = warn
        self._chunk = chunk
        self._data = b""
        self._start = offset  # of _data in the file
        self.following = offset  # of the record after the one just given
        self.damaged_tail: int | None = None

    def __iter__(self) -> Iterator[tuple[Record, bytes, int]]:
        file, salt = self._file, self._file.salt
        damaged_from = -1
        while self._offset + RECORD_HEADER_SIZE <= file.size:
            record = self._record()
            if record is None or not record.intact(self._data, salt):
                if damaged_from < 0:
                    damaged_from = self._offset
                self._resync()
                continue
            if damaged_from >= 0:
                if self._warn:
                    self._warn(f"{file.path}: skipped {self._offset - damaged_from} damaged bytes at {damaged_from}")
                damaged_from = -1
            self.following = self._offset + record.whole
            yield record, self._data, self._offset
            self._offset = self.following
        if damaged_from >= 0:
            self.damaged_tail = damaged_from

    def segment(self, record: Record, limit: int) -> Segment:
        """The content of the record just given, joined with the small ones behind it that go on with its ids and are
        not of message `limit` or later."""
        segment = record.segment(self._data)
        if record.length < SMALL_RECORD_BYTES and not record.due:
            salt = self._file.salt
            parts, count, end = gather(self._data, record.start + record.whole, salt, segment, limit)
            if parts:
                segment.extend(parts, count)
                self.following = self._start + end
        return segment

    def _record(self) -> Record | None:
        """What stands at the offset, wholly within the buffer."""
        start = self._offset - self._start
        if start + RECORD_HEADER_SIZE > len(self._data):
            self._fill(self._chunk)
            start = 0
            if len(self._data) < RECORD_HEADER_SIZE:
                return None
        record = record_at(self._data, start)
        if record is None or self._offset + record.whole > self._file.size:
            return None
        if start + record.whole > len(self._data):
            self._fill(max(self._chunk, record.whole))
            record = record_at(self._data, 0) if len(self._data) >= record.whole else None
        return record

    def _fill(self, length: int) -> None:
        self._data = self._file.holes.read(self._files, self._handle, self._offset, length)
        self._start = self._offset

    def _resync(self) -> None:
        """Go to the next place that may be a record."""
        start = self._offset - self._start
        found = self._data.find(RECORD_MAGIC, start + 1)
        if found >= 0:
            self._offset = self._start + found
        else:  # the magic may straddle two chunks; a buffer that is empty ends the scan
            self._offset = self._start + max(len(self._data) - 3, start + 1) if self._data else self._file.size
