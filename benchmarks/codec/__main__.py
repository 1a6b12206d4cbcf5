"""Rates of the wire codec on one core, beside a loop that makes one object a message, in the same run.

Bodies are 50 to 350 random bytes. Each rate is the best of some rounds, and rounds of all rows alternate, so that
a neighbour's load falls on all alike. Run it with: ./run bench codec
"""

import os
import random
import struct
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from pyspark_nsq.proto import commands
from pyspark_nsq.proto.columns import decode_frames, encode_messages
from pyspark_nsq.proto.frames import MESSAGE_ID_SIZE, encode_message
from pyspark_nsq.proto.mpub import decode_mpub, encode_mpubs
from pyspark_nsq.proto.parser import CommandParser, Limits
from pyspark_nsq.proto.runs import FIN, decode_run, encode_run

MESSAGE_COUNT = 200_000
ROUND_COUNT = 7
READ_SIZE = 1024 * 1024
LIMITS = Limits()

_HEADER = struct.Struct(">iiqH16s")
_SIZE = struct.Struct(">I")


class Row(NamedTuple):
    name: str
    target: float | None
    work: Callable[[], object]


class Load(NamedTuple):
    bodies: list[bytes]
    column: pa.Array
    frames: bytes
    ids: bytes
    fin_run: bytes
    payloads: list[bytes]


def make_load() -> Load:
    rng = random.Random(1)
    bodies = [rng.randbytes(rng.randint(50, 350)) for _ in range(MESSAGE_COUNT)]
    ids = [b"%016x" % number for number in range(MESSAGE_COUNT)]
    column = pa.array(bodies)
    mpubs = encode_mpubs("t", column, message_size_max=LIMITS.msg_size_max, body_size_max=LIMITS.body_size_max)
    return Load(
        bodies,
        column,
        b"".join(encode_message(7, 1, message_id, body) for message_id, body in zip(ids, bodies, strict=True)),
        b"".join(ids),
        encode_run(FIN, b"".join(ids)),
        [mpub.head[-4:] + mpub.messages.to_pybytes() for mpub in mpubs],
    )


def in_reads(data: bytes, decode: Callable[[memoryview], int]) -> None:
    """Feed the data as a socket gives it: so much at a time, what is not whole again with the next."""
    view, start = memoryview(data), 0
    while start < len(data):
        start += decode(view[start : start + READ_SIZE])


def one_by_one(payloads: list[bytes], decode: Callable[[bytes], object]) -> None:
    """Decode each, and keep none: fresh memory for all of them at once would be measured too."""
    for payload in payloads:
        decode(payload)


def decode_by_loop(data: memoryview) -> int:
    """One object a message: the body, the id, the time, the attempts."""
    messages, start, end = [], 0, len(data)
    while start + _HEADER.size <= end:
        size, _, timestamp, attempts, message_id = _HEADER.unpack_from(data, start)
        if start + 4 + size > end:
            break
        messages.append((bytes(data[start + 34 : start + 4 + size]), message_id, timestamp, attempts))
        start += 4 + size
    return start


def split_by_loop(payload: bytes) -> list[bytes]:
    bodies, start = [], 4
    while start < len(payload):
        (size,) = _SIZE.unpack_from(payload, start)
        bodies.append(payload[start + 4 : start + 4 + size])
        start += 4 + size
    return bodies


def split_ids(ids: bytes) -> list[bytes]:
    return [ids[start : start + MESSAGE_ID_SIZE] for start in range(0, len(ids), MESSAGE_ID_SIZE)]


def make_rows(load: Load) -> list[Row]:
    messages = decode_frames(load.frames, LIMITS.msg_size_max + 30).messages
    size_max, body_max = LIMITS.msg_size_max, LIMITS.body_size_max

    def decode(data: memoryview) -> int:
        return decode_frames(data, size_max + 30).consumed

    return [
        Row("frames -> columns", 2.2, lambda: in_reads(load.frames, decode)),
        Row("  an object a message", None, lambda: in_reads(load.frames, decode_by_loop)),
        Row("columns -> frames", None, lambda: encode_messages(messages)),
        Row(
            "column -> MPUB",
            4.0,
            lambda: list(encode_mpubs("t", load.column, message_size_max=size_max, body_size_max=body_max)),
        ),
        Row("  an object a message", None, lambda: commands.mpub("t", load.bodies)),
        Row("MPUB -> columns", 3.0, lambda: one_by_one(load.payloads, lambda payload: decode_mpub(payload, size_max))),
        Row("  an object a message", None, lambda: one_by_one(load.payloads, split_by_loop)),
        Row("ids -> FIN run", 50.0, lambda: encode_run(FIN, load.ids)),
        Row("  an object a message", None, lambda: b"".join(map(commands.fin, split_ids(load.ids)))),
        Row("FIN run -> ids", 20.0, lambda: decode_run(load.fin_run, 0, b"FIN ", b"\n")),
        Row("  an object a message", None, lambda: [line[4:] for line in load.fin_run.splitlines()]),
        Row("FIN run -> command", None, lambda: CommandParser(LIMITS).feed(load.fin_run)),
    ]


def measure(rows: list[Row]) -> list[float]:
    """The best rate of each row, in million messages a second."""
    best = [float("inf")] * len(rows)
    for _ in range(ROUND_COUNT):
        for index, row in enumerate(rows):
            start = time.perf_counter()
            row.work()
            best[index] = min(best[index], time.perf_counter() - start)
    return [MESSAGE_COUNT / seconds / 1e6 for seconds in best]


def main() -> int:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows = make_rows(make_load())
    rates = measure(rows)
    print(
        f"{MESSAGE_COUNT:,} messages of 50-350 bytes, one core, best of {ROUND_COUNT} rounds, million messages a second"
    )
    for row, rate in zip(rows, rates, strict=True):
        print(f"  {row.name:24}{rate:8.2f}{f'   (to reach: {row.target})' if row.target else ''}")
    ratio = rates[0] / rates[1]
    print(f"  frames -> columns is {ratio:.2f} x an object a message   (to reach: 1.5)")
    missed = [row.name for row, rate in zip(rows, rates, strict=True) if row.target and rate < row.target]
    if ratio < 1.5:
        missed.append("frames -> columns against the loop")
    print(f"missed: {', '.join(missed)}" if missed else "all reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
