"""Where a query stands: what Spark keeps in its checkpoint, and how positions in a lane are numbered.

A lane numbers its messages with positions. The receiver process that holds a lane may die and be started again:
each incarnation counts from a start of its own, far above all that came before, so that a position never means two
messages. Spark compares offsets as text: the fields always come in the same order.
"""

import reprlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeGuard

VERSION: Final = 1
# Positions fit into a 64-bit integer, and a JSON reader that knows only doubles keeps them exact.
_POSITION_BITS: Final = 53
_INCARNATION_SHIFT: Final = 40
INCARNATION_MAX: Final = 2 ** (_POSITION_BITS - _INCARNATION_SHIFT) - 1
POSITION_MAX: Final = 2**_POSITION_BITS - 1


class OffsetError(ValueError):
    """An offset in the checkpoint that this version cannot read."""


def first_position(incarnation: int) -> int:
    """Where an incarnation of a receiver begins to count."""
    return incarnation << _INCARNATION_SHIFT


def incarnation_of(position: int) -> int:
    return position >> _INCARNATION_SHIFT


class Offset(NamedTuple):
    """The end of a batch: which run of the source gave it, and the position after its last message, for each lane.

    ``session`` is random for each run. Positions of another run mean nothing to this one; the empty session is the
    start of a query that has read nothing yet.
    """

    session: str
    ends: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, "session": self.session, "ends": list(self.ends)}


START: Final = Offset("", ())


def parse_offset(fields: object) -> Offset:
    """The offset that Spark read from its checkpoint, or was given by this source."""
    if not isinstance(fields, Mapping) or not _is_count(version := fields.get("version")):
        raise OffsetError(f"the offset {_shown(fields)} has no version: the checkpoint is not of this source")
    if version != VERSION:
        raise OffsetError(
            f"the offset {_shown(fields)} has version {version}, this pyspark-nsq reads version {VERSION}: "
            "use a newer pyspark-nsq, or another checkpoint"
        )
    session, ends = fields.get("session"), fields.get("ends")
    if not isinstance(session, str) or not isinstance(ends, list) or not all(map(_is_position, ends)):
        raise OffsetError(f"the offset {_shown(fields)} is damaged: it needs a session and a list of ends")
    return Offset(session, tuple(ends))


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_position(value: object) -> bool:
    return _is_count(value) and value <= POSITION_MAX


def _shown(fields: object) -> str:
    """What it looks like, however long or deep it is."""
    text = reprlib.repr(fields)
    return text if len(text) <= 200 else text[:200] + "..."
