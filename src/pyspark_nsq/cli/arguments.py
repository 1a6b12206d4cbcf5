"""Types of command line arguments."""

import argparse

from pyspark_nsq.connector.option_kinds import byte_size, duration_ms

_DAY_MS = 86_400_000


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def rate(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.001 <= number <= 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0.001 to 1000000000")
    return number


def duration_ms_of(text: str) -> int:
    """Milliseconds."""
    kind = duration_ms(1, 365 * _DAY_MS)
    try:
        found: int = kind.parse(text)
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not {kind.allowed}") from None
    return found


def duration_s(text: str) -> float:
    return duration_ms_of(text) / 1000


def size(text: str) -> int:
    """Bytes."""
    kind = byte_size(1, 2**30)
    try:
        found: int = kind.parse(text)
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not {kind.allowed}") from None
    return found


def separator(text: str) -> bytes:
    """Bytes, with the usual escapes such as ``\\n`` and ``\\0``."""
    found = text.encode().decode("unicode_escape").encode("latin-1", "replace")
    if not found:
        raise argparse.ArgumentTypeError("it must not be empty")
    return found
