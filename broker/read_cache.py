"""Segments that were read from logs a moment ago, of all topics: channels at about the same place share them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark_nsq.broker.log import Log
    from pyspark_nsq.broker.segment import Segment

_BYTES_MAX: Final = 8 * 1024 * 1024


class ReadCache:
    """Those that nobody asked for longest go first."""

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._segments: dict[tuple[Log, int], Segment] = {}  # by their first message
        self.nbytes = 0

    def get(self, log: Log, seq: int) -> Segment | None:
        """The one that begins with this message."""
        segment = self._segments.pop((log, seq), None)
        if segment is not None:
            self._segments[log, seq] = segment
        return segment

    def keep(self, log: Log, segments: list[Segment]) -> None:
        """They have just been read."""
        for segment in segments:
            self._forget((log, segment.base))
            self._segments[log, segment.base] = segment
            self.nbytes += segment.nbytes
        while self.nbytes > self._bytes_max:
            self._forget(next(iter(self._segments)))

    def forget(self, log: Log) -> None:
        """Nobody will read it any more."""
        for key in [key for key in self._segments if key[0] is log]:
            self._forget(key)

    def _forget(self, key: tuple[Log, int]) -> None:
        segment = self._segments.pop(key, None)
        if segment is not None:
            self.nbytes -= segment.nbytes
