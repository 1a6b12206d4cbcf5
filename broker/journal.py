"""What is known of a topic's channels besides the messages: one text file of JSON lines beside the log.

Each line is a checksum and the state of what has changed; reading them in order gives the whole. A line that was not
written whole ends the reading. Once the file has grown far beyond what a full state takes, another one that begins with
one takes its place: it is written, synced elsewhere, and every line meanwhile goes to both.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark_nsq.broker.files import Files
from pyspark_nsq.broker.log import Checkpoint

FILE_NAME: Final = "state"
_NEXT_SUFFIX: Final = ".next"
_REWRITE_BYTES_MIN: Final = 256 * 1024
_REWRITE_GROWTH: Final = 8
_NUMBER_MAX: Final = 2**64 - 1

Range = tuple[int, int]
Entry = list[int]
"""The sequence number of the first message, how many they are, and what else is to be known of them."""


@dataclass(slots=True)
class ChannelState:
    """Of one channel, or what of it has changed. All else below the log's end is finished."""

    passed: int = 0  # messages that have left the front of the backlog
    backlog: list[Entry] = field(default_factory=list)  # that have joined it, not delivered: [seq, count]
    taken: int = 0  # messages that have left the front of those requeued
    requeued: list[Entry] = field(default_factory=list)  # that have joined them: [seq, count, extra attempts]
    in_flight: list[Entry] = field(default_factory=list)  # all: [seq, count, extra attempts]
    deferred: list[Entry] = field(default_factory=list)  # to add: [seq, count, extra attempts, due]
    removed: list[int] = field(default_factory=list)  # seqs of deferred ones that were written before and have gone
    everything: bool = True  # nothing of what was written before counts


@dataclass(slots=True)
class TopicState:
    """Of a topic, or what of it has changed."""

    checkpoint: Checkpoint = (0, 0, 0, 0)
    held: list[Range] = field(default_factory=list)  # messages that no channel has yet
    channels: dict[str, ChannelState] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)  # channels
    importing: int | None = None  # the log's end before messages from elsewhere were being appended
    # Files taken over: name -> [size, time of change, 1 where not all of it could be read]
    imported: dict[str, list[int]] = field(default_factory=dict)
    everything: bool = False  # no channel that was written before, and is not among these, counts


class Journal:
    """The file."""

    def __init__(self, files: Files, directory: str, warn: Callable[[str], None]) -> None:
        self.path = os.path.join(directory, FILE_NAME)
        self._files = files
        self._warn = warn
        self._size = 0
        self._torn = False  # something may stand behind that
        self._unwritten = b""  # lines that could not be written yet
        self._rewrite_from = _REWRITE_BYTES_MIN  # the size that is too large
        self._next_size = 0  # of the file that is to take the place of this one, if there is one
        self._next_is_being_synced = False

    def load(self) -> TopicState | None:
        """The whole state; None when there is none."""
        data = self._files.read_file(self.path)
        if data is None:
            return None
        lines = _TopicSum()
        for line in data.split(b"\n")[:-1]:
            update = _decode(line)
            if update is None:
                self._warn(f"{self.path}: the state ends early, at byte {self._size}")
                break
            lines.add(update)
            self._size += len(line) + 1
        self._torn = self._size < len(data)
        return lines.state()

    @property
    def bloated(self) -> bool:
        """Is it time to `begin_rewrite`?"""
        return not self._next_size and self._size + len(self._unwritten) > self._rewrite_from

    def append(self, update: TopicState) -> None:
        """Add what has changed; when that fails (OSError), the next call adds it too. Not synced: what a loss of power
        takes is redelivered."""
        self._unwritten += _encode(update)
        handle = self._files.open(self.path, create=True)
        try:
            if self._torn:  # nothing may follow a line that is cut off
                self._files.truncate(handle, self._size)
            self._torn = True
            self._files.write(handle, self._size, [self._unwritten], len(self._unwritten))
            self._torn = False
        finally:
            self._files.close(handle)
        self._size += len(self._unwritten)
        if self._next_size:
            try:
                self._write_next(self._unwritten)
            except OSError:  # this file has it
                self.abandon_rewrite()
        self._unwritten = b""

    def begin_rewrite(self, state: TopicState) -> None:
        """Write the whole state beside the file, to take its place when it was synced (see `take_unsynced`)."""
        line = _encode(replace(state, everything=True))
        self._rewrite_from = self._size + len(line) + max(_REWRITE_BYTES_MIN, _REWRITE_GROWTH * len(line))
        try:
            self._write_next(line)
        except OSError:
            self.abandon_rewrite()
            raise

    def _write_next(self, line: bytes) -> None:
        handle = self._files.open(self.path + _NEXT_SUFFIX, create=True)
        try:
            if not self._next_size:  # what a killed process has left
                self._files.truncate(handle, 0)
            self._files.write(handle, self._next_size, [line], len(line))
        finally:
            self._files.close(handle)
        self._next_size += len(line)

    def take_unsynced(self) -> list[str]:
        """Paths for an fsync. What it covers in this file it covers in the next one too: once that was synced they can
        be exchanged at any time."""
        self._next_is_being_synced = self._next_size > 0
        return [self.path, self.path + _NEXT_SUFFIX] if self._next_size else [self.path]

    def synced(self) -> bool:
        """The fsync has been done; whether the file is another one now. OSError, and it is not."""
        if not self._next_is_being_synced:
            return False
        self._next_is_being_synced = False
        self._files.rename(self.path + _NEXT_SUFFIX, self.path)
        self._rewrite_from -= self._size
        self._size, self._next_size = self._next_size, 0
        self._torn = False
        return True

    def abandon_rewrite(self) -> None:
        """This file goes on."""
        self._next_size = 0
        self._next_is_being_synced = False
        with contextlib.suppress(OSError):
            self._files.remove(self.path + _NEXT_SUFFIX)

    def rewrite(self, state: TopicState) -> None:
        """Replace all by the whole state, synced here and now. When that fails (OSError), the next `append` adds it."""
        self.abandon_rewrite()
        self._unwritten = line = _encode(replace(state, everything=True))
        self._rewrite_from = self._size + len(line) + max(_REWRITE_BYTES_MIN, _REWRITE_GROWTH * len(line))
        self._files.replace_file(self.path, line)
        self._rewrite_from -= self._size
        self._size = len(line)
        self._torn = False
        self._unwritten = b""


