"""Snappy's framing format and raw deflate, as streams that grow by pieces in both directions.

``compress`` returns bytes that the peer can decompress at once, nothing is held back. ``decompress`` yields
pieces of bounded size, so that a few hostile bytes never become many in memory; end of its iteration means that
all input so far is used.
"""

import zlib
from collections.abc import Iterator
from typing import Final, Protocol

import cramjam

from pyspark_nsq.proto.errors import WireError

PIECE_SIZE_MAX: Final = 64 * 1024


class Compressor(Protocol):
    def compress(self, data: bytes) -> bytes: ...


class Decompressor(Protocol):
    def decompress(self, data: bytes) -> Iterator[bytes]: ...


class DeflateCompressor:
    """A raw deflate stream, synchronised at the end of every ``compress``."""

    def __init__(self, level: int) -> None:
        self._stream = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)

    def compress(self, data: bytes) -> bytes:
        return self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)


class DeflateDecompressor:
    def __init__(self) -> None:
        self._stream = zlib.decompressobj(-zlib.MAX_WBITS)

    def decompress(self, data: bytes) -> Iterator[bytes]:
        # The empty read at the end asks for output that zlib holds although its input is used up.
        while not self._stream.eof:
            try:
                piece = self._stream.decompress(data, PIECE_SIZE_MAX)
            except zlib.error as error:
                raise WireError(f"corrupt deflate stream: {error}") from error
            data = self._stream.unconsumed_tail
            if piece:
                yield piece
            elif not data:
                return

    @property
    def ended(self) -> bool:
        """Whether the peer has finished its stream: nothing can follow."""
        return self._stream.eof


_STREAM_ID: Final = b"\xff\x06\x00\x00sNaPpY"
_CHUNK_COMPRESSED: Final = 0x00
_CHUNK_STORED: Final = 0x01
_CHUNK_STREAM_ID: Final = 0xFF
_CHUNK_SKIPPABLE_MIN: Final = 0x80
_CHUNK_HEADER_SIZE: Final = 4
# 64 KiB of data grow to at most 76,490 bytes, and four more for the checksum.
_CHECKSUM_SIZE: Final = 4
_CHUNK_SIZE_MAX: Final = 76_490 + _CHECKSUM_SIZE


class SnappyCompressor:
    """Snappy's framing format: the stream's name once, then chunks of at most 64 KiB of data."""

    def __init__(self) -> None:
        self._stream = cramjam.snappy.Compressor()

    def compress(self, data: bytes) -> bytes:
        self._stream.compress(data)
        return bytes(self._stream.flush())


class SnappyDecompressor:
    def __init__(self) -> None:
        self._input = b""
        self._start = 0
        self._skip_size = 0
        self._named = False

    def decompress(self, data: bytes) -> Iterator[bytes]:
        self._input, self._start = self._input[self._start :] + data, 0
        while self._skipped() and (end := self._chunk_end()) is not None:
            chunk, self._start = self._input[self._start : end], end
            if chunk and chunk[0] != _CHUNK_STREAM_ID and (piece := _decompress_chunk(chunk)):
                yield piece
        self._input, self._start = self._input[self._start :], 0

    def _skipped(self) -> bool:
        """Drop what is left of a chunk that only has to be passed over; whether that is done."""
        dropped = min(self._skip_size, len(self._input) - self._start)
        self._start += dropped
        self._skip_size -= dropped
        return self._skip_size == 0

    def _chunk_end(self) -> int | None:
        """Where the chunk at the start ends, None while it is not whole; of one to be skipped no byte is left."""
        header = self._input[self._start : self._start + _CHUNK_HEADER_SIZE]
        if len(header) < _CHUNK_HEADER_SIZE:
            return None
        kind, size = header[0], int.from_bytes(header[1:], "little")
        end = self._start + _CHUNK_HEADER_SIZE + size
        if kind == _CHUNK_STREAM_ID:
            end = self._start + len(_STREAM_ID)
            if not _STREAM_ID.startswith(self._input[self._start : end]):
                raise WireError("corrupt snappy stream: a wrong stream identifier")
            self._named = self._named or end <= len(self._input)
        elif not self._named:
            raise WireError("corrupt snappy stream: it does not begin with the stream identifier")
        elif kind >= _CHUNK_SKIPPABLE_MIN:
            self._start += _CHUNK_HEADER_SIZE
            self._skip_size = size
            return self._start
        elif kind > _CHUNK_STORED:
            raise WireError(f"corrupt snappy stream: chunk type {kind} is reserved")
        elif not _CHECKSUM_SIZE <= size <= _CHUNK_SIZE_MAX:
            raise WireError(f"corrupt snappy stream: chunk size {size} is not in {_CHECKSUM_SIZE}..{_CHUNK_SIZE_MAX}")
        return end if end <= len(self._input) else None


def _decompress_chunk(chunk: bytes) -> bytes:
    try:
        return bytes(cramjam.snappy.decompress(_STREAM_ID + chunk))
    except (cramjam.DecompressionError, OSError) as error:
        raise WireError(f"corrupt snappy stream: {error}") from error
