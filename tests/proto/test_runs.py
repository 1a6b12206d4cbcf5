"""Runs of FIN, TOUCH and REQ, against plain loops."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.proto import commands, runs

ids_lists = st.lists(st.binary(min_size=16, max_size=16), max_size=80)
words = st.sampled_from([(runs.FIN, None), (runs.TOUCH, None), (runs.REQ, 0), (runs.REQ, 90_000)])
WRITERS = {runs.FIN: commands.fin, runs.TOUCH: commands.touch}


def encode_by_loop(word: bytes, ids: list[bytes], delay_ms: int | None) -> bytes:
    if delay_ms is not None:
        return b"".join(commands.req(message_id, delay_ms) for message_id in ids)
    return b"".join(WRITERS[word](message_id) for message_id in ids)


def decode_by_loop(data: bytes, start: int, prefix: bytes, suffix: bytes) -> bytes:
    ids = b""
    while True:
        id_start = start + len(prefix)
        record = data[start : id_start + 16 + len(suffix)]
        message_id = data[id_start : id_start + 16]
        if record != prefix + message_id + suffix or len(message_id) < 16 or any(byte <= 0x20 for byte in message_id):
            return ids
        ids += message_id
        start += len(record)


@given(words, ids_lists)
def test_ids_become_a_run(word: tuple[bytes, int | None], ids: list[bytes]) -> None:
    assert runs.encode_run(word[0], b"".join(ids), word[1]) == encode_by_loop(word[0], ids, word[1])


@given(words, ids_lists, st.binary(max_size=40), st.binary(max_size=5), st.data())
def test_a_run_becomes_ids(
    word: tuple[bytes, int | None], ids: list[bytes], trailing: bytes, leading: bytes, data: st.DataObject
) -> None:
    run = bytearray(encode_by_loop(word[0], ids, word[1]))
    if run and data.draw(st.booleans()):
        run[data.draw(st.integers(0, len(run) - 1))] = data.draw(st.integers(0, 255))
    prefix = word[0] + b" "
    suffix = b"\n" if word[1] is None else b" %d\n" % word[1]
    arguments = (leading + run + trailing, len(leading), prefix, suffix)
    assert runs.decode_run(*arguments) == decode_by_loop(*arguments)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 500])
@pytest.mark.parametrize("blank", [0x00, 0x0A, 0x0D, 0x20])
def test_a_run_ends_before_an_id_that_means_something_else(count: int, blank: int) -> None:
    good = [b"%016x" % number for number in range(count)]
    for position in range(16):
        odd = bytearray(b"\x21" * 16)
        odd[position] = blank
        data = encode_by_loop(runs.FIN, [*good, bytes(odd), *good], None)
        assert runs.decode_run(data, 0, b"FIN ", b"\n") == b"".join(good)


def test_ids_need_not_be_text() -> None:
    ids = bytes(range(0x80, 0x90)) * 40 + b"\x21" * 16 * 40 + b"\xff" * 16 * 40
    assert runs.decode_run(runs.encode_run(runs.FIN, ids), 0, b"FIN ", b"\n") == ids


def test_ids_that_are_no_whole_number_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="multiple of element size"):
        runs.encode_run(runs.FIN, b"short")
