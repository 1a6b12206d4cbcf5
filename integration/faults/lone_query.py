"""A query without Spark: the stream reader as Spark calls it, and one task, in a process that can be attacked.

Its options come as JSON in the first line of its input. It prints where its coordinator answers, and once its input has
ended how often each body came.
"""

import json
import sys
import threading
import time
from collections import Counter
from typing import Any

from pyspark_nsq.connector.asking import is_lost
from pyspark_nsq.connector.options import parse_source_options
from pyspark_nsq.connector.rows import RangePartition
from pyspark_nsq.connector.schema import DEFAULT_SCHEMA
from pyspark_nsq.connector.stream_reader import NsqStreamReader

_PAUSE_S = 0.02
_NO_LANE = 1000


def main() -> None:
    reader = NsqStreamReader(parse_source_options(json.loads(sys.stdin.readline())), DEFAULT_SCHEMA)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    bodies: Counter[str] = Counter()
    start = reader.initialOffset()
    while not ended.is_set():
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end == start:
            time.sleep(_PAUSE_S)
            continue
        _read(reader, start, end, bodies)
        start = end
    reader.stop()
    print(json.dumps(bodies), flush=True)


def _read(reader: NsqStreamReader, start: dict[str, Any], end: dict[str, Any], bodies: "Counter[str]") -> None:
    is_first = not bodies
    for partition in reader.partitions(start, end):
        assert isinstance(partition, RangePartition)
        way = partition.place.way
        assert way
        # What it has to say is certain: without an answer nothing would be.
        assert is_lost(way, _NO_LANE, 0, 1), "the coordinator does not answer"
        for rows in reader.read(partition):
            bodies.update(body.decode() for body in rows.column("body").to_pylist())
        if is_first:
            is_first = False
            print(way.coordinator, flush=True)


if __name__ == "__main__":
    main()
