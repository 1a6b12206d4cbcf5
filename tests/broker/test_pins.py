"""Pins against a plain count of the messages in each file."""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given
from simulation.memory_files import MemoryFiles

from pyspark_nsq.broker.log import Log
from pyspark_nsq.broker.log_file import LogFile
from pyspark_nsq.broker.open_logs import OpenLogs
from pyspark_nsq.broker.pins import Pins


def log_of(sizes: list[int], base: int) -> Log:
    log = Log(MemoryFiles(), "data", 1000, print, OpenLogs(1))
    for size in sizes:
        file = LogFile(f"data/{base}", base, 0, size)
        base += size
        file.end = base
        log.log_files.append(file)
    log.end = base
    return log


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 5), st.data())
def test_files_are_pinned_as_long_as_they_hold_a_message(sizes: list[int], base: int, data: st.DataObject) -> None:
    log = log_of(sizes, base)
    pins = Pins(log)
    entries: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(0, 20))):
        if entries and data.draw(st.booleans()):
            seq, count = entries.pop(data.draw(st.integers(0, len(entries) - 1)))
            taken = data.draw(st.integers(1, count))
            pins.remove(seq, taken)
            if taken < count:
                entries.append((seq + taken, count - taken))
        else:
            seq = data.draw(st.integers(0, log.end - 1))
            entries.append((seq, data.draw(st.integers(1, log.end - seq))))
            pins.add(*entries[-1])
        messages = Counter(seq + at for seq, count in entries for at in range(count))
        expected = {(file.base, file.end) for file in log.log_files if any(file.base <= m < file.end for m in messages)}
        assert set(pins.ranges()) == expected
    pins.clear()
    assert pins.ranges() == []
