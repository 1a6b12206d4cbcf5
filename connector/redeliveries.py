"""Messages of one source that nsqd may deliver again although this receiver has, or had, them."""

import math
from collections.abc import Container, Iterable, Iterator
from itertools import islice, takewhile
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_nsq.proto.arrays import fixed_width_values
from pyspark_nsq.proto.frames import MESSAGE_ID_SIZE

# Ids of committed messages to remember, some 100 bytes each.
COMMITTED_MAX: Final = 1_000_000
# A longer time in which nobody looked counts for no more: this process stood still.
_LOOK_S_MAX: Final = 1.0


def id_column(messages: pa.RecordBatch) -> memoryview:
    """The ids of messages, one after the other."""
    column = messages.column("id")
    start = column.offset * MESSAGE_ID_SIZE
    return memoryview(column.buffers()[1])[start : start + len(column) * MESSAGE_ID_SIZE]


def split_ids(ids: bytes | memoryview) -> list[bytes]:
    """A column of ids as one object each."""
    column = bytes(ids)
    return [column[start : start + MESSAGE_ID_SIZE] for start in range(0, len(column), MESSAGE_ID_SIZE)]


def delivered_again(messages: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Which of them nsqd has delivered before, to whomever."""
    return fixed_width_values(messages.column("attempts"), np.uint16) > 1


def without_repeats(messages: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The same in parts, none of which has a message twice: what was long on its way may come again right behind."""
    first, seen = 0, set[bytes]()
    if delivered_again(messages).any():
        for row, message_id in enumerate(split_ids(id_column(messages))):
            if message_id in seen:
                yield messages.slice(first, row - first)
                first, seen = row, set()
            seen.add(message_id)
    yield messages.slice(first)


class Redeliveries:
    """``held`` are still in the lane, at a position; ``committed`` must only be finished when they come."""

    def __init__(self) -> None:
        self.held: dict[bytes, int] = {}
        # Since when, by a clock that stands still while nsqd is not there to deliver them; the oldest come first.
        self._committed: dict[bytes, float] = {}
        self._absent_s = 0.0
        self._looked_at = math.inf

    def __bool__(self) -> bool:
        return bool(self.held or self._committed)

    def hold(self, ids: bytes | memoryview, first: int) -> None:
        """These may come again, and have the positions from ``first`` on."""
        self.held.update(zip(split_ids(ids), range(first, first + len(ids) // MESSAGE_ID_SIZE), strict=True))

    def release(self, ids: bytes | memoryview) -> None:
        """These are no longer held."""
        for message_id in split_ids(ids):
            self.held.pop(message_id, None)

    def commit(self, ids: bytes | memoryview | Iterable[bytes], now: float) -> None:
        """These are done, but nsqd may not know."""
        clock_s = now - self._absent_s
        for message_id in split_ids(ids) if isinstance(ids, bytes | memoryview) else ids:
            self._committed.pop(message_id, None)
            self._committed[message_id] = clock_s
        if (excess := len(self._committed) - COMMITTED_MAX) > 0:
            self._drop(list(islice(self._committed, excess)))

    def forget(self, now: float, after_s: float) -> None:
        """Let go of the committed that nsqd could have delivered for so long; for ever means that it is not there."""
        is_there = after_s < math.inf
        self._absent_s += max(0.0, now - self._looked_at - (_LOOK_S_MAX if is_there else 0.0))
        self._looked_at = now
        end_s = now - self._absent_s - after_s
        self._drop([each for each, _ in takewhile(lambda item: item[1] < end_s, self._committed.items())])

    def _drop(self, ids: list[bytes]) -> None:
        for message_id in ids:
            del self._committed[message_id]
        if not self._committed:
            # It is empty, but has room for as many as it had.
            self._committed.clear()

    def sort_out(self, ids: bytes | memoryview) -> tuple[npt.NDArray[np.bool_], list[tuple[bytes, int]], list[bytes]]:
        """Of messages that arrive: which are new, which are held and where, which are committed."""
        is_new = np.ones(len(ids) // MESSAGE_ID_SIZE, np.bool_)
        held, committed = [], []
        for row, message_id in enumerate(split_ids(ids)):
            if (position := self.held.get(message_id)) is not None:
                held.append((message_id, position))
                is_new[row] = False
            elif message_id in self._committed:
                del self._committed[message_id]
                committed.append(message_id)
                is_new[row] = False
        return is_new, held, committed

    def judge(self, ids: bytes | memoryview, also_committed: Container[bytes]) -> tuple[bytes, bytes]:
        """Of messages that came to somebody else: which are held, and which are committed."""
        known = split_ids(ids)
        held = [each for each in known if each in self.held]
        done = [each for each in known if each in self._committed or each in also_committed]
        committed = [each for each in done if each not in self.held]
        return b"".join(held), b"".join(committed)
