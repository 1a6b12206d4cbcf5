"""Which way through the code an input takes, and the fewest inputs that take all of them."""

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

from fuzz.target import Target

_OURS = "pyspark_nsq"
Step = tuple[str, int, int]


def steps(target: Target, data: bytes) -> set[Step]:
    """Every step from line to line in the project's own code."""
    found: set[Step] = set()
    before: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        if _OURS not in frame.f_code.co_filename:
            return None
        if event == "return":
            before.pop(frame, None)
        else:
            found.add((frame.f_code.co_filename, before.get(frame, 0), frame.f_lineno))
            before[frame] = frame.f_lineno
        return trace

    sys.settrace(trace)
    try:
        target.run(data)
    finally:
        sys.settrace(None)
    return found


def smallest(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """The shortest inputs, each of which takes a step that none before it took."""
    seen: set[Step] = set()
    kept = []
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        taken = steps(target, data)
        if not taken <= seen:
            seen |= taken
            kept.append(data)
    return kept
