"""Files and flags: the daemons' TOML, nsqd.dat, our logs and their state, and what Go's nsqd left in the data path.

Where a checksum guards what nsqd itself has written, an input is tried both as it is and sealed with the right
checksum, as the first byte says.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterable
from typing import Any

from simulation.memory_files import MemoryFiles

from fuzz.nsqd_targets import OPTIONS, FuzzedClient, world
from fuzz.target import KIB, MIB, Target
from pyspark_nsq.broker import flags, json_go
from pyspark_nsq.broker.flags import ExitError
from pyspark_nsq.broker.lookupd_options import LookupdOptions
from pyspark_nsq.broker.metadata import MetadataError
from pyspark_nsq.broker.nsqd_options import DEPRECATED_FLAGS, NsqdOptions
from pyspark_nsq.broker.segment import build_frame, new_segment, uniform_segment
from pyspark_nsq.proto import commands
from pyspark_nsq.proto.frames import MESSAGE, split_frames
from pyspark_nsq.proto.uniform import UniformBodies

_NOW = 1_700_000_000 * 10**9
_LOG = "data/t.log/00000000000000000000-00000000.log"
_STATE = "data/t.log/state"
_ROUNDS_MAX = 20


# Flags and TOML


def _resolve(arguments: list[str]) -> None:
    for options_type, accepted in ((NsqdOptions, DEPRECATED_FLAGS), (LookupdOptions, {})):
        try:
            options: Any = flags.resolve(options_type, "nsqd", arguments, accepted)
        except ExitError:
            continue
        if not isinstance(options, NsqdOptions) or options.problem() is None:
            # As GET /config tells them.
            json_go.dumps(flags.config_values(options))


def config_file(data: bytes) -> None:
    descriptor = os.memfd_create("config")
    try:
        os.write(descriptor, data)
        _resolve([f"--config=/proc/self/fd/{descriptor}"])
    finally:
        os.close(descriptor)


def command_line(data: bytes) -> None:
    """Arguments with line feeds between them."""
    # A file that it names is not this target's.
    arguments = data.decode("utf-8", "surrogateescape").replace("config", "confi").split("\n")
    _resolve([argument.replace("\0", "") for argument in arguments])


# The data path


def _open_and_drain(files: MemoryFiles) -> None:
    """Start an nsqd on these files, read and finish what its topic holds, end it, and start it again."""
    for _ in range(2):
        try:
            nsqd = world(OPTIONS, files)
        except (MetadataError, OSError):
            return
        client = FuzzedClient(nsqd)
        for said in (commands.MAGIC_V2, commands.sub("t", "c"), commands.rdy(OPTIONS.max_rdy_count)):
            client.session.receive(said, nsqd.now)
            client.settle()
        _finish_all(client)
        client.session.disconnected(nsqd.now)
        nsqd.engine.close(nsqd.now)


def _finish_all(client: FuzzedClient) -> None:
    for _ in range(_ROUNDS_MAX):
        frames, size = split_frames(client.received, 1 << 24)
        assert size == len(client.received), "half a frame was sent"
        client.received = b""
        ids = [frame.data[10:26] for frame in frames if frame.type == MESSAGE]
        if not ids or client.session.finished:
            return
        # The id of somebody else's message may be any 16 bytes.
        if not any(b"\n" in each or b" " in each for each in ids):
            client.session.receive(b"".join(map(commands.fin, ids)), client.world.now)
        client.settle()


def _files(contents: Iterable[tuple[str, bytes]]) -> MemoryFiles:
    files = MemoryFiles()
    files.directories.add("data/t.log")
    for path, content in contents:
        files.replace_file(path, content)
    return files


def metadata(data: bytes) -> None:
    _open_and_drain(_files([("data/nsqd.dat", data)]))


def log(data: bytes) -> None:
    """A log without state, after a crash. Sealed: each part between bars becomes a record."""
    content = data[1:]
    if data[:1] == b"s":
        content = b"".join(map(_record, data[1:].split(b"|")))
    _open_and_drain(_files([(_LOG, content)]))


def _record(text: bytes) -> bytes:
    """Four bytes say which messages they are, their number, their due time and their ids; the rest is their body.
    Half of the numbers mean that they are packed, as large MPUBs are."""
    place, count, due, kind, *body = text.ljust(4, b"\0")
    is_packed, count = count % 16 >= 8, count % 8 + 1
    bodies = [bytes(body) or b"x"] * count
    lengths = [len(bodies[0])] * count
    prefix, due_at = b"135950b844%03x" % (kind % 4), _NOW + due if due else 0
    if is_packed:
        uniform = UniformBodies(b"".join(map(commands.sized, bodies)), count)
        segment = uniform_segment(uniform, place, prefix, place * 7 % 4000, _NOW, due_at)
    else:
        segment = new_segment(bodies, lengths, place, prefix, place * 7 % 4000, _NOW, due_at)
    return b"".join(segment.record(0))


def state(data: bytes) -> None:
    """The state beside a log of ten messages. Sealed: every line gets its checksum."""
    content = data[1:]
    if data[:1] == b"s":
        content = b"".join(b"%08x %b\n" % (zlib.crc32(line), line) for line in content.split(b"\n") if line)
    messages = b"".join(_record(bytes((place, 0, 0, 0)) + b"body %d" % place) for place in range(10))
    _open_and_drain(_files([(_LOG, messages), (_STATE, content)]))


_METADATA = b'{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":false}]}],"version":"1.3.0"}'


def go_queue(data: bytes) -> None:
    """A disk queue's positions, a bar, and its file: the topic's, or as the first byte says the channel's."""
    name = "t:c" if data[:1] == b"c" else "t"
    positions, _, content = data[1:].partition(b"|")
    files = [("data/nsqd.dat", _METADATA), (f"data/{name}.diskqueue.000000.dat", content)]
    if positions:
        files.append((f"data/{name}.diskqueue.meta.dat", positions))
    _open_and_drain(_files(files))


