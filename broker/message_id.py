"""Message ids: NSQ's 64-bit guids as 16 lower-case hex characters, handed out in consecutive runs.

A guid is a tick of about a millisecond (42 bits), a node (10 bits) and a sequence within the tick (12 bits). Twelve
bits are exactly three hex characters, so all ids of one tick share their first 13 characters, and a run of consecutive
ids is described by that prefix, its first sequence number and a count. The whole engine relies on it.
"""

from __future__ import annotations

from typing import Final

TICK_SHIFT: Final = 20  # a tick is 2**20 ns
TICKS_EPOCH: Final = 1288834974288  # in ticks: what every NSQ node subtracts
IDS_PER_TICK: Final = 4096
ID_BYTES: Final = 16
PREFIX_BYTES: Final = 13

TICKS_LAG: Final = 64
"""A run may go on in a tick this far behind the clock (about 67 ms), so that messages published one by one get
consecutive ids and can be kept together."""

HEX3: Final = tuple(b"%03x" % number for number in range(IDS_PER_TICK))
HEX3_INDEX: Final = {text: number for number, text in enumerate(HEX3)}

_TICK_MASK: Final = (1 << 42) - 1


class IdGenerator:
    """Ascending ids of one topic. `last` is the highest id ever handed out on this node's topic, or 0."""

    __slots__ = ("_next", "_node_id", "_prefix", "_tick")

    def __init__(self, node_id: int, last: int = 0) -> None:
        if not 0 <= node_id < 1024:
            raise ValueError(f"node id {node_id} is not in 0..1023")
        self._node_id = node_id
        self._tick = last >> 22
        # Another node id may have been configured before: start after the whole of its tick.
        self._next = (last & 0xFFF) + 1 if last and (last >> 12) & 0x3FF == node_id else IDS_PER_TICK
        self._prefix = self._tick_prefix()

    def take(self, count: int, now: int) -> tuple[bytes, int]:
        """(prefix, first sequence number) of `count` consecutive ids; at most IDS_PER_TICK."""
        tick = (now >> TICK_SHIFT) - TICKS_EPOCH & _TICK_MASK
        first = self._next
        stop = first + count
        if stop > IDS_PER_TICK or tick > self._tick + TICKS_LAG:
            self._tick = max(tick, self._tick + 1) & _TICK_MASK
            self._prefix = self._tick_prefix()
            first, stop = 0, count
        self._next = stop
        return self._prefix, first

    @property
    def last(self) -> int:
        """The highest id handed out, for `IdGenerator(node_id, last)` after a restart."""
        return self._tick << 22 | self._node_id << 12 | min(self._next, IDS_PER_TICK) - 1 if self._next else 0

    def _tick_prefix(self) -> bytes:
        return b"%013x" % (self._tick << 10 | self._node_id)


def id_number(message_id: bytes) -> int:
    """The number of a guid, 0 for a foreign id that is not one."""
    try:
        return int(message_id, 16) if len(message_id) == ID_BYTES else 0
    except ValueError:
        return 0
