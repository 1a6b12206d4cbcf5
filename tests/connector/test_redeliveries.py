"""For how long a receiver knows again what it has finished."""

import math
import tracemalloc
from collections import Counter

import pytest
from model_nsqd import ModelNsqd, connection_of, lose, run, started

from pyspark_nsq.connector.redeliveries import Redeliveries

AFTER_S = 100.0


def ids(*numbers: int) -> bytes:
    return b"".join(b"%016d" % number for number in numbers)


def known(redeliveries: Redeliveries, *numbers: int) -> list[int]:
    """Which of them are known to be committed; once told, they are not any more."""
    _, _, committed = redeliveries.sort_out(ids(*numbers))
    return [int(message_id) for message_id in committed]


def pass_time(redeliveries: Redeliveries, first_s: int, end_s: int, is_there: bool = True) -> None:
    for now in range(first_s, end_s):
        redeliveries.forget(float(now), AFTER_S if is_there else math.inf)


def test_each_is_forgotten_in_its_time_whatever_else_is_committed() -> None:
    redeliveries = Redeliveries()
    for now in range(0, 300, 10):
        redeliveries.commit(ids(now), float(now))
        pass_time(redeliveries, now, now + 10)
    assert known(redeliveries, *range(0, 300, 10)) == list(range(200, 300, 10))
    redeliveries.commit(ids(1), 300.0)
    assert redeliveries
    pass_time(redeliveries, 300, 402)
    assert not redeliveries


def test_what_is_committed_once_more_is_known_from_then_on() -> None:
    redeliveries = Redeliveries()
    redeliveries.commit(ids(1, 2), 0.0)
    pass_time(redeliveries, 0, 50)
    redeliveries.commit(ids(1), 50.0)
    pass_time(redeliveries, 50, 140)
    assert known(redeliveries, 1, 2) == [1]


def test_a_time_without_nsqd_does_not_count() -> None:
    redeliveries = Redeliveries()
    pass_time(redeliveries, 0, 10)
    redeliveries.commit(ids(1, 2), 10.0)
    pass_time(redeliveries, 10, 1000, is_there=False)
    pass_time(redeliveries, 1000, 1090)
    assert known(redeliveries, 1) == [1]
    pass_time(redeliveries, 1090, 1110)
    assert known(redeliveries, 2) == []


def test_nor_does_one_in_which_the_process_stood_still() -> None:
    redeliveries = Redeliveries()
    pass_time(redeliveries, 0, 10)
    redeliveries.commit(ids(1), 10.0)
    pass_time(redeliveries, 10_000, 10_090)
    assert known(redeliveries, 1) == [1]


def test_beyond_the_limit_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_nsq.connector.redeliveries.COMMITTED_MAX", 3)
    redeliveries = Redeliveries()
    redeliveries.commit(ids(1, 2), 0.0)
    redeliveries.commit(ids(3, 4, 5), 1.0)
    assert known(redeliveries, 1, 2, 3, 4, 5) == [3, 4, 5]


def test_what_is_forgotten_takes_no_memory() -> None:
    redeliveries = Redeliveries()
    tracemalloc.start()
    try:
        redeliveries.commit(ids(*range(10_000)), 0.0)
        taken, _ = tracemalloc.get_traced_memory()
        pass_time(redeliveries, 0, 102)
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not redeliveries
    assert left < taken / 10


def test_finished_messages_are_forgotten_though_connections_keep_breaking() -> None:
    nsqd = ModelNsqd(timeout_s=10, timeout_s_max=30)
    core = started(nsqd)
    finished: list[bytes] = []
    for second in range(300):
        if second % 20 == 0:
            lose(core, nsqd, connection_of(nsqd), float(second))
        finished += nsqd.publish(1)
        run(core, nsqd, second + 0.5)
        core.finish(core.lane.end, second + 0.5)
    assert nsqd.finished == Counter(finished[:-1])
    # nsqd can deliver them again for half a minute, and the receiver allows for a minute more.
    _, known = core.judge(nsqd.source, b"".join(finished))
    assert known == b"".join(finished[-len(known) // 16 :])
    assert 90 <= len(known) // 16 <= 90 + 20 + 1