def _go_record(number: int, message_id: bytes = b"") -> bytes:
    frame = build_frame(_NOW, 1, message_id or b"135950b8448%05x" % number, b"body %d" % number)
    return struct.pack(">i", len(frame) - 8) + frame[8:]


_GO_RECORDS = b"".join(map(_go_record, range(5)))
_CHANNEL = [0, [[3, 7]], 0, [[0, 1, 1]], [[1, 1, 1]], [[2, 1, 0, _NOW + 10**9]], [], True]
_JSON_STATE = json.dumps({"log": [0, 0, 10, 5], "held": [], "channels": {"c": _CHANNEL}}).encode()
_CHANGES = json.dumps(
    {"log": [0, 0, 10, 5], "held": [], "channels": {"c": [2, [], 1, [[1, 1, 2]], [], [], [2], False]}}
).encode()
_LATER_STATE = json.dumps(
    {"log": [0, 0, 10, 5], "held": [[4, 10]], "gone": ["c"], "imported": {"a": [1, 2, 0]}}
).encode()
_RECORDS = [bytes((place, count, 0, 0)) + b"body" for place, count in ((0, 1), (2, 9), (4, 1))]
_TOML = b'tcp_address = "127.0.0.1:0"\nmem_queue_size = 5\nmsg_timeout = "1s"\ntls_required = "tcp-https"\n'
_TOML_LISTS = b'nsqlookupd_tcp_addresses = ["a:1", "b:2"]\ne2e_processing_latency_percentiles = [1.0, "0.9", 1]\n'

TARGETS = [
    Target(
        "config-toml",
        config_file,
        [
            _TOML + _TOML_LISTS + b'log_level = "debug"\ndeflate = false\nid = 5\ntls_min_version = "tls1.3"\n',
            b'inactive_producer_timeout = 5\ntombstone_lifetime = "1m"\nbroadcast_address = "a"\n[x]\na = {b = 1}\n',
            b"e2e_processing_latency_percentiles = [" + b"9" * 400 + b"]",
            b"x = " + b"[" * 1500,
            b"sync_timeout = 1979-05-27T07:32:00Z\nstatsd_mem_stats = 2\nmsg_timeout = 1e400\n",
        ],
        [b"tls_required = ", b"e2e_processing_latency_percentiles = ", b"msg_timeout = ", b"nan", b"inf", b"0x"],
        fixed_memory=4 * MIB,
        runs=1500,
    ),
    Target(
        "flags",
        command_line,
        [
            b"--tcp-address=127.0.0.1:0\n-mem-queue-size\n0x10\n--msg-timeout=1h2m3.5s\n-deflate=false\n--worker-id",
            b"--e2e-processing-latency-percentile=1.0,0.99\n--log-level=debug\n--tls-required\n--tls-min-version=tls1.2",
            b"--help",
            b"--version",
            b"--tombstone-lifetime=1us\n--\nx",
        ],
        [b"--msg-timeout=", b"--e2e-processing-latency-percentile=", b"nan", b"1e999", b"--sync-timeout=", b"0o7"],
    ),
    Target(
        "nsqd-dat",
        metadata,
        [_METADATA, b"null", b'{"topics":null}', b'{"topics":[{"name":"t#ephemeral"},{"name":""}]}', b"[" * 2000],
        [b'"topics":', b'"channels":', b'"name":', b'"paused":', b"null", b"\\ud800", b"#ephemeral"],
        runs=1500,
    ),
    Target(
        "log-file",
        log,
        [b"s" + b"|".join(_RECORDS), b"r" + b"".join(map(_record, _RECORDS)), b"s" + b"|".join(_RECORDS[::-1])],
        [b"\xa7NSQ", b"|", b"\0\0\0\4"],
        fixed_memory=6 * MIB,
        runs=600,
    ),
    Target(
        "log-state",
        state,
        [
            b"s" + _JSON_STATE,
            b"s" + _JSON_STATE + b"\n" + _CHANGES + b"\n" + _LATER_STATE,
            b"r%08x %b\n" % (zlib.crc32(b"{}"), b"{}"),
        ],
        [b'"held":', b'"log":', b'"channels":', b'"gone":', b'"importing":', b"null", b"1e9", b"-1", b"[[0,1]]"],
        fixed_memory=6 * MIB,
        runs=600,
    ),
    Target(
        "go-queue",
        go_queue,
        [
            b"t3\n0,0\n0,200\n|" + _GO_RECORDS,
            b"c3\n0,46\n0,200\n|" + _GO_RECORDS + _go_record(9, b"\xff" * 16) + _go_record(10, b"x y\nz 0123456789"),
            b"t|" + _GO_RECORDS[:-3],
        ],
        [b"\0\0\0\x1a", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"0,0\n"],
        size_max=2 * KIB,
        fixed_memory=6 * MIB,
        runs=600,
    ),
]