def _encode(state: TopicState) -> bytes:
    value: dict[str, Any] = {"log": state.checkpoint, "held": state.held}
    if state.channels:
        value["channels"] = {
            name: [
                channel.passed,
                channel.backlog,
                channel.taken,
                channel.requeued,
                channel.in_flight,
                channel.deferred,
                channel.removed,
                channel.everything,
            ]
            for name, channel in state.channels.items()
        }
    if state.gone:
        value["gone"] = state.gone
    if state.everything:
        value["everything"] = True
    if state.importing is not None:
        value["importing"] = state.importing
    if state.imported:
        value["imported"] = state.imported
    text = json.dumps(value, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _decode(line: bytes) -> TopicState | None:
    """None when the line is not as it was written."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        return _parse(json.loads(text))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None


def _parse(value: dict[str, Any]) -> TopicState:
    base, size, end, last_id = _numbers(value["log"])
    importing, imported = value.get("importing"), value.get("imported", {})
    return TopicState(
        (base, size, end, last_id),
        _ranges(value["held"]),
        {str(name): _channel(*parts) for name, parts in value.get("channels", {}).items()},
        list(map(str, value.get("gone", []))),
        None if importing is None else _numbers([importing])[0],
        dict(zip(map(str, imported), _entries(list(imported.values()), 3), strict=True)),
        value.get("everything") is True,
    )


def _channel(
    passed: Any, backlog: Any, taken: Any, requeued: Any, in_flight: Any, deferred: Any, removed: Any, everything: Any
) -> ChannelState:
    _numbers([passed, taken])
    return ChannelState(
        passed,
        _entries(backlog, 2),
        taken,
        _entries(requeued, 3),
        _entries(in_flight, 3),
        _entries(deferred, 4),
        _numbers(removed),
        everything is True,
    )


def _ranges(value: Any) -> list[Range]:
    ranges = [(first, stop) for first, stop in map(_numbers, value)]
    if any(first > stop for first, stop in ranges):
        raise ValueError("a range that ends before it begins")
    return ranges


def _entries(value: Any, size: int) -> list[list[int]]:
    entries = list(map(_numbers, value))
    if any(len(entry) != size for entry in entries):
        raise ValueError(f"an entry that has not {size} numbers")
    return entries


def _numbers(value: Any) -> list[int]:
    numbers: list[int] = value
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each <= _NUMBER_MAX for each in numbers):
        raise ValueError("no list of counts")
    return numbers


class _TopicSum:
    """What lines that were read in order come to."""

    def __init__(self) -> None:
        self._newest = TopicState()
        self._channels: dict[str, _ChannelSum] = {}

    def add(self, update: TopicState) -> None:
        self._newest = update
        if update.everything:
            self._channels.clear()
        for name in update.gone:
            self._channels.pop(name, None)
        for name, channel in update.channels.items():
            if channel.everything or name not in self._channels:
                self._channels[name] = _ChannelSum()
            self._channels[name].add(channel)

    def state(self) -> TopicState:
        channels = {name: channel.state() for name, channel in self._channels.items()}
        return replace(self._newest, channels=channels, gone=[], everything=False)


class _ChannelSum:
    """The same of one channel. There may be a million messages, and a line a second for each few of them."""

    def __init__(self) -> None:
        self._backlog: deque[Entry] = deque()
        self._requeued: deque[Entry] = deque()
        self._in_flight: list[Entry] = []
        self._deferred: dict[int, Entry] = {}

    def add(self, update: ChannelState) -> None:
        _drop(self._backlog, update.passed)
        self._backlog.extend(update.backlog)
        _drop(self._requeued, update.taken)
        self._requeued.extend(update.requeued)
        self._in_flight = update.in_flight
        for seq in update.removed:
            self._deferred.pop(seq, None)
        self._deferred.update((entry[0], entry) for entry in update.deferred)

    def state(self) -> ChannelState:
        return ChannelState(
            backlog=list(self._backlog),
            requeued=list(self._requeued),
            in_flight=self._in_flight,
            deferred=list(self._deferred.values()),
        )


def _drop(entries: deque[Entry], count: int) -> None:
    """The first `count` messages."""
    while count and entries:
        first = entries[0]
        dropped = min(count, first[1])
        first[0] += dropped
        first[1] -= dropped
        count -= dropped
        if not first[1]:
            entries.popleft()
