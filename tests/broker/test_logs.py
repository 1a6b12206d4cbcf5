"""Log lines in Go's format."""

import os
import re
import subprocess
import sys

import pytest

from pyspark_nsq.broker.logs import Level, Logger, parse_level


class Lines:
    """A logger whose lines are kept."""

    def __init__(self, level: Level = Level.INFO, now: float = 1_000_000_000.123456) -> None:
        self.written: list[str] = []
        self.log = Logger("[nsqd] ", level, write=self.written.append, now=lambda: now)


def test_a_line_is_what_tools_parse() -> None:
    lines = Lines()
    lines.log.info("TCP: listening on %s", "127.0.0.1:4150")
    (line,) = lines.written
    assert re.fullmatch(
        r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.123456 INFO: TCP: listening on 127.0.0.1:4150\n", line
    )


def test_levels_filter_and_change_at_run_time() -> None:
    lines = Lines(Level.WARNING)
    for write in (lines.log.debug, lines.log.info, lines.log.warning, lines.log.error, lines.log.fatal):
        write("x")
    assert [line.split()[3] for line in lines.written] == ["WARNING:", "ERROR:", "FATAL:"]
    lines.log.level = Level.DEBUG
    lines.log.debug("now")
    assert lines.written[-1].endswith("DEBUG: now\n")


def test_arguments_of_a_filtered_line_are_never_formatted() -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("formatted although filtered out")

    Lines(Level.INFO).log.debug("%s", Costly())


def test_a_peer_cannot_forge_a_line() -> None:
    lines = Lines()
    lines.log.info("client says %s", "x\n[nsqd] 2026/01/01 00:00:00.000000 FATAL: gone\r")
    assert lines.written[0].count("\n") == 1
    assert "\r" not in lines.written[0]


def test_a_percent_sign_without_arguments_is_text() -> None:
    lines = Lines()
    lines.log.info("100%")
    assert lines.written[0].endswith("INFO: 100%\n")


@pytest.mark.parametrize(("word", "level"), [("debug", 1), ("INFO", 2), ("Warn", 3), ("error", 4), ("fatal", 5)])
def test_levels_have_gos_words_and_numbers(word: str, level: int) -> None:
    assert parse_level(word) == level


@pytest.mark.parametrize("word", ["warning", "", "1", " info"])
def test_other_words_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match="invalid log level"):
        parse_level(word)


def test_fatal_ends_with_code_1_on_stderr() -> None:
    code = "from pyspark_nsq.broker.logs import *; exit_fatal(Logger('[x] '), 'cannot %s', 'go on')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.endswith("FATAL: cannot go on\n")


WRITER = """
import sys
from pyspark_nsq.broker.logs import Logger
log = Logger("[x] ")
for number in range(2000):
    log.info("%s", "x" * (9000 if number == 500 else 100))
print("not stopped", flush=True)
sys.stdin.readline()
log.info("somebody reads again")
log.info("as ever")
"""


def test_a_pipe_that_nobody_reads_stops_nobody_and_what_was_dropped_is_counted() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout.readline() == "not stopped\n"
        first = writer.stderr.readline()
        os.set_blocking(writer.stderr.fileno(), False)
        kept = first + writer.stderr.read()
        os.set_blocking(writer.stderr.fileno(), True)
        writer.stdin.write("\n")
        writer.stdin.close()
        *_, again, last = writer.stderr.read().splitlines()
    found = re.search(r"INFO: somebody reads again \(before it (\d+) lines were dropped: nobody read them\)$", again)
    assert found
    assert kept.count("\n") + int(found[1]) == 2000
    assert last.endswith("INFO: as ever")
