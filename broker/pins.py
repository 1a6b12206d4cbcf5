"""Which files of the log hold messages that somebody has put off."""

from __future__ import annotations

from collections import Counter

from pyspark_nsq.broker.log import Log
from pyspark_nsq.broker.log_file import LogFile


class Pins:
    """Counts the messages file by file: of a million, nobody wants to look through all to find the files.

    A file with a pin is kept, and a new one comes behind all others: what pinned a file is found there again.
    """

    __slots__ = ("_counts", "_last", "_log")

    def __init__(self, log: Log | None) -> None:
        self._log = log  # None: the messages are in memory only
        self._counts: Counter[LogFile] = Counter()
        self._last: LogFile | None = None

    def add(self, seq: int, count: int) -> None:
        """Messages seq .. seq + count - 1 are put off."""
        for file, messages in self._places(seq, count):
            self._counts[file] += messages

    def remove(self, seq: int, count: int) -> None:
        """They no longer are."""
        for file, messages in self._places(seq, count):
            self._counts[file] -= messages
            if not self._counts[file]:
                del self._counts[file]

    def _places(self, seq: int, count: int) -> list[tuple[LogFile, int]]:
        """The files, each with how many of the messages it holds; nearly always the same file as the last time."""
        if self._log is None:
            return []
        file = self._last
        if file is None or not file.base <= seq < seq + count <= file.end:
            places = self._log.places(seq, seq + count)
            self._last = places[0][0] if places else None
            return places
        return [(file, count)]

    def clear(self) -> None:
        self._counts.clear()

    def ranges(self) -> list[tuple[int, int]]:
        """The files' messages."""
        return [(file.base, file.end) for file in self._counts]
