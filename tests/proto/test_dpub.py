"""DPUBs from columns, against the same made one by one."""

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_nsq.proto import commands
from pyspark_nsq.proto.dpub import encode_dpubs

BODIES = [b"a", b"bb" * 50, b"\x00\n", "ä".encode(), b"c" * 300]
DELAYS = [1, 3_600_000, 0, 7, 20]


def encode(bodies: pa.Array, delays: pa.Array, size_max: int = 2**20, count_max: int = 1000) -> list[tuple[int, bytes]]:
    batches = encode_dpubs("t", bodies, delays, batch_size_max=size_max, count_max=count_max)
    return [(batch.message_count, batch.data.to_pybytes()) for batch in batches]


def in_a_loop(bodies: list[bytes], delays: list[int], size_max: int, count_max: int) -> list[tuple[int, bytes]]:
    """What ``encode_dpubs`` has to make."""
    batches = [(0, b"")]
    for body, delay in zip(bodies, delays, strict=True):
        command = commands.dpub("t", delay, body)
        count, data = batches[-1]
        if count and (count == count_max or len(data) + len(command) > size_max):
            batches.append((1, command))
        else:
            batches[-1] = (count + 1, data + command)
    return batches if bodies else []


def one_by_one() -> list[bytes]:
    return [commands.dpub("t", delay, body) for delay, body in zip(DELAYS, BODIES, strict=True)]


@pytest.mark.parametrize("body_type", [pa.binary(), pa.large_binary()])
def test_it_is_the_same_as_one_by_one(body_type: pa.DataType) -> None:
    assert encode(pa.array(BODIES, body_type), pa.array(DELAYS)) == [(5, b"".join(one_by_one()))]


@pytest.mark.parametrize(
    ("size_max", "count_max", "counts"), [(1000, 2, [2, 2, 1]), (147, 9, [2, 2, 1]), (1, 9, [1] * 5)]
)
def test_batches_keep_to_size_and_count(size_max: int, count_max: int, counts: list[int]) -> None:
    found = encode(pa.array(BODIES), pa.array(DELAYS), size_max, count_max)
    assert [count for count, _ in found] == counts
    assert b"".join(data for _, data in found) == b"".join(one_by_one())


def test_slices_of_columns() -> None:
    bodies, delays = pa.array([b"x", *BODIES, b"y"]).slice(1, 5), pa.array([9, *DELAYS, 9]).slice(1, 5)
    assert encode(bodies, delays) == [(5, b"".join(one_by_one()))]


def test_strings() -> None:
    assert encode(pa.array(["ä"]), pa.array([5], pa.int8())) == [(1, commands.dpub("t", 5, "ä".encode()))]


def test_nothing_makes_nothing() -> None:
    assert encode(pa.array([], pa.binary()), pa.array([], pa.int64())) == []


# Batches that are filled to the last byte are rare by chance.
@example([(b"a", 1)] * 5, (1, 4), 2 * len(commands.dpub("t", 1, b"a")), 9, pa.binary())
@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=60), st.integers(0, 2**40)), max_size=20),
    st.tuples(st.integers(0, 20), st.integers(0, 20)),
    st.integers(1, 300),
    st.integers(1, 8),
    st.sampled_from([pa.binary(), pa.large_binary()]),
)
def test_it_is_the_same_as_a_loop(
    rows: list[tuple[bytes, int]], part: tuple[int, int], size_max: int, count_max: int, body_type: pa.DataType
) -> None:
    first, count = part
    bodies, delays = [body for body, _ in rows], [delay for _, delay in rows]
    columns = pa.array(bodies, body_type).slice(first, count), pa.array(delays, pa.int64()).slice(first, count)
    chosen = slice(first, first + count)
    assert encode(*columns, size_max, count_max) == in_a_loop(bodies[chosen], delays[chosen], size_max, count_max)
