"""Durations in Go's notation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.broker.durations import format_duration, parse_duration

MS, S = 10**6, 10**9


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("250ms", 250 * MS),
        ("1h2m3.5s", 3723 * S + 500 * MS),
        ("-1.5h", -5400 * S),
        ("+5s", 5 * S),
        (".5s", 500 * MS),
        ("1.s", S),
        ("3us", 3000),
        ("3\u00b5s", 3000),
        ("3\u03bcs", 3000),
        ("7ns", 7),
        ("1.0000000001s", S),
    ],
)
def test_reads(text: str, nanoseconds: int) -> None:
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    "text", ["", "1", "s", ".s", "1x", "1s2", "-", "1 s", "1e3s", "300000000h", "9" * 200 + "ns", "\u0661s"]
)
def test_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (7, "7ns"),
        (1100, "1.1\u00b5s"),
        (1000, "1\u00b5s"),
        (MS, "1ms"),
        (250 * MS, "250ms"),
        (S, "1s"),
        (1500 * MS, "1.5s"),
        (60 * S, "1m0s"),
        (3600 * S, "1h0m0s"),
        (3723 * S + 500 * MS, "1h2m3.5s"),
        (-90 * S, "-1m30s"),
    ],
)
def test_writes(nanoseconds: int, text: str) -> None:
    assert format_duration(nanoseconds) == text


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_what_is_written_is_read_back(nanoseconds: int) -> None:
    assert parse_duration(format_duration(nanoseconds)) == nanoseconds
