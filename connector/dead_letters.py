"""What becomes of rows that NSQ cannot take, where they are kept: a JSON message each."""

import base64
import json
from typing import Final

import pyarrow as pa

from pyspark_nsq.connector.options import SinkOptions
from pyspark_nsq.connector.sink_columns import Invalid, Rows

# More of a name does not tell more. With it a letter without a body always fits into the smallest size allowed.
_TOPIC_LENGTH_MAX: Final = 64


def dead_letters(rows: Rows, invalid: Invalid, options: SinkOptions) -> pa.Array:
    """A body for each invalid row: why it is one, the size of its body, its topic, its delay, and the body in base64.

    A body too large for that is left out: only its size is told.
    """
    letters = [
        _letter(rows, row, reason, options) for row, reason in zip(invalid.rows.tolist(), invalid.reasons, strict=True)
    ]
    return pa.array(letters, pa.binary())


def _letter(rows: Rows, row: int, reason: str, options: SinkOptions) -> bytes:
    body = rows.bodies[row].as_py()
    topic = options.topic if rows.topics is None else rows.topics[row].as_py()
    facts: dict[str, object] = {
        "reason": reason,
        "size": None if body is None else len(body),
        "topic": None if topic is None else topic[:_TOPIC_LENGTH_MAX],
        "defer_ms": 0 if rows.delays_ms is None else rows.delays_ms[row].as_py(),
    }
    short = json.dumps(facts).encode()
    if body is None:
        return short
    facts["body"] = base64.b64encode(body).decode("ascii")
    full = json.dumps(facts).encode()
    return full if len(full) <= options.message_size_max else short
