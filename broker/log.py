"""The append-only log of one topic: files of records, read back by message sequence number.

A file is named by the sequence number of its first message and a random salt for its checksums. Nothing is ever changed
in it; what failed half-way is cut off again, or, where even that fails, superseded: the next file's name says where
the previous one ends.
"""

from __future__ import annotations

import bisect
import os
import re
import secrets
from collections.abc import Callable
from operator import attrgetter
from typing import Final

from pyspark_nsq.broker.files import Files
from pyspark_nsq.broker.log_file import INDEX_EVERY, LogFile, Scan
from pyspark_nsq.broker.open_logs import OpenLogs
from pyspark_nsq.broker.segment import RECORD_HEADER_SIZE, Buffer, Segment
from pyspark_nsq.broker.unreadable import UnreadableError

CHUNK_MIN: Final = 64 * 1024
CHUNK_MAX: Final = 1024 * 1024
"""Reading ahead starts small (there may be thousands of channels) and doubles while a reader goes on."""
_HINTS_MAX: Final = 64
_NAME: Final = re.compile(r"(\d{20})-([0-9a-f]{8})\.log")

Checkpoint = tuple[int, int, int, int]
"""(base of the last file, its size, the next sequence number, the last id): a state the log is known to have had."""


def is_log_directory(files: Files, path: str) -> bool:
    """Does it hold a topic's log, or the state that is kept with it?"""
    return any(name == "state" or _NAME.fullmatch(name) for name in files.list_directory(path))


_base: Final = attrgetter("base")


