"""What a flag's value may be: how it is read from the command line and from TOML, and shown as a default.

Command line texts follow Go's ``flag`` package, TOML values the coercions nsqd has always had: numbers may be
strings, lists may be comma separated strings, durations Go texts or whole milliseconds.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark_nsq.broker import logs
from pyspark_nsq.broker.durations import MILLISECOND, format_duration, parse_duration

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_OCTAL = re.compile(r"[+-]?0[0-7_]+")
_BOOLS = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True)
_BOOLS |= dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False)


@dataclass(frozen=True, slots=True)
class Kind:
    """``parse(text, earlier)`` reads a command line value, where ``earlier`` is what this flag gave before or None;
    ``coerce`` reads a TOML value; ``show`` gives the default as usage prints it, "" for none. Both readers raise
    ValueError with the reason."""

    type_name: str
    parse: Callable[[str, Any], Any]
    coerce: Callable[[Any], Any]
    show: Callable[[Any], str]
    takes_no_argument: bool = False


def parse_bool(text: str) -> bool:
    if text not in _BOOLS:
        raise ValueError("parse error")
    return _BOOLS[text]


def parse_int(text: str, base: int = 0) -> int:
    """Go's ParseInt to 64 bits; base 0 lets the prefix choose, and a leading 0 is octal."""
    if not text.isascii() or text != text.strip() or (base and "_" in text):
        raise ValueError("parse error")
    try:
        value = int(text.replace("_", ""), 8) if base == 0 and _OCTAL.fullmatch(text) else int(text, base)
    except ValueError:
        raise ValueError("parse error") from None
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise ValueError("value out of range")
    return value


def _coerce_bool(value: Any) -> bool:
    if isinstance(value, str):
        return parse_bool(value)
    if isinstance(value, (bool, int)):
        return bool(value)
    raise ValueError(f"{type(value).__name__} is no boolean")


def _coerce_int(value: Any) -> int:
    if isinstance(value, str):
        return parse_int(value, 10)
    if isinstance(value, int) and not isinstance(value, bool) and _INT64_MIN <= value <= _INT64_MAX:
        return value
    raise ValueError(f"{type(value).__name__} is no 64-bit whole number")


def _coerce_string(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"{type(value).__name__} is no string")


def _coerce_duration(value: Any) -> int:
    if isinstance(value, str):
        return parse_duration(value)
    return _coerce_int(value) * MILLISECOND


def _coerce_strings(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split(","))
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise ValueError("neither a list of strings nor a comma separated string")


def _coerce_floats(value: Any) -> tuple[float, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, (str, int, float)) for item in items):
        raise ValueError("neither a list of numbers nor a comma separated string")
    try:
        return tuple(float(item) for item in items)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def _parse_floats(text: str, earlier: Any) -> tuple[float, ...]:
    try:
        found = [float(item) for item in text.split(",")]
    except ValueError:
        raise ValueError("parse error") from None
    return tuple(sorted([*(earlier or ()), *found], reverse=True))


def _coerce_level(value: Any) -> logs.Level:
    return logs.parse_level(str(value))


def quoted(text: str) -> str:
    """The text in double quotes, as messages to the user show it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


STRING = Kind("string", lambda text, _: text, _coerce_string, lambda value: quoted(value) if value else "")
INT = Kind("int", lambda text, _: parse_int(text), _coerce_int, lambda value: str(value) if value else "")
BOOL = Kind("", lambda text, _: parse_bool(text), _coerce_bool, lambda value: "true" if value else "", True)
STRINGS = Kind("value", lambda text, earlier: (*(earlier or ()), text), _coerce_strings, ",".join)
FLOATS = Kind("value", _parse_floats, _coerce_floats, lambda value: ",".join(f"{item:f}" for item in value))
LOG_LEVEL = Kind("value", lambda text, _: logs.parse_level(text), _coerce_level, lambda value: logs.Level(value).name)
DURATION = Kind(
    "duration",
    lambda text, _: parse_duration(text),
    _coerce_duration,
    lambda value: format_duration(value) if value else "",
)
"""Whole nanoseconds, as /config and /info show them; fields of this kind end in ``_ns``."""
