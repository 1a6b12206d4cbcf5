"""What is known of a topic's channels besides the messages: one text file of JSON lines beside the log.

Each line is a checksum and the state of what has changed; reading them in order gives the whole. A line that was not
written whole ends the reading. The file is rewritten once it has grown far beyond what a full state takes.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_nsq.broker.files import Files
from pyspark_nsq.broker.log import Checkpoint

FILE_NAME: Final = "state"
_REWRITE_BYTES_MIN: Final = 256 * 1024
_REWRITE_GROWTH: Final = 8
_NUMBER_MAX: Final = 2**64 - 1

Range = tuple[int, int]


@dataclass(slots=True)
class ChannelState:
    """Of one channel. All else below the log's end is finished."""

    backlog: list[Range] = field(default_factory=list)  # not delivered
    again: list[list[int]] = field(default_factory=list)  # [seq, count, extra attempts]: in flight or requeued
    deferred: list[list[int]] = field(default_factory=list)  # [seq, count, extra attempts, due]: to add
    removed: list[int] = field(default_factory=list)  # seqs of deferred ones that were written before and have gone
    everything: bool = True  # `deferred` is all of them


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


class Journal:
    """The file."""

    def __init__(self, files: Files, directory: str, warn: Callable[[str], None]) -> None:
        self.path = os.path.join(directory, FILE_NAME)
        self._files = files
        self._warn = warn
        self._size = 0
        self._full_size = 0  # after the last rewrite

    def load(self) -> TopicState | None:
        """The whole state; None when there is none."""
        data = self._files.read_file(self.path)
        if data is None:
            return None
        state = TopicState()
        for line in data.split(b"\n")[:-1]:
            update = _decode(line)
            if update is None:
                self._warn(f"{self.path}: the state ends early, at byte {self._size}")
                break
            _merge(state, update)
            self._size += len(line) + 1
        if self._size < len(data):  # nothing may follow a line that is cut off
            self._cut()
        return state

    def _cut(self) -> None:
        """In place: a full disk has no room for a copy."""
        handle = self._files.open(self.path, create=True)
        try:
            self._files.truncate(handle, self._size)
        finally:
            self._files.close(handle)

    @property
    def bloated(self) -> bool:
        """Is it time to `rewrite`?"""
        return self._size > max(_REWRITE_BYTES_MIN, _REWRITE_GROWTH * self._full_size)

    def append(self, update: TopicState) -> None:
        """Add what has changed. Not synced: what a loss of power takes is redelivered."""
        line = _encode(update)
        self._files.append_file(self.path, line)
        self._size += len(line)

    def rewrite(self, state: TopicState) -> None:
        """Replace all by the whole state, synced."""
        line = _encode(state)
        self._files.replace_file(self.path, line)
        self._size = self._full_size = len(line)


def _encode(state: TopicState) -> bytes:
    value: dict[str, Any] = {"log": state.checkpoint, "held": state.held}
    if state.channels:
        value["channels"] = {
            name: [channel.backlog, channel.again, channel.deferred, channel.removed, channel.everything]
            for name, channel in state.channels.items()
        }
    if state.gone:
        value["gone"] = state.gone
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
    )


def _channel(backlog: Any, again: Any, deferred: Any, removed: Any, everything: Any) -> ChannelState:
    return ChannelState(
        _ranges(backlog), _entries(again, 3), _entries(deferred, 4), _numbers(removed), everything is True
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


def _merge(state: TopicState, update: TopicState) -> None:
    """Bring `state` up to date."""
    state.checkpoint = update.checkpoint
    state.held = update.held
    state.importing = update.importing
    state.imported = update.imported
    for name in update.gone:
        state.channels.pop(name, None)
    for name, channel in update.channels.items():
        before = state.channels.get(name)
        if before is not None and not channel.everything:
            deferred = {entry[0]: entry for entry in before.deferred}
            for seq in channel.removed:
                deferred.pop(seq, None)
            deferred.update((entry[0], entry) for entry in channel.deferred)
            channel.deferred = list(deferred.values())
        channel.removed = []
        channel.everything = True
        state.channels[name] = channel
