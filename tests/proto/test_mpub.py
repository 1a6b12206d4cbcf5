"""MPUB from and to a column of bodies, against plain loops."""

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.proto import commands
from pyspark_nsq.proto.errors import WireError
from pyspark_nsq.proto.mpub import BodyError, Mpub, decode_mpub, encode_mpubs, message_count_max

MESSAGE_SIZE_MAX = 50


def split_by_loop(bodies: list[bytes], body_size_max: int, count_max: int) -> list[list[bytes]]:
    """Which bodies go together: as many as fit, in their order."""
    groups: list[list[bytes]] = []
    size = 0
    for body in bodies:
        if not groups or size + 4 + len(body) > body_size_max or len(groups[-1]) == count_max:
            groups.append([])
            size = 4
        groups[-1].append(body)
        size += 4 + len(body)
    return groups


def decode_by_loop(payload: bytes) -> list[bytes]:
    (count,) = struct.unpack_from(">I", payload)
    position = 4
    bodies = []
    for _ in range(count):
        (size,) = struct.unpack_from(">I", payload, position)
        if not 1 <= size <= MESSAGE_SIZE_MAX or position + 4 + size > len(payload):
            raise ValueError
        bodies.append(payload[position + 4 : position + 4 + size])
        position += 4 + size
    if position != len(payload) or not bodies:
        raise ValueError
    return bodies


bodies_lists = st.lists(st.binary(min_size=1, max_size=MESSAGE_SIZE_MAX), max_size=30)


# Bodies within which messages seem to begin.
lookalikes = st.lists(st.sampled_from([b"\0", b"\0\0\0\1", b"\0\0\0\4body"]), min_size=1, max_size=6).map(b"".join)
lookalike_lists = st.lists(st.binary(min_size=1, max_size=MESSAGE_SIZE_MAX) | lookalikes, min_size=1, max_size=30)


def whole(mpub: Mpub) -> bytes:
    return mpub.head + mpub.messages.to_pybytes()


@given(bodies_lists, st.integers(58, 300), st.integers(1, 10))
def test_a_column_becomes_commands(bodies: list[bytes], body_size_max: int, count_max: int) -> None:
    column = pa.array(bodies, pa.binary())
    mpubs = list(
        encode_mpubs("t", column, message_size_max=MESSAGE_SIZE_MAX, body_size_max=body_size_max, count_max=count_max)
    )
    groups = split_by_loop(bodies, body_size_max, count_max)
    assert [whole(mpub) for mpub in mpubs] == [commands.mpub("t", group) for group in groups]
    assert [bodies[mpub.first : mpub.first + mpub.message_count] for mpub in mpubs] == groups
    assert all(len(whole(mpub)) - len("MPUB t\n") - 4 <= body_size_max for mpub in mpubs)
    assert all(mpub.message_count <= message_count_max(body_size_max) for mpub in mpubs)


@given(bodies_lists, st.integers(0, 30), st.integers(0, 30))
def test_slices_of_a_column(bodies: list[bytes], first: int, length: int) -> None:
    column = pa.array(bodies, pa.binary()).slice(first, length)
    mpubs = encode_mpubs("t", column, message_size_max=MESSAGE_SIZE_MAX, body_size_max=10_000)
    expected = bodies[first : first + length]
    assert [whole(mpub) for mpub in mpubs] == ([commands.mpub("t", expected)] if expected else [])


@given(bodies_lists, st.integers(60, 200))
def test_a_column_larger_than_arrow_joins_at_once(bodies: list[bytes], joined_size_max: int) -> None:
    column = pa.array(bodies, pa.binary())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspark_nsq.proto.mpub.BUFFER_SIZE_MAX", joined_size_max)
        mpubs = list(encode_mpubs("t", column, message_size_max=MESSAGE_SIZE_MAX, body_size_max=100))
    for mpub in mpubs:
        assert whole(mpub) == commands.mpub("t", bodies[mpub.first : mpub.first + mpub.message_count])
    assert sum(mpub.message_count for mpub in mpubs) == len(bodies)


@pytest.mark.parametrize(("batch_size_max", "counts"), [(1, [1, 1, 1, 1]), (22, [2, 1, 1]), (1000, [4])])
def test_a_message_larger_than_a_batch_goes_alone(batch_size_max: int, counts: list[int]) -> None:
    bodies = [b"12345", b"12345", b"x" * 100, b"1"]
    column = pa.array(bodies)
    made = list(encode_mpubs("t", column, message_size_max=100, body_size_max=1000, batch_size_max=batch_size_max))
    assert [mpub.message_count for mpub in made] == counts
    parts = [bodies[mpub.first : mpub.first + mpub.message_count] for mpub in made]
    assert [whole(mpub) for mpub in made] == [commands.mpub("t", part) for part in parts]


