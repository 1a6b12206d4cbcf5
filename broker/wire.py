"""What lies between a session's plain bytes and its socket once it was upgraded: TLS, then compression, or one of them.

Every upgrade seals what was said before it: those bytes travel as they were, all later ones through the new layer,
of which an OK is the first thing said.
"""

import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark_nsq.broker.identify import Identity
from pyspark_nsq.broker.output import OK_FRAME
from pyspark_nsq.broker.segment import Buffer
from pyspark_nsq.broker.tls import TlsLayer

if TYPE_CHECKING:
    from pyspark_nsq.proto.compression import Compressor, Decompressor


class Wire:
    """The layers that an IDENTIFY granted, from the bottom up as the client gets ready for them."""

    def __init__(self, granted: Identity, context: ssl.SSLContext | None, said: list[Buffer]) -> None:
        self.tls: TlsLayer | None = None
        self.granted = granted
        self._compressor: Compressor | None = None
        self._decompressor: Decompressor | None = None
        self._sealed = list(said)
        self.handshaking = granted.tls
        if granted.tls:
            assert context is not None
            self.tls = TlsLayer(context)
        else:
            self._start_compression()

    def decode(self, data: bytes) -> Iterator[bytes]:
        """The plain bytes in pieces of bounded size. ``TlsError`` and ``WireError`` end the connection."""
        if self.tls is not None:
            data = self.tls.receive(data)
            if self.handshaking and self.tls.established:
                self.handshaking = False
                self._seal(OK_FRAME)
                self._start_compression()
        if self._decompressor is None:
            if data:
                yield data
        else:
            yield from self._decompressor.decompress(data)

    @property
    def ended(self) -> bool:
        """Whether the peer has said, within a layer, that nothing more will come."""
        return (self.tls is not None and self.tls.ended) or getattr(self._decompressor, "ended", False)

    def abandon_tls(self) -> None:
        """The handshake failed: what TLS has to say of it goes out, then bytes are plain again."""
        if self.tls is not None:
            self._sealed.append(self.tls.take_output())
        self.tls = None
        self.handshaking = False

    def encode(self, said: list[Buffer]) -> list[Buffer]:
        """What goes to the socket: everything sealed, what TLS itself has to send, then what was said since."""
        encoded = [*self._sealed, *self._encoded(said)]
        self._sealed.clear()
        if self.tls is not None:
            encoded.append(self.tls.take_output())
        return [piece for piece in encoded if piece]

    def _start_compression(self) -> None:
        if not (self.granted.snappy or self.granted.deflate):
            return
        from pyspark_nsq.proto import compression

        if self.granted.snappy:
            self._compressor = compression.SnappyCompressor()
            self._decompressor = compression.SnappyDecompressor()
        else:
            self._compressor = compression.DeflateCompressor(self.granted.deflate_level)
            self._decompressor = compression.DeflateDecompressor()
        self._seal(OK_FRAME)

    def _seal(self, frame: bytes) -> None:
        self._sealed.extend(self._encoded([frame]))

    def _encoded(self, said: list[Buffer]) -> list[Buffer]:
        if not said:
            return []
        data = b"".join(said)
        if self._compressor is not None:
            data = self._compressor.compress(data)
        if self.tls is None:
            return [data]
        self.tls.send(data)
        return [self.tls.take_output()]
