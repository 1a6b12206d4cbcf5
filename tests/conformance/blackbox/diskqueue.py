"""The files of Go's nsqd on its data path, written and read byte by byte."""

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Record(NamedTuple):
    """A message as it is stored."""

    body: bytes
    id: bytes = b"0f00000000000001"
    attempts: int = 0
    timestamp_ns: int = 1_700_000_000_000_000_000

    @property
    def encoded(self) -> bytes:
        """The record with its length in front."""
        stored = struct.pack(">qH", self.timestamp_ns, self.attempts) + self.id + self.body
        return struct.pack(">i", len(stored)) + stored


def records_of(*bodies: bytes, attempts: int = 0, first: int = 0) -> list[Record]:
    """Records with ids in a row."""
    return [Record(body, b"%016x" % (0x0F00000000000000 + first + at), attempts) for at, body in enumerate(bodies)]


def write_nsqd_dat(folder: Path, topics: Mapping[str, Sequence[str]], paused: Sequence[str] = ()) -> None:
    """The list of topics and channels; `paused` names topics, or channels as topic:channel."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = [
        {
            "name": topic,
            "paused": topic in paused,
            "channels": [{"name": name, "paused": f"{topic}:{name}" in paused} for name in channels] or None,
        }
        for topic, channels in topics.items()
    ]
    text = json.dumps({"topics": listed or None, "version": "1.3.0"}, separators=(",", ":"))
    (folder / "nsqd.dat").write_text(text)


def data_file(folder: Path, queue: str, number: int = 0) -> Path:
    """One file of a queue; a channel's queue is called topic:channel."""
    return folder / f"{queue}.diskqueue.{number:06}.dat"


def meta_file(folder: Path, queue: str) -> Path:
    """Where a queue's positions are."""
    return folder / f"{queue}.diskqueue.meta.dat"


def write_meta(folder: Path, queue: str, depth: int, read: tuple[int, int], write: tuple[int, int]) -> None:
    """The positions of a queue."""
    meta_file(folder, queue).write_text(f"{depth}\n{read[0]},{read[1]}\n{write[0]},{write[1]}\n")


def write_queue(folder: Path, queue: str, *files: Sequence[Record], consumed: int = 0) -> None:
    """A queue of one or more files, of whose first the first `consumed` records were read already."""
    for number, records in enumerate(files):
        data_file(folder, queue, number).write_bytes(b"".join(record.encoded for record in records))
    read = sum(len(record.encoded) for record in files[0][:consumed])
    last = data_file(folder, queue, len(files) - 1).stat().st_size
    write_meta(folder, queue, sum(map(len, files)) - consumed, (0, read), (len(files) - 1, last))


def read_records(data: bytes) -> list[Record]:
    """What a data file holds."""
    records = []
    while data:
        (size,) = struct.unpack_from(">i", data)
        timestamp_ns, attempts = struct.unpack_from(">qH", data, 4)
        records.append(Record(data[30 : 4 + size], data[14:30], attempts, timestamp_ns))
        data = data[4 + size :]
    return records