def test_string_columns() -> None:
    mpubs = encode_mpubs("t", pa.array(["grün", "blau"]), message_size_max=9, body_size_max=100)
    assert [whole(mpub) for mpub in mpubs] == [commands.mpub("t", ["grün".encode(), b"blau"])]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (None, "row 1 is null"),
        (b"", "row 1 is empty"),
        (b"x" * (MESSAGE_SIZE_MAX + 1), "row 1 has 51 bytes, more than 50"),
    ],
)
def test_a_body_that_nsqd_refuses_is_named_before_anything_is_made(bad: bytes | None, reason: str) -> None:
    column = pa.array([b"good", bad, b"good"], pa.binary())
    with pytest.raises(BodyError, match=reason) as caught:
        encode_mpubs("t", column, message_size_max=MESSAGE_SIZE_MAX, body_size_max=1000)
    assert caught.value.row == 1
    assert "xx" not in str(caught.value)


def test_a_body_that_fits_no_mpub_is_refused() -> None:
    with pytest.raises(BodyError, match="row 0 has 50 bytes, more than 42"):
        encode_mpubs("t", pa.array([b"x" * 50]), message_size_max=MESSAGE_SIZE_MAX, body_size_max=50)


@pytest.mark.usefixtures("way")
@given(lookalike_lists, st.sampled_from([bytes, bytearray, memoryview]))
def test_a_payload_becomes_a_column(bodies: list[bytes], buffer_type: type) -> None:
    payload = commands.mpub("t", bodies)[len("MPUB t\n") + 4 :]
    column = decode_mpub(buffer_type(payload), MESSAGE_SIZE_MAX)
    column.validate(full=True)
    assert column.to_pylist() == bodies == decode_by_loop(payload)


@pytest.mark.usefixtures("way")
@given(lookalike_lists, st.data())
def test_a_damaged_payload_ends_as_in_the_loop(bodies: list[bytes], data: st.DataObject) -> None:
    payload = bytearray(commands.mpub("t", bodies)[len("MPUB t\n") + 4 :])
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(payload[: data.draw(st.integers(0, len(payload)))]) + data.draw(st.binary(max_size=9))
    try:
        expected = decode_by_loop(damaged)
    except (ValueError, struct.error):
        with pytest.raises(WireError):
            decode_mpub(damaged, MESSAGE_SIZE_MAX)
    else:
        assert decode_mpub(damaged, MESSAGE_SIZE_MAX).to_pylist() == expected


@pytest.mark.parametrize("large_at", [0, 700, 999])
def test_one_of_64_kib_and_more_may_stand_between_small_ones(large_at: int) -> None:
    bodies = [bytes([index % 256]) * (index % 100 + 1) for index in range(1000)]
    bodies[large_at] = b"x" * (64 * 1024)
    payload = commands.mpub("t", bodies)[len("MPUB t\n") + 4 :]
    assert decode_mpub(payload, 100_000).to_pylist() == bodies


@pytest.mark.interpreted
def test_more_than_a_column_has_room_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = commands.mpub("t", [b"body"])[len("MPUB t\n") + 4 :]
    monkeypatch.setattr("pyspark_nsq.proto.mpub.BUFFER_SIZE_MAX", len(payload))
    assert decode_mpub(payload, MESSAGE_SIZE_MAX).to_pylist() == [b"body"]
    with pytest.raises(ValueError, match="an MPUB of 13 bytes is more than 12"):
        decode_mpub(payload + b"x", MESSAGE_SIZE_MAX)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"\0\0", "2 bytes has no message count"),
        (b"\0\0\0\0", "message count 0 is not in"),
        (b"\xff\xff\xff\xff" + b"\0\0\0\1a", "message count 4294967295 is not in 1..1, what 9 bytes hold"),
        (b"\0\0\0\2" + b"\0\0\0\x0aaaaaaaaaaa", "ends before message 1 of 2"),
        (b"\0\0\0\1" + b"\0\0\0\0aaaaaaaaaa", "size of the message at byte 0, 0, is not in 1..50"),
        (b"\0\0\0\1" + b"\xff\xff\xff\xffaaaaaaaaaa", "size of the message at byte 0, 4294967295, is not in 1..50"),
        (b"\0\0\0\1" + b"\0\0\0\x09aaa", "last message has 9 bytes, 6 more than the payload"),
        (b"\0\0\0\1" + b"\0\0\0\1aaaa", "3 bytes follow the last of 1 messages"),
    ],
)
def test_lengths_are_not_believed(payload: bytes, text: str) -> None:
    with pytest.raises(WireError, match=text):
        decode_mpub(payload, MESSAGE_SIZE_MAX)
