import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.broker.message_id import IDS_PER_TICK, TICK_SHIFT, TICKS_EPOCH, TICKS_LAG, IdGenerator, id_number

START = 1_763_000_000_000_000_000


def numbers(ids: tuple[bytes, int], count: int) -> list[int]:
    prefix, first = ids
    assert first + count <= IDS_PER_TICK
    return [int(b"%b%03x" % (prefix, first + at), 16) for at in range(count)]


@given(
    steps=st.lists(st.tuples(st.integers(-(10**9), 10**10), st.integers(1, IDS_PER_TICK)), max_size=50),
    node_id=st.integers(0, 1023),
)
def test_ids_ascend_whatever_the_clock_does_and_across_restarts(steps: list[tuple[int, int]], node_id: int) -> None:
    ids = IdGenerator(node_id)
    now, last = START, 0
    for number, (elapsed, count) in enumerate(steps):
        now += elapsed
        taken = numbers(ids.take(count, now), count)
        assert taken == list(range(taken[0], taken[0] + count))
        assert taken[0] > last
        last = taken[-1]
        assert ids.last == last
        if number % 3 == 0:
            ids = IdGenerator(node_id, last)


def test_an_id_tells_the_node_and_the_time_about() -> None:
    ids = IdGenerator(321)
    ids.take(5, START)
    for elapsed in (0, TICKS_LAG << TICK_SHIFT, 10**9, 10**12):
        (number,) = numbers(ids.take(1, START + elapsed), 1)
        assert number >> 12 & 0x3FF == 321
        age = START + elapsed - (((number >> 22) + TICKS_EPOCH) << TICK_SHIFT)
        assert 0 <= age <= TICKS_LAG + 1 << TICK_SHIFT


def test_another_node_id_after_a_restart_does_not_repeat_ids() -> None:
    last = numbers(IdGenerator(900).take(10, START), 10)[-1]
    assert numbers(IdGenerator(3, last).take(1, START), 1)[0] > last


def test_ids_keep_their_length_after_the_highest_of_all() -> None:
    prefix, _first = IdGenerator(1023, 2**64 - 1).take(1, START)
    assert len(prefix) == 13


def test_node_id_has_ten_bits() -> None:
    with pytest.raises(ValueError, match="1024"):
        IdGenerator(1024)


def test_foreign_ids_have_no_number() -> None:
    assert id_number(b"0000000000000010") == 16
    assert id_number(b"not hexadecimal!") == 0
    assert id_number(b"10") == 0