class Log:
    """Appends segments, reads them back, deletes files nobody needs."""

    def __init__(
        self,
        files: Files,
        directory: str,
        max_bytes: int,
        warn: Callable[[str], None],
        open_logs: OpenLogs | None = None,
    ) -> None:
        self._open_logs = open_logs or OpenLogs(1)
        self._files = files
        self._directory = directory
        self._max_bytes = max_bytes
        self._warn = warn
        self._handle: int | None = None  # of the last file, for writing
        self._reader: tuple[LogFile, int] | None = None
        self._spoilt = False  # the last file has rubbish behind `size` that could not be cut off
        self._hints: dict[int, tuple[LogFile, int, int]] = {}  # where reading goes on: seq -> file, offset, chunk
        self._missing_before: set[int] = set()  # has been said
        self.log_files: list[LogFile] = []
        self.end = 0  # the next message's sequence number
        self.last_id = 0
        self.unsynced: set[str] = set()  # paths written to since they were last handed to an fsync

    # --- start -------------------------------------------------------------------------------------------------

    def load(self, checkpoint: Checkpoint) -> None:
        """Find the files, and the end of the last by scanning it from the checkpoint on."""
        for name in self._files.list_directory(self._directory):
            if match := _NAME.fullmatch(name):
                path = os.path.join(self._directory, name)
                stamp = self._files.stamp(path)
                base = int(match[1])
                self.log_files.append(LogFile(path, base, int(match[2], 16), stamp[0] if stamp else 0))
        self.log_files.sort(key=lambda file: file.base)
        for file, following in zip(self.log_files, self.log_files[1:], strict=False):
            file.end = following.base
        base, size, self.end, self.last_id = checkpoint
        if size and (not self.log_files or self.log_files[-1].base < base):
            self._warn(f"{self._directory}: the file of messages {base} to {self.end - 1} is missing")
        if self.log_files:
            file = self.log_files[-1]
            if file.base == base and size > file.size:
                self._warn(f"{file.path}: {size - file.size} bytes are missing at its end")
            known = size if file.base == base and size <= file.size else 0
            file.end = self.end if known else file.base
            self._recover_end(file, known)
            self.end = max(self.end, file.end)
            file.end = self.end

    def _recover_end(self, file: LogFile, offset: int) -> None:
        """Find the last file's end, and cut off a record that was not written whole."""
        handle = self._files.open(file.path, create=True)
        try:
            intact_size = offset
            for record, data, at in Scan(self._files, handle, file, offset, self._warn):
                file.end = record.seq + record.messages
                file.note(record.seq, at)
                intact_size = at + record.whole
                self.last_id = max(self.last_id, record.last_id(data))
            if intact_size < file.size:
                self._warn(f"{file.path}: cut off {file.size - intact_size} bytes of an unfinished write at its end")
                file.size = intact_size
                self._cut(file, handle)
        finally:
            self._files.close(handle)

    def truncate(self, seq: int) -> None:
        """Forget every message from `seq` on."""
        self._close_writer()
        while self.log_files and self.log_files[-1].base >= seq:
            self._remove(self.log_files.pop())
        if self.log_files and self.log_files[-1].end > seq:
            file = self.log_files[-1]
            handle = self._files.open(file.path, create=True)
            try:
                for record, _data, offset in Scan(self._files, handle, file, file.nearest(seq)[0], self._warn):
                    if record.seq >= seq:
                        file.size = offset
                        break
                self._cut(file, handle)
            finally:
                self._files.close(handle)
            file.end = seq
        self.end = seq
        self._hints.clear()

    @property
    def begin(self) -> int:
        """The sequence number of the first message that may be left."""
        return self.log_files[0].base if self.log_files else self.end

    @property
    def checkpoint(self) -> Checkpoint:
        """For `load` after a restart."""
        if not self.log_files:
            return 0, 0, self.end, self.last_id
        return self.log_files[-1].base, self.log_files[-1].size, self.end, self.last_id

    # --- writing -----------------------------------------------------------------------------------------------

    def append(self, segments: list[Segment]) -> None:
        """All of them with one write, or (OSError) none."""
        total = RECORD_HEADER_SIZE * len(segments)
        for segment in segments:
            total += segment.content_size
        file, handle = self._writable(total)
        salt = file.salt
        buffers: list[Buffer] = []
        for segment in segments:
            buffers += segment.record(salt)
        try:
            self._files.write(handle, file.size, buffers, total)
        except OSError:
            self._cut(file, handle)
            raise
        offset = file.size
        if offset + total >= file.next_note:
            for segment in segments:
                file.note(segment.base, offset)
                offset += RECORD_HEADER_SIZE + segment.content_size
        file.size += total
        last = segments[-1]
        file.end = self.end = last.base + last.count
        self.unsynced.add(file.path)

    def probe(self) -> None:
        """Try whether writing works again (OSError when not), leaving nothing behind."""
        file, handle = self._writable(0)
        try:
            self._files.write(handle, file.size, [bytes(4096)], 4096)
        finally:
            self._cut(file, handle)

    def spoil(self) -> None:
        """Nothing more is to be written to the last file."""
        self._close_writer()
        self._spoilt = bool(self.log_files)

    def _writable(self, nbytes: int) -> tuple[LogFile, int]:
        """The last file, or a new one where this would grow beyond the limit, and its handle."""
        file = self.log_files[-1] if self.log_files else None
        if file is None or self._spoilt or (file.size and file.size + nbytes > self._max_bytes):
            self._close_writer()
            salt = secrets.randbits(32)
            path = os.path.join(self._directory, f"{self.end:020d}-{salt:08x}.log")
            self._open_writer(path)
            if file is not None and file.base == self.end:
                self._remove(self.log_files.pop())
            file = LogFile(path, self.end, salt, 0)
            self.log_files.append(file)
            self.unsynced.add(self._directory)
            self._spoilt = False
        return file, self._handle if self._handle is not None else self._open_writer(file.path)

    def _open_writer(self, path: str) -> int:
        handle = self._handle = self._files.open(path, create=True)
        self._open_logs.opened(self)
        return handle

    def _cut(self, file: LogFile, handle: int) -> None:
        """Remove what a failed write left behind."""
        try:
            self._files.truncate(handle, file.size)
        except OSError as error:
            self._warn(f"{file.path}: {error}; writing goes on in a new file")
            self._spoilt = True

    # --- reading -----------------------------------------------------------------------------------------------

    def read(self, seq: int, stop: int, limit: int | None = None) -> list[Segment]:
        """Segments from the one that holds message `seq` on, about a chunk of them, none of message `limit` or later.
        Where data is damaged or gone the first begins later; [] when nothing before `stop` is left. OSError when it may
        work another time; for how long that is hoped of an UnreadableError it says itself (see `step_over`)."""
        wanted = seq
        limit = self.end if limit is None else limit
        stop = min(stop, limit)
        segments: list[Segment] = []
        while seq < stop and not segments:
            place = self._hints.pop(seq, None)
            # Where reading stopped at the end of the last file, another one may have been begun since.
            if place is None or place[0].end <= seq:
                place = self._locate(seq)
            if place is None:
                seq = limit
                break
            file, offset, chunk = place
            end = min(file.end, limit)
            try:
                segments = self._read_chunk(file, seq, end, offset, chunk)
            except FileNotFoundError as error:
                self._warn(f"{file.path}: {error}")
            except OSError:
                self._close_reader()  # somebody may take the file away
                raise
            seq = segments[0].base if segments else end
        if seq > wanted:
            self._say_missing(wanted, seq)
        return segments

    def step_over(self, error: UnreadableError) -> None:
        """Give up the messages in what the disk cannot read, if it reads something else of the file. That is kept, also
        when nobody needs the rest of it any more: with other means more may be read."""
        file = next((file for file in self.log_files if file.path == error.path), None)
        if file is None:
            return
        known = bool(file.holes)
        try:
            hole = file.holes.give_up(self._files, self._open_reader(file), error)
        except OSError:  # that is all right while it does not last either
            return
        finally:
            self._close_reader()
        if hole is not None:
            self._warn(f"{file.path}: stepped over bytes {hole[0]} to {hole[1] - 1}, which the disk cannot read")
            if not known:
                self._keep(file)

    def _keep(self, file: LogFile) -> None:
        kept = f"{file.path}.bad"
        try:
            self._files.link(file.path, kept)
        except OSError as error:
            self._warn(f"{file.path} cannot be kept as {kept}: {error}")
        else:
            self._warn(f"{file.path} is kept as {kept}")
            self.unsynced.add(self._directory)

    def _say_missing(self, first: int, stop: int) -> None:
        """Once for what is missing before message `stop`, however many ask for a part of it."""
        if stop not in self._missing_before:
            self._missing_before.add(stop)
            self._warn(f"{self._directory}: messages {first} to {stop - 1} are missing")

    def places(self, first: int, stop: int) -> list[tuple[LogFile, int]]:
        """The files of messages first .. stop - 1, each with how many of them it holds."""
        begin = bisect.bisect_right(self.log_files, first, key=_base) - 1
        end = bisect.bisect_left(self.log_files, stop, key=_base)
        files = self.log_files[max(begin, 0) : end]
        return [(file, min(file.end, stop) - max(file.base, first)) for file in files]

    def _locate(self, seq: int) -> tuple[LogFile, int, int] | None:
        """Where to begin reading for message `seq`, or the next that is there."""
        position = max(bisect.bisect_right(self.log_files, seq, key=_base) - 1, 0)
        for file in self.log_files[position : position + 2]:
            if seq < file.end:
                return file, self._nearest(file, seq), CHUNK_MIN
        return None

    def _nearest(self, file: LogFile, seq: int) -> int:
        """The offset of a record not far before message `seq`; bisects where the file has no index yet."""
        low, high = file.nearest(seq)
        while high - low > 2 * INDEX_EVERY:
            middle = (low + high) // 2
            try:
                scan = Scan(self._files, self._open_reader(file), file, middle, None, CHUNK_MIN)
                record, _data, offset = next(iter(scan), (None, b"", 0))
            except OSError:
                break  # `_read_chunk` meets and reports it
            if record is None or offset >= high or record.seq > seq:
                high = middle
            else:
                low = offset
        return low

    def _read_chunk(self, file: LogFile, seq: int, end: int, offset: int, chunk: int) -> list[Segment]:
        segments: list[Segment] = []
        scan = Scan(self._files, self._open_reader(file), file, offset, self._warn, chunk)
        for record, _data, at in scan:
            if record.seq >= end:  # in memory, or superseded by the next file
                break
            file.note(record.seq, at)
            if record.seq + record.messages <= seq:
                continue
            segment = scan.segment(record, end)
            if not segments:
                offset = at
            if not segments or not segments[-1].absorb(segment):
                segments.append(segment)
            if scan.following >= offset + chunk:
                if len(self._hints) >= _HINTS_MAX:
                    self._hints.pop(next(iter(self._hints)))
                self._hints[segment.end] = (file, scan.following, min(chunk * 2, CHUNK_MAX))
                break
        if scan.damaged_tail is not None:
            self._warn(f"{file.path}: skipped the damaged bytes from {scan.damaged_tail} to its end")
        return segments

    def _open_reader(self, file: LogFile) -> int:
        """A handle for reading; the last one is kept."""
        if self._reader is None or self._reader[0] is not file:
            self._close_reader()
            self._reader = (file, self._files.open(file.path))
            self._open_logs.opened(self)
        return self._reader[1]

    # --- the end of files --------------------------------------------------------------------------------------

    def drop_files(self, needed: list[tuple[int, int]], *, keep_last: bool) -> None:
        """Delete the files that hold none of the messages in `needed` (ranges), the last only if it is not kept."""
        stops: list[int] = []  # ascending: up to each range, the farthest end of all before it
        needed = sorted(needed)
        for _first, stop in needed:
            stops.append(max(stop, stops[-1]) if stops else stop)
        for file in self.log_files[:-1] if keep_last else self.log_files[:]:
            before = bisect.bisect_left(needed, (file.end, 0))  # ranges that begin before the file ends
            if before and stops[before - 1] > file.base:
                continue
            if file is self.log_files[-1]:
                self._close_writer()
            self.log_files.remove(file)
            self._remove(file)

    def _remove(self, file: LogFile) -> None:
        self._hints = {seq: hint for seq, hint in self._hints.items() if hint[0] is not file}
        if self._reader is not None and self._reader[0] is file:
            self._close_reader()
        self.unsynced.discard(file.path)
        try:
            self._files.remove(file.path)
        except OSError as error:
            self._warn(f"{file.path}: {error}")

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.log_files)

    def rest(self) -> None:
        """Close handles; they are opened again when needed."""
        self._close_writer()
        self._close_reader()

    def _close_writer(self) -> None:
        if self._handle is not None:
            self._files.close(self._handle)
            self._handle = None

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._files.close(self._reader[1])
            self._reader = None
