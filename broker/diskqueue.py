"""Taking over what Go's nsqd left in the data path: its disk queues, one for each topic and each channel.

    <topic>.diskqueue.meta.dat            "depth\\nreadFile,readPos\\nwriteFile,writePos\\n"
    <topic>:<channel>.diskqueue.000000.dat   records: length(4), timestamp(8) attempts(2) id(16) body

A queue's messages go to the end of our log; a channel's belong to that channel only. Nothing of Go's is deleted before
our copy is synced, and the names of what was copied are on record until it is deleted, so that no crash copies twice.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from typing import Final

from pyspark_nsq.broker.message_id import HEX3_INDEX, ID_BYTES, PREFIX_BYTES
from pyspark_nsq.broker.segment import (
    MAX_ATTEMPTS,
    SEGMENT_BYTES_MAX,
    SEGMENT_MESSAGES_MAX,
    Segment,
    build_frame,
)
from pyspark_nsq.broker.shared import Shared

_LENGTH: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">qH")
_HEAD_BYTES: Final = _HEAD.size + ID_BYTES
_POSITIONS: Final = re.compile(rb"\s*-?\d+\s*\n\s*(\d{1,20}),(\d{1,20})\s*\n\s*\d+,\d+")
_READ_BYTES: Final = 1024 * 1024
_FILE_NAME: Final = re.compile(r"(.+)\.diskqueue\.(meta|\d{6,})\.dat")


class GoQueues:
    """Go's disk queues in the data path, by TOPIC or TOPIC:CHANNEL: its entries are looked through once for all."""

    def __init__(self, shared: Shared, entries: list[str]) -> None:
        self._shared = shared
        self._file_names: dict[str, dict[str, str]] = {}  # queue -> "meta" or number -> file
        for entry in entries:
            if match := _FILE_NAME.fullmatch(entry):
                self._file_names.setdefault(match[1], {})[match[2]] = entry

    def find(self, name: str) -> GoQueue | None:
        """None when Go has left nothing of it."""
        file_names = self._file_names.get(name)
        return GoQueue(self._shared, file_names) if file_names else None


class GoQueue:
    """One of them."""

    def __init__(self, shared: Shared, file_names: dict[str, str]) -> None:
        self._files = shared.files
        self._data_path = shared.options.data_path
        self._record_max = shared.options.max_msg_size + _HEAD_BYTES
        self._warn = shared.warn
        self._file_names = file_names
        self.bad_names: set[str] = set()  # of files with records that could not be read

    def stamps(self) -> dict[str, tuple[int, int]]:
        """Its files, each with size and time of change."""
        stamps = {name: self._files.stamp(self._path(name)) for name in self._file_names.values()}
        return {name: stamp for name, stamp in stamps.items() if stamp is not None}

    def _path(self, name: str) -> str:
        return os.path.join(self._data_path, name)

    def messages(self) -> Iterator[tuple[int, int, bytes, bytes]]:
        """(timestamp, attempts, id, body) of all that was not consumed.

        Reads on where the positions on record end: they are up to two seconds old after a crash. Without positions
        (a crash before they were first written) everything is read.
        """
        data_names = self._file_names.copy()
        first_file, first_position = self._read_positions(data_names.pop("meta", None))
        for number in sorted(data_names, key=int):
            if int(number) >= first_file:
                yield from self._read_file(data_names[number], first_position if int(number) == first_file else 0)

    def _read_positions(self, name: str | None) -> tuple[int, int]:
        """(file, byte) where what was not consumed begins."""
        meta = self._files.read_file(self._path(name)) if name else None
        match = _POSITIONS.match(meta or b"")
        if meta and not match:
            self._warn(f"{name}: no positions in it; all of the queue is read")
        return (int(match[1]), int(match[2])) if match else (0, 0)

    def _read_file(self, name: str, position: int) -> Iterator[tuple[int, int, bytes, bytes]]:
        handle = self._files.open(self._path(name))
        try:
            size = self._files.size(handle)
            data, start = b"", position
            while position < size:
                at = position - start
                length = _LENGTH.unpack_from(data, at)[0] if at + 4 <= len(data) else 0
                if at + 4 + length > len(data) or not length:
                    data, start, at = self._files.read(handle, position, self._read_length(length)), position, 0
                    length = _LENGTH.unpack_from(data)[0] if len(data) >= 4 else 0
                if not _HEAD_BYTES <= length <= self._record_max or position + 4 + length > size:
                    self._warn(f"{name}: no message at byte {position}; {size - position} bytes are skipped")
                    self.bad_names.add(name)
                    return
                if at + 4 + length > len(data):
                    continue  # the length was just learned; read all of it
                timestamp, attempts = _HEAD.unpack_from(data, at + 4)
                body_at = at + 4 + _HEAD_BYTES
                yield timestamp, attempts, data[body_at - ID_BYTES : body_at], data[body_at : at + 4 + length]
                position += 4 + length
        finally:
            self._files.close(handle)

    def _read_length(self, record_length: int) -> int:
        """A length in the file may say anything."""
        return max(_READ_BYTES, 4 + min(record_length, self._record_max))

    def remove(self, bad_names: set[str]) -> None:
        """Delete its files; those with unreadable records stay, renamed as Go would."""
        for name in self.stamps():
            if name in bad_names:
                self._files.rename(self._path(name), self._path(name) + ".bad")
            else:
                self._files.remove(self._path(name))


def segments(messages: Iterator[tuple[int, int, bytes, bytes]], base: int) -> Iterator[Segment]:
    """The messages as segments from sequence number `base` on, joined where ids are consecutive.

    Attempts are stored as they were at the last delivery, frames say those of the next.
    """
    frames: list[bytes] = []
    nbytes = 0
    prefix, following = b"", -1
    for timestamp, attempts, message_id, body in messages:
        number = HEX3_INDEX.get(message_id[PREFIX_BYTES:], -1)
        joins = number >= 0 and number == following and message_id[:PREFIX_BYTES] == prefix
        if frames and (not joins or nbytes + len(body) > SEGMENT_BYTES_MAX or len(frames) == SEGMENT_MESSAGES_MAX):
            yield _segment(base, frames)
            base += len(frames)
            frames, nbytes = [], 0
        prefix, following = message_id[:PREFIX_BYTES], number + 1 if number >= 0 else -1
        frames.append(build_frame(timestamp, min(attempts + 1, MAX_ATTEMPTS), message_id, body))
        nbytes += len(frames[-1])
    if frames:
        yield _segment(base, frames)


def _segment(base: int, frames: list[bytes]) -> Segment:
    size = len(frames[0])
    uniform = all(len(frame) == size for frame in frames)
    segment = Segment(base, len(frames), b"".join(frames), size if uniform else 0)
    segment.timestamp = 0 if len(frames) > 1 else segment.timestamp
    return segment
