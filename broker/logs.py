"""Log lines as Go's nsqd writes them, on stderr.

    log = Logger("[nsqd] ", Level.INFO)
    log.info("TCP: listening on %s", address)         # %-arguments are only formatted if the line is written
    if log.level <= Level.DEBUG: log.debug(costly())  # where even the call is too much
    log.level = Level.DEBUG                           # may change at run time

A line is ``[nsqd] 2026/11/18 09:11:23.511589 INFO: text``: local time, one write per line, line breaks in the text
escaped, so that what a peer sends cannot forge a second line.
"""

import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import NoReturn

_STDERR = 2
# What a pipe that says it has room takes for certain.
_ROOM_BYTES = select.PIPE_BUF


class Level(IntEnum):
    """The numbers are those that GET /config/log_level answers."""

    DEBUG = 1
    INFO = 2
    WARNING = 3
    ERROR = 4
    FATAL = 5


_BY_WORD = {
    "debug": Level.DEBUG,
    "info": Level.INFO,
    "warn": Level.WARNING,
    "error": Level.ERROR,
    "fatal": Level.FATAL,
}
_NAMES = {level: level.name for level in Level}


def parse_level(word: str) -> Level:
    """The level of a flag or of PUT /config/log_level; any case, but ``warning`` is no word of Go's."""
    level = _BY_WORD.get(word.lower())
    if level is None:
        raise ValueError(f"invalid log level {word!r} ({', '.join(_BY_WORD)})")
    return level


class Stderr:
    """Where lines go. One that is gone or full must not stop the broker: what cannot be written is dropped.

    It is asked for room before each write, not made non-blocking: other processes may share it.
    """

    def __init__(self) -> None:
        self._dropped = 0

    def write(self, line: str) -> None:
        """One system call for a line of usual length."""
        if self._dropped:
            line = f"{line[:-1]} (before it {self._dropped} lines were dropped: nobody read them)\n"
        data = line.encode("utf-8", "backslashreplace")
        with suppress(OSError):
            while data and select.select((), (_STDERR,), (), 0)[1]:
                data = data[os.write(_STDERR, data[:_ROOM_BYTES]) :]
        self._dropped = self._dropped + 1 if data else 0


write_stderr = Stderr().write


class Logger:
    """Writes lines of at least ``level``; the checks come first, so a filtered line costs one comparison."""

    __slots__ = ("_now", "_second", "_second_text", "_write", "level", "prefix")

    def __init__(
        self,
        prefix: str,
        level: Level = Level.INFO,
        write: Callable[[str], None] = write_stderr,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.prefix = prefix
        self.level: int = level
        self._write = write
        self._now = now
        self._second = -1
        self._second_text = ""

    def debug(self, text: str, *args: object) -> None:
        if self.level <= Level.DEBUG:
            self._line(Level.DEBUG, text, args)

    def info(self, text: str, *args: object) -> None:
        if self.level <= Level.INFO:
            self._line(Level.INFO, text, args)

    def warning(self, text: str, *args: object) -> None:
        if self.level <= Level.WARNING:
            self._line(Level.WARNING, text, args)

    def error(self, text: str, *args: object) -> None:
        if self.level <= Level.ERROR:
            self._line(Level.ERROR, text, args)

    def fatal(self, text: str, *args: object) -> None:
        """Write a FATAL line, which no level filters. The caller decides how to end: see :func:`exit_fatal`."""
        self._line(Level.FATAL, text, args)

    def _line(self, level: Level, text: str, args: tuple[object, ...]) -> None:
        now = self._now()
        second = int(now)
        if second != self._second:  # strftime once a second, not once a line
            self._second = second
            self._second_text = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(second))
        body = text % args if args else text
        if "\n" in body or "\r" in body:
            body = body.replace("\r", "\\r").replace("\n", "\\n")
        self._write(f"{self.prefix}{self._second_text}.{int((now - second) * 1e6):06d} {_NAMES[level]}: {body}\n")


def exit_fatal(log: Logger, text: str, *args: object) -> NoReturn:
    """What Go does on an error it cannot start with: a FATAL line and exit code 1."""
    log.fatal(text, *args)
    sys.exit(1)
