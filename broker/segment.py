"""A segment: frames ready to send, in one buffer, with consecutive ids; and the record that holds it in a log file.

    frame   size(4) type(4)=2 | timestamp(8) attempts(2) id(16) | body
    record  magic(4) crc32(4) length(4) count(2) flags(2) seq(8) due(8) | frames

The frames in a record are exactly what goes to a consumer at the first delivery: reading back is slicing. Large MPUBs
of one size are packed from the start, in the log as in memory: what the frames say besides is made for who reads them.

    packed  the first message's frame without its body, then each message as in the MPUB: size(4) body
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from pyspark_nsq.broker.arena import Arena
from pyspark_nsq.broker.checksum import crc32
from pyspark_nsq.broker.message_id import HEX3, HEX3_INDEX, ID_BYTES, PREFIX_BYTES, id_number
from pyspark_nsq.proto.uniform import SIZE_FIELD_SIZE, UniformBodies

FRAME_OVERHEAD: Final = 34  # a frame's bytes besides the body
ATTEMPTS_AT: Final = 16  # offsets within a frame
TIMESTAMP_AT: Final = 8
ID_AT: Final = 18
BODY_AT: Final = 34
MAX_ATTEMPTS: Final = 65535

SEGMENT_MESSAGES_MAX: Final = 4096  # one tick of ids
SEGMENT_BYTES_MAX: Final = 256 * 1024
"""Where a large batch is cut (a single message may be larger): what one in-flight message can hold in memory."""
OPEN_MESSAGES_MAX: Final = 512
OPEN_BYTES_MAX: Final = 128 * 1024
"""Small publishes are gathered in one segment up to here, as long as nobody has read it."""

SMALL_RECORD_BYTES: Final = 16 * 1024
"""Smaller records are gathered also when they are read back; a larger one is a segment of its own, here and there."""

PACKED_FRAME_BYTES_MAX: Final = 1024
"""Of larger frames the head is too small a part to be worth the work."""

RECORD_MAGIC: Final = b"\xa7NSQ"
RECORD_HEADER: Final = struct.Struct(">4sIIHHQQ")
RECORD_HEADER_SIZE: Final = RECORD_HEADER.size
FLAG_UNIFORM: Final = 1  # all frames have one size
FLAG_PACKED: Final = 2
_CHECKED: Final = struct.Struct(">IHHQQ")

_FRAME_HEAD: Final = struct.Struct(">IIqH")
_HEAD_TAIL: Final = struct.Struct(">IqH")
_SIZE: Final = struct.Struct(">I")
_FRAME_TYPE_MESSAGE: Final = 2
_SIZES_KEPT: Final = 8192

Buffer = bytes | memoryview


class Packed(NamedTuple):
    """Frames of one size without what can be computed: see `packing`."""

    head: bytes  # of the first frame
    timestamps: bytes  # of each, as in the frame; b"": all have the first's
    bodies: Buffer  # each behind `lead` bytes that do not count
    lead: int


class _SizePrefixes(dict[int, bytes]):
    """body length -> the frame's size field; keeps the small ones."""

    def __missing__(self, body_length: int) -> bytes:
        prefix = _SIZE.pack(body_length + FRAME_OVERHEAD - 4)
        if body_length <= _SIZES_KEPT:
            self[body_length] = prefix
        return prefix


_size_prefixes: Final = _SizePrefixes()


def build_frames(bodies: list[bytes], lengths: list[int], prefix: bytes, first: int, now: int) -> tuple[bytes, int]:
    """The frames of new messages (attempts = 1) with the ids prefix + first, first + 1, ...; and the size of each, 0
    where they differ."""
    count, length = len(bodies), lengths[0]
    if count == 1 or lengths.count(length) == count:
        head = _FRAME_HEAD.pack(length + FRAME_OVERHEAD - 4, _FRAME_TYPE_MESSAGE, now, 1) + prefix
        if count == 1:
            return b"".join((head, HEX3[first], bodies[0])), length + FRAME_OVERHEAD
        pieces = [head] * (3 * count)
        pieces[1::3] = HEX3[first : first + count]
        pieces[2::3] = bodies
        return b"".join(pieces), length + FRAME_OVERHEAD
    pieces = [_HEAD_TAIL.pack(_FRAME_TYPE_MESSAGE, now, 1) + prefix] * (4 * count)
    pieces[0::4] = map(_size_prefixes.__getitem__, lengths)
    pieces[2::4] = HEX3[first : first + count]
    pieces[3::4] = bodies
    return b"".join(pieces), 0


