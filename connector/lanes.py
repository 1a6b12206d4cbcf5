"""A lane: messages in the order of their arrival, each with a position, kept until they are finished.

Positions make of a queue a log that can be read again, for as long as nsqd holds the messages in flight.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from pyspark_nsq.connector.connection import Connection, Source
from pyspark_nsq.proto.frames import MESSAGE_ID_SIZE

# What a chunk takes beside its messages, so that many small ones count for what they are.
_CHUNK_OVERHEAD_BYTES = 4096


class FinishedError(LookupError):
    """A range that has been finished, and dropped."""


class Chunk:
    """Messages that arrived together on one connection, without those that are finished already."""

    __slots__ = ("connection", "delivered_at", "first", "indexed", "messages", "rehomed", "size", "touch_at", "warned")

    def __init__(self, first: int, messages: pa.RecordBatch, connection: Connection, now: float) -> None:
        self.first = first
        self.messages = messages
        self.connection = connection
        # Positions that nsqd has delivered again, with the connection that now owns them; None for nobody.
        self.rehomed: dict[int, Connection | None] = {}
        self.size = messages.get_total_buffer_size() + _CHUNK_OVERHEAD_BYTES
        self.delivered_at = now
        self.touch_at = now + connection.msg_timeout_s / 2
        # Whether its ids are known to those who look for messages that come again.
        self.indexed = False
        self.warned = False

    @property
    def source(self) -> Source:
        return self.connection.source

    @property
    def end(self) -> int:
        return self.first + len(self.messages)

    def ids(self, first: int, end: int) -> memoryview:
        """The ids from one position to another, one after the other."""
        column = self.messages.column("id")
        start = (column.offset + first - self.first) * MESSAGE_ID_SIZE
        return memoryview(column.buffers()[1])[start : start + (end - first) * MESSAGE_ID_SIZE]

    def owned_ids(self, first: int, end: int) -> Iterator[tuple[Connection | None, bytes | memoryview]]:
        """The same ids by the connection that owns them; None where no open one does."""
        own = self.connection if self.connection.alive else None
        ids = self.ids(first, end)
        if not self.rehomed:
            yield own, ids
            return
        owners: dict[Connection | None, list[memoryview]] = {}
        for index in range(end - first):
            owner = self.rehomed.get(first + index, own)
            message_id = ids[index * MESSAGE_ID_SIZE : (index + 1) * MESSAGE_ID_SIZE]
            owners.setdefault(owner if owner and owner.alive else None, []).append(message_id)
        for owner, parts in owners.items():
            yield owner, b"".join(parts)

    def drop(self, count: int) -> None:
        """Forget the first messages."""
        for position in range(self.first, self.first + count):
            self.rehomed.pop(position, None)
        self.size = self.size * (len(self.messages) - count) // len(self.messages)
        self.messages = self.messages.slice(count)
        self.first += count


class Finished(NamedTuple):
    """A part of a chunk that leaves the lane."""

    chunk: Chunk
    first: int
    end: int


class Lane:
    def __init__(self, first_position: int) -> None:
        self.first_position = first_position
        # Everything before it is finished.
        self.finished = first_position
        self.end = first_position
        self.size = 0
        self.touch_due = math.inf
        self._chunks: list[Chunk] = []

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._chunks)

    @property
    def held(self) -> int:
        return self.end - self.finished

    def append(self, messages: pa.RecordBatch, connection: Connection, now: float) -> None:
        chunk = Chunk(self.end, messages, connection, now)
        self._chunks.append(chunk)
        self.end = chunk.end
        self.size += chunk.size
        self.touch_due = min(self.touch_due, chunk.touch_at)

    def read(self, first: int, end: int) -> list[tuple[Source, pa.RecordBatch]]:
        """The messages of a range, which must have been appended; ``FinishedError`` if some are gone."""
        if not self.first_position <= first <= end <= self.end:
            raise ValueError(f"positions {first} to {end} are not within {self.first_position} to {self.end}")
        if first < self.finished:
            raise FinishedError(f"the messages from position {first} on were finished up to {self.finished}")
        parts = []
        index = bisect_right(self._chunks, first, key=lambda chunk: chunk.end)
        while first < end:
            chunk = self._chunks[index]
            stop = min(end, chunk.end)
            parts.append((chunk.source, chunk.messages.slice(first - chunk.first, stop - first)))
            first = stop
            index += 1
        return parts

    def at(self, position: int) -> Chunk:
        """The chunk that holds a position."""
        return self._chunks[bisect_right(self._chunks, position, key=lambda chunk: chunk.end)]

    def finish(self, before: int) -> Iterator[Finished]:
        """Let go of every message before a position; what leaves is to be used before the next step."""
        before = min(before, self.end)
        whole = bisect_right(self._chunks, before, key=lambda chunk: chunk.end)
        for chunk in self._chunks[:whole]:
            yield Finished(chunk, chunk.first, chunk.end)
            self.size -= chunk.size
        del self._chunks[:whole]
        if self._chunks and self._chunks[0].first < before:
            chunk = self._chunks[0]
            yield Finished(chunk, chunk.first, before)
            self.size -= chunk.size
            chunk.drop(before - chunk.first)
            self.size += chunk.size
        self.finished = max(self.finished, before)
