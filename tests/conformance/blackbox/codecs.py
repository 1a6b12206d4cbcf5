"""Snappy's framing format and raw deflate, written from their specifications."""

import struct
import zlib

STREAM_ID = b"\xff\x06\x00\x00sNaPpY"
COMPRESSED, STORED, PADDING = 0x00, 0x01, 0xFE


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    """CRC-32C as snappy's frames carry it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def chunk(kind: int, content: bytes) -> bytes:
    """One chunk of a snappy stream."""
    return bytes([kind]) + struct.pack("<I", len(content))[:3] + content


def stored_chunk(data: bytes) -> bytes:
    """Up to 64 KiB of plain data as they are."""
    return chunk(STORED, struct.pack("<I", masked_crc(data)) + data)


def run_chunk(byte: int, count: int) -> bytes:
    """`count` times the same byte, as a literal and copies of it."""
    data = bytes([byte]) * count
    block = _varint(count) + b"\x00" + data[:1]
    left = count - 1
    while left:
        length = min(left, 64)
        block += bytes([(length - 1) << 2 | 2, 1, 0])
        left -= length
    return chunk(COMPRESSED, struct.pack("<I", masked_crc(data)) + block)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def snappy_block(block: bytes) -> bytes:
    """The plain data of one compressed block."""
    size, at, shift = 0, 0, 0
    while True:
        size |= (block[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if block[at - 1] < 128:
            break
    out = bytearray()
    while at < len(block):
        at = _literal(block, at, out) if block[at] & 3 == 0 else _copy(block, at, out)
    assert len(out) == size
    return bytes(out)


def _literal(block: bytes, at: int, out: bytearray) -> int:
    length, at = block[at] >> 2, at + 1
    if length >= 60:
        extra = length - 59
        length, at = int.from_bytes(block[at : at + extra], "little"), at + extra
    out += block[at : at + length + 1]
    return at + length + 1


def _copy(block: bytes, at: int, out: bytearray) -> int:
    tag = block[at]
    if tag & 3 == 1:
        length, offset, at = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | block[at + 1], at + 2
    else:
        width = 2 if tag & 3 == 2 else 4
        length, offset, at = (tag >> 2) + 1, int.from_bytes(block[at + 1 : at + 1 + width], "little"), at + 1 + width
    for _ in range(length):
        out.append(out[-offset])
    return at


class Snappy:
    """Both directions of a snappy stream; what is sent is stored, not compressed."""

    def __init__(self) -> None:
        self.kinds: list[int] = []  # of the chunks received
        self._received = bytearray()
        self._started = False

    def encode(self, data: bytes) -> bytes:
        """Plain bytes as chunks."""
        start = b"" if self._started else STREAM_ID
        self._started = True
        return start + b"".join(stored_chunk(data[at : at + 65536]) for at in range(0, len(data), 65536))

    def decode(self, data: bytes) -> bytes:
        """Plain bytes of the chunks that are complete."""
        self._received += data
        out = b""
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[1:4], "little")
            if len(self._received) < 4 + size:
                break
            kind, content = self._received[0], bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            self.kinds.append(kind)
            out += self._plain(kind, content)
        return out

    @staticmethod
    def _plain(kind: int, content: bytes) -> bytes:
        if kind == STREAM_ID[0]:
            assert content == STREAM_ID[4:]
            return b""
        assert kind in {COMPRESSED, STORED}, kind
        plain = content[4:] if kind == STORED else snappy_block(content[4:])
        assert len(plain) <= 65536
        assert struct.unpack_from("<I", content)[0] == masked_crc(plain)
        return plain


class Deflate:
    """Both directions of a raw deflate stream."""

    def __init__(self, flush: int = zlib.Z_SYNC_FLUSH) -> None:
        self.compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
        self._flush = flush

    def encode(self, data: bytes) -> bytes:
        """Plain bytes, flushed."""
        return self.compressor.compress(data) + self.compressor.flush(self._flush)

    def decode(self, data: bytes) -> bytes:
        """Plain bytes as far as they go."""
        return self._decompressor.decompress(data)
