"""Durations as Go writes and reads them, in whole nanoseconds: ``1h2m3.5s``, ``250ms``, ``0s``."""

import re

NANOSECOND = 1
MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

_UNITS = {
    "ns": NANOSECOND,
    "us": MICROSECOND,
    "\u00b5s": MICROSECOND,  # the micro sign
    "\u03bcs": MICROSECOND,  # the Greek letter, which keyboards give
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}
_TERM = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_MAX_NS = (1 << 63) - 1
_MAX_TEXT_CHARS = 100  # more digits than any duration needs; keeps the arithmetic small


def parse_duration(text: str) -> int:
    """Nanoseconds of a Go duration; ValueError names the text if it is none or does not fit in 63 bits."""
    sign, rest = 1, text
    if rest[:1] in ("+", "-"):
        sign = -1 if rest[0] == "-" else 1
        rest = rest[1:]
    if rest == "0":
        return 0
    if not rest or len(rest) > _MAX_TEXT_CHARS:
        raise ValueError(f"invalid duration {text!r}")
    total, at = 0, 0
    while at < len(rest):
        term = _TERM.match(rest, at)
        if term is None or not (term[1] or term[2]):
            raise ValueError(f"invalid duration {text!r}: write it like 1h2m3.5s or 250ms")
        unit = _UNITS[term[3]]
        total += int(term[1] or "0") * unit
        if term[2]:
            total += int(term[2]) * unit // 10 ** len(term[2])
        at = term.end()
    if total > _MAX_NS:
        raise ValueError(f"invalid duration {text!r}: more than 292 years")
    return sign * total


def format_duration(duration_ns: int) -> str:
    """The text Go prints for a duration: ``1m0s``, ``1.5s``, ``12.3µs``."""
    if duration_ns == 0:
        return "0s"
    sign, left = ("-", -duration_ns) if duration_ns < 0 else ("", duration_ns)
    if left < SECOND:
        for name, unit in (("ms", MILLISECOND), ("\u00b5s", MICROSECOND), ("ns", NANOSECOND)):
            if left >= unit:
                return f"{sign}{_decimal(left, unit)}{name}"
    minutes, below_minute = divmod(left, MINUTE)
    text = f"{_decimal(below_minute, SECOND)}s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{minutes}m{text}"
        if hours:
            text = f"{hours}h{text}"
    return sign + text


def _decimal(value: int, unit: int) -> str:
    whole, fraction = divmod(value, unit)
    digits = f"{fraction:0{len(str(unit)) - 1}d}".rstrip("0") if fraction else ""
    return f"{whole}.{digits}" if digits else str(whole)
