"""Damaged and odd files of Go's nsqd on the data path: whatever is intact is delivered."""

from collections.abc import Callable
from pathlib import Path

import pytest
from blackbox.daemons import Nsqd
from blackbox.diskqueue import (
    data_file,
    meta_file,
    records_of,
    write_meta,
    write_nsqd_dat,
    write_queue,
)
from blackbox.steps import bodies_of, drain, numbered
from blackbox.wire import Conn, wait_until

Connect = Callable[..., Conn]
StartNsqd = Callable[..., Nsqd]

OWN_FORMAT = "the files are Go's own"


# case 77
def test_more_in_the_file_than_its_meta_says_is_salvaged(
    connect: Connect, start_nsqd: StartNsqd, data_path: Path
) -> None:
    write_nsqd_dat(data_path, {"topic": ["channel"]})
    records = records_of(*numbered(10))
    write_queue(data_path, "topic:channel", records)
    known = sum(len(record.encoded) for record in records[:6])
    write_meta(data_path, "topic:channel", 6, (0, 0), (0, known))
    daemon = start_nsqd()
    conn = connect(daemon)
    conn.publish("topic", b"new")
    conn.subscribe("topic", "channel", ready=50)
    wanted = {*numbered(10), b"new"}
    while wanted:
        message = conn.message()
        wanted.discard(message.body)
        conn.finish(message)
    conn.round_trip()
    wait_until(lambda: daemon.channel("topic", "channel")["depth"] == 0)


# case 78
def test_corrupt_length_costs_the_rest_of_its_file_only(
    connect: Connect, start_nsqd: StartNsqd, data_path: Path
) -> None:
    write_nsqd_dat(data_path, {"topic": ["channel"]})
    records = records_of(*numbered(9))
    write_queue(data_path, "topic:channel", records[:6], records[6:])
    broken = data_file(data_path, "topic:channel", 0)
    data = bytearray(broken.read_bytes())
    at = sum(len(record.encoded) for record in records[:3])
    data[at : at + 4] = b"\x7f\xff\xff\xff"
    broken.write_bytes(data)
    daemon = start_nsqd("--mem-queue-size=0")
    messages = drain(connect(daemon), "topic", "channel", 6)
    assert bodies_of(messages) == sorted(numbered(3) + numbered(9)[6:])
    wait_until(lambda: daemon.channel("topic", "channel")["depth"] == 0)
    # The evidence is kept.
    assert any(path.read_bytes() == bytes(data) for path in data_path.rglob("*.bad"))


# case 79
def test_torn_last_record_is_tolerated(connect: Connect, start_nsqd: StartNsqd, data_path: Path) -> None:
    write_nsqd_dat(data_path, {"topic": ["channel"]})
    records = records_of(*numbered(5))
    write_queue(data_path, "topic:channel", records)
    with data_file(data_path, "topic:channel").open("ab") as file:
        file.write(records_of(b"torn away")[0].encoded[:20])
    conn = connect(start_nsqd())
    conn.publish("topic", b"new")
    messages = drain(conn, "topic", "channel", 6)
    assert bodies_of(messages) == sorted([*numbered(5), b"new"])


@pytest.mark.parametrize(
    "meta", ["2\n0,0\n0,{size}", "2\r\n0,0\r\n0,{size}\r\n", "2\n0,0\n0,{size}\nmore\n", "99\n0,0\n0,{size}\n"]
)
def test_meta_file_is_read_with_tolerance(connect: Connect, start_nsqd: StartNsqd, data_path: Path, meta: str) -> None:
    write_nsqd_dat(data_path, {"topic": ["channel"]})
    records = records_of(*numbered(2))
    write_queue(data_path, "topic:channel", records)
    size = sum(len(record.encoded) for record in records)
    meta_file(data_path, "topic:channel").write_bytes(meta.format(size=size).encode())
    assert bodies_of(drain(connect(start_nsqd()), "topic", "channel", 2)) == numbered(2)


# case 80
@pytest.mark.known_defect("D3")
def test_reader_at_the_end_of_a_full_file_does_not_call_it_bad(
    connect: Connect, start_nsqd: StartNsqd, data_path: Path
) -> None:
    daemon = start_nsqd("--mem-queue-size=0", "--max-bytes-per-file=500")
    conn, publisher = connect(daemon), connect(daemon)
    conn.subscribe("topic", "channel", ready=1)
    for body in numbered(60):
        publisher.publish("topic", body)
        message = conn.message()
        assert message.body == body
        conn.finish(message)
        conn.round_trip()
    assert not list(data_path.rglob("*.bad"))