def build_frame(timestamp: int, attempts: int, message_id: bytes, body: bytes) -> bytes:
    """One frame of a message that comes from elsewhere."""
    size = len(body) + FRAME_OVERHEAD - 4
    return _FRAME_HEAD.pack(size, _FRAME_TYPE_MESSAGE, timestamp, attempts) + message_id + body


class Segment:
    """Messages `base` .. `end - 1` of a topic (its own count, not ids) with consecutive ids in one tick."""

    __slots__ = (
        "_frames",
        "_offsets",
        "_packed",
        "_parts",
        "_shadow",
        "base",
        "content_size",
        "count",
        "due",
        "first",
        "frame_size",
        "is_large",
        "key",
        "nbytes",
        "packable",
        "prefix",
        "readers",
        "sealed",
        "timestamp",
    )

    def __init__(
        self,
        base: int,
        count: int,
        frames: bytes,
        frame_size: int,
        due: int = 0,
        facts: tuple[bytes, int, int] | None = None,
        packed: Packed | None = None,
    ) -> None:
        """`facts` are prefix, first and timestamp where they are known; the first frame says them as well.

        What is packed comes without frames.
        """
        self.base = base
        self.count = count
        self.due = due  # not to be delivered before; 0: at once
        self.frame_size = frame_size  # of every frame; 0: they differ
        self.nbytes = len(frames)  # of all frames
        self.content_size = self.nbytes  # of its record, while it is new
        self.readers = 0  # channels whose cursor has not passed it
        self.sealed = due > 0  # nothing may be added, since somebody has read it or it is of a kind of its own
        self._frames: bytes | None = frames
        self._parts: list[bytes] | None = None
        self._packed = packed
        if packed is not None:
            self.nbytes = count * frame_size
            self.content_size = FRAME_OVERHEAD + len(packed.bodies)
            self.sealed = True
            self._frames = None
            frames = packed.head
        self.is_large = self.content_size >= SMALL_RECORD_BYTES
        if self.is_large:
            self.sealed = True
        self._offsets: list[int] | None = None
        self._shadow: Segment | None = None
        self.packable = facts is not None  # all messages are new: what frames say besides the bodies is known
        if facts is not None:
            self.prefix, self.first, self.timestamp = facts
            self.key = self.prefix
            return
        self.timestamp = int.from_bytes(frames[TIMESTAMP_AT:ATTEMPTS_AT], "big")  # of all messages; 0: they differ
        message_id = frames[ID_AT : ID_AT + ID_BYTES]
        self.prefix = message_id[:PREFIX_BYTES]
        first = HEX3_INDEX.get(message_id[PREFIX_BYTES:], -1)
        # Messages of other origin may have any 16 bytes as id: such a segment holds one and is found by all of them.
        self.key = self.prefix if first >= 0 else message_id
        self.first = max(first, 0)
        if first < 0:
            self.sealed = True

    @property
    def end(self) -> int:
        return self.base + self.count

    @property
    def frames(self) -> bytes:
        """All frames; gathers the parts, or unpacks."""
        frames = self._frames
        if frames is None:
            if self._parts is not None:
                frames = b"".join(self._parts)
                self._parts = None
            else:
                assert self._packed is not None
                from pyspark_nsq.broker.packing import unpack

                frames = unpack(self._packed, self.count, self.first)
                self._packed = None
            self._frames = frames
        return frames

    def record(self, salt: int) -> list[Buffer]:
        """As it goes to the log, while it is new.

        The salt differs from file to file and is no client's to know: no message body can pass for a record.
        """
        packed = self._packed
        if packed is None:
            checked = _CHECKED.pack(
                self.content_size, self.count, FLAG_UNIFORM if self.frame_size else 0, self.base, self.due
            )
            content: Buffer = self.frames
        else:
            checked = _CHECKED.pack(self.content_size, self.count, FLAG_PACKED, self.base, self.due) + packed.head
            content = packed.bodies
        return [b"".join((RECORD_MAGIC, _SIZE.pack(crc32(content, crc32(checked, salt))), checked)), content]

    def pack(self, arena: Arena | None = None) -> None:
        """Keep it as small as it can be at little cost: nobody is about to read it, and nothing is added any more."""
        self.sealed = True
        if self.packable and self._packed is None and 0 < self.frame_size <= PACKED_FRAME_BYTES_MAX:
            from pyspark_nsq.broker.packing import pack

            self._packed = pack(self.frames, self.count, one_timestamp=self.timestamp > 0)
            self._frames = None
        if arena is not None and self._packed is not None:
            self._packed = self._packed._replace(bodies=arena.keep(self._packed.bodies))

    def absorb(self, other: Segment) -> bool:
        """Take in the messages that follow directly, if this keeps a segment's promises and nobody reads it yet."""
        count, nbytes = self.count, self.nbytes + other.nbytes
        if (
            self.sealed
            or other.sealed
            or count + other.count > OPEN_MESSAGES_MAX
            or nbytes > OPEN_BYTES_MAX
            or self.prefix != other.prefix
            or self.first + count != other.first
            or self.base + count != other.base
            or self.readers != other.readers
            or self.packable != other.packable
        ):
            return False
        if self._parts is None:
            assert self._frames is not None
            self._parts = [self._frames]
            self._frames = None
        self._parts.append(other._frames or other.frames)
        self.count = count + other.count
        self.nbytes = nbytes
        if self.frame_size != other.frame_size:
            self.frame_size = 0
        if self.timestamp != other.timestamp:
            self.timestamp = 0
        self._offsets = None
        return True

    def extend(self, parts: list[memoryview], count: int) -> None:
        """Take in frames that follow directly (see `gather`)."""
        frames = b"".join([self.frames, *parts])
        if self.frame_size * (self.count + count) != len(frames) or any(len(part) != self.frame_size for part in parts):
            self.frame_size = 0
        self.count += count
        self._frames = frames
        self.nbytes = len(frames)
        self.timestamp = 0
        self.packable = False
        self._offsets = None

    def in_flight(self, nbytes: int, in_log: bool) -> Segment:
        """What is kept of messages of so many bytes until they are answered: itself, or, where that is more than twice
        as much and they can be read from the log again, a shadow without frames."""
        if not in_log or 2 * nbytes >= self.nbytes or self.nbytes <= SMALL_RECORD_BYTES:
            return self
        if self._shadow is None:
            self._shadow = Segment(self.base, self.count, b"", 0, 0, (self.prefix, self.first, self.timestamp))
            self._shadow.key = self.key
        return self._shadow

    def offset(self, index: int) -> int:
        """Where frame `index` begins (`index` == count: where the last ends)."""
        if self.frame_size:
            return index * self.frame_size
        if index == self.count:
            return self.nbytes
        if self._offsets is None:
            self._offsets = frame_offsets(self.frames)
        return self._offsets[index]

    def slice(self, index: int, count: int) -> Buffer:
        """The frames of messages index .. index + count - 1, not copied."""
        frames = self.frames
        if count == self.count:
            return frames
        return memoryview(frames)[self.offset(index) : self.offset(index + count)]

    def fitting(self, index: int, count: int, max_bytes: int) -> int:
        """How many of the `count` messages from index fit into max_bytes."""
        if self.frame_size:
            return max(0, min(count, max_bytes // self.frame_size))
        limit = self.offset(index) + max_bytes
        while count and self.offset(index + count) > limit:
            count = count // 2 if self.offset(index + count // 2) > limit else count - 1
        return count

    def redelivery(self, index: int, count: int, extra: int) -> bytes:
        """A copy of frames with `extra` added to their attempts (which end at 65535)."""
        buffer = bytearray(self.slice(index, count))
        position = 0
        while position < len(buffer):
            at = position + ATTEMPTS_AT
            attempts = min(int.from_bytes(buffer[at : at + 2], "big") + extra, MAX_ATTEMPTS)
            buffer[at : at + 2] = attempts.to_bytes(2, "big")
            position += 4 + int.from_bytes(buffer[position : position + 4], "big")
        return bytes(buffer)

    def timestamps(self, index: int, count: int) -> list[int]:
        """The publish times of messages index .. index + count - 1."""
        if self.timestamp:
            return [self.timestamp] * count
        frames = self.frames
        starts = (self.offset(at) + TIMESTAMP_AT for at in range(index, index + count))
        return [int.from_bytes(frames[at : at + 8], "big") for at in starts]

    def ids(self, index: int, count: int) -> bytes:
        """Of these messages in order, one after the other."""
        if len(self.key) == ID_BYTES:
            return self.key
        start = self.first + index
        return self.prefix + self.prefix.join(HEX3[start : start + count])

    def index_of(self, last3: bytes) -> int:
        """The index of the id with the segment's prefix and these last characters; may be out of range."""
        return HEX3_INDEX.get(last3, -1) - self.first


def frame_offsets(frames: bytes) -> list[int]:
    """Where each frame begins."""
    offsets = []
    unpack = _SIZE.unpack_from
    position, end = 0, len(frames)
    while position < end:
        offsets.append(position)
        position += 4 + unpack(frames, position)[0]
    return offsets


def new_segment(
    bodies: list[bytes], lengths: list[int], base: int, prefix: bytes, first: int, now: int, due: int
) -> Segment:
    """A segment of new messages."""
    frames, frame_size = build_frames(bodies, lengths, prefix, first, now)
    return Segment(base, len(bodies), frames, frame_size, due, (prefix, first, now))


def uniform_segment(bodies: UniformBodies, base: int, prefix: bytes, first: int, now: int, due: int) -> Segment:
    """The same of bodies that stay together."""
    frame_size = bodies.stride - SIZE_FIELD_SIZE + FRAME_OVERHEAD
    head = _FRAME_HEAD.pack(frame_size - 4, _FRAME_TYPE_MESSAGE, now, 1) + prefix + HEX3[first]
    packed = Packed(head, b"", bodies.messages, SIZE_FIELD_SIZE)
    return Segment(base, bodies.count, b"", frame_size, due, (prefix, first, now), packed)


class Record(NamedTuple):
    """A record as it stands in a buffer."""

    start: int
    length: int  # of its content
    messages: int
    flags: int
    seq: int
    due: int
    crc: int

    @property
    def whole(self) -> int:
        """Its length with the header."""
        return RECORD_HEADER_SIZE + self.length

    def intact(self, data: bytes, salt: int) -> bool:
        """Does all of it match its checksum?"""
        return crc32(memoryview(data)[self.start + 8 : self.start + self.whole], salt) == self.crc

    def segment(self, data: bytes) -> Segment:
        """Its content."""
        start, stop = self.start + RECORD_HEADER_SIZE, self.start + self.whole
        if not self.flags & FLAG_PACKED:
            size = self.length // self.messages if self.flags & FLAG_UNIFORM else 0
            return Segment(self.seq, self.messages, data[start:stop], size, self.due)
        body_start = start + FRAME_OVERHEAD
        packed = Packed(data[start:body_start], b"", data[body_start:stop], SIZE_FIELD_SIZE)
        size = (stop - body_start) // self.messages - SIZE_FIELD_SIZE + FRAME_OVERHEAD
        return Segment(self.seq, self.messages, b"", size, self.due, packed=packed)

    def last_id(self, data: bytes) -> int:
        """The id of its last message, as a number."""
        start = self.start + RECORD_HEADER_SIZE
        if self.flags & FLAG_PACKED:
            return id_number(data[start + ID_AT : start + BODY_AT]) + self.messages - 1
        at = start + frame_offsets(data[start : self.start + self.whole])[-1] + ID_AT
        return id_number(data[at : at + ID_BYTES])


def record_at(data: bytes, start: int) -> Record | None:
    """The record whose header is at `start`; None when that is no header. Not checked: see `Record.intact`."""
    magic, crc, length, count, flags, seq, due = RECORD_HEADER.unpack_from(data, start)
    if magic != RECORD_MAGIC or not count or not _is_possible(length, count, flags):
        return None
    return Record(start, length, count, flags, seq, due, crc)


def _is_possible(length: int, count: int, flags: int) -> bool:
    """Whether so much can be the content of so many messages."""
    if flags != FLAG_PACKED:
        return flags <= FLAG_UNIFORM and length >= count * FRAME_OVERHEAD
    return length > FRAME_OVERHEAD + count * SIZE_FIELD_SIZE and not (length - FRAME_OVERHEAD) % count


def gather(data: bytes, start: int, salt: int, last: Segment, limit: int) -> tuple[list[memoryview], int, int]:
    """The frames of the intact records from `start` on that could be part of `last`, as long as it stays small; how
    many messages they are, and where the next record begins. Records of message `limit` and later do not count.

    Messages published one by one make one record each. This is the loop that reads them.
    """
    view = memoryview(data)
    parts: list[memoryview] = []
    unpack = RECORD_HEADER.unpack_from
    count, expected, prefix = 0, last.first + last.count, last.prefix
    room = OPEN_BYTES_MAX - last.nbytes
    end = len(data) - RECORD_HEADER_SIZE
    while start <= end:
        magic, crc, length, messages, flags, seq, due = unpack(data, start)
        body = start + RECORD_HEADER_SIZE
        stop = body + length
        id_at = body + ID_AT
        if (
            magic != RECORD_MAGIC
            or flags > FLAG_UNIFORM
            or due
            or seq != last.end + count
            or seq >= limit
            or length > room
            or data[id_at : id_at + PREFIX_BYTES] != prefix
            or HEX3_INDEX.get(data[id_at + PREFIX_BYTES : id_at + ID_BYTES]) != expected + count
            or crc32(view[start + 8 : stop], salt) != crc
            or count + messages > OPEN_MESSAGES_MAX
        ):
            break
        parts.append(view[body:stop])
        count += messages
        room -= length
        start = stop
    return parts, count, start
