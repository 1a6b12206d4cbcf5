"""Whatever a client sends, and in whatever pieces: an answer by the protocol, never an exception of another kind."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.session_world import Client, World

from pyspark_nsq.broker.nsqd_options import NsqdOptions
from pyspark_nsq.proto import commands
from pyspark_nsq.proto.frames import ERROR, MESSAGE, RESPONSE

NAMES = st.sampled_from(["t", "u", "t#ephemeral"])
IDS = st.binary(min_size=16, max_size=16)
COMMANDS = st.one_of(
    st.builds(commands.pub, NAMES, st.binary(min_size=1, max_size=5)),
    st.builds(commands.dpub, NAMES, st.integers(0, 10_000), st.binary(min_size=1, max_size=5)),
    st.builds(commands.mpub, NAMES, st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=12)),
    st.builds(commands.sub, NAMES, st.sampled_from(["c", "c#ephemeral"])),
    st.builds(commands.rdy, st.integers(0, 2501)),
    st.builds(commands.fin, IDS),
    st.builds(commands.touch, IDS),
    st.builds(commands.req, IDS, st.integers(0, 10**20)),
    st.builds(commands.identify, st.fixed_dictionaries({"heartbeat_interval": st.integers(-2, 2000)})),
    st.sampled_from([commands.NOP, commands.CLS, commands.auth(b"secret"), b"\n", b"PUB t\n\0\0\0\5ab"]),
    st.binary(max_size=20),
)


def conversation(data: bytes, pieces: list[int]) -> list[tuple[int, bytes] | str]:
    """What a session answers to the bytes when they come in pieces of these sizes. Ids and times are left out."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), NsqdOptions())
        try:
            client = Client(world)
            start = 0
            while start < len(data) and not client.session.finished:
                size = pieces[start % len(pieces)]
                client.session.receive(data[start : start + size], world.now)
                start += size
            if not client.session.finished:
                client.session.end_of_input(world.now)
            heard = client.heard()
        finally:
            world.engine.close(world.now)
    return [(frame[0], frame[1][26:]) if frame[0] == MESSAGE else frame for frame in heard]


@settings(max_examples=60)
@given(st.lists(COMMANDS, max_size=12), st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_pieces_make_no_difference(parts: list[bytes], pieces: list[int]):
    data = commands.MAGIC_V2 + b"".join(parts)
    whole = conversation(data, [len(data)])
    assert conversation(data, pieces) == whole
    assert conversation(data, [1]) == whole
    assert {frame[0] for frame in whole if isinstance(frame, tuple)} <= {RESPONSE, ERROR, MESSAGE}
