"""The form of the offsets in checkpoints: old files stay readable, newer ones are refused in words."""

import json
from pathlib import Path
from typing import Any

import pytest

from pyspark_nsq.connector.offsets import START, Offset, OffsetError, first_position, incarnation_of, parse_offset

KEPT = Path(__file__).parent / "offsets"


@pytest.mark.parametrize(
    ("file", "offset"),
    [("v1_start.json", START), ("v1.json", Offset("39ab91aab73f2eac", (5000, first_position(1) + 7)))],
)
def test_kept_files_are_read_and_written_the_same(file: str, offset: Offset) -> None:
    text = (KEPT / file).read_text()
    assert parse_offset(json.loads(text)) == offset
    # Spark compares texts: another order of the keys would be another offset.
    assert json.dumps(offset.to_json()) == text.strip()


def test_a_newer_version_is_refused_with_what_helps() -> None:
    with pytest.raises(OffsetError, match="version 2, this pyspark-nsq reads version 1: use a newer pyspark-nsq"):
        parse_offset(json.loads((KEPT / "future.json").read_text()))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"topic-0": 17},
        {"version": "1", "session": "", "ends": []},
        {"version": True, "session": "", "ends": []},
        {"version": 1, "ends": []},
        {"version": 1, "session": "a", "ends": 3},
        {"version": 1, "session": "a", "ends": [-1]},
        {"version": 1, "session": "a", "ends": [1.5]},
        {"version": 1, "session": "a", "ends": ["x" * 10_000]},
    ],
)
def test_what_is_no_offset_is_refused_briefly(fields: dict[str, Any]) -> None:
    with pytest.raises(OffsetError) as caught:
        parse_offset(fields)
    assert len(str(caught.value)) < 400


def test_positions_of_incarnations_never_meet() -> None:
    assert first_position(0) == 0
    assert incarnation_of(first_position(3) + 10**12) == 3
    assert first_position(4) > first_position(3) + 10**12
    # A reader that knows only doubles keeps the largest exact.
    assert float(first_position(8191) + 1) != float(first_position(8191) + 2)
