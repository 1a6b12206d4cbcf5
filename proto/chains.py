"""Where each of many records begins, that follow one another and tell their own sizes: all found at once.

To go from one to the next is a loop. Instead the places are looked for that look like the beginning of a record; the
real ones are those to which the first leads.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pyspark_nsq.proto.arrays import Bytes

Places: TypeAlias = npt.NDArray[np.int64]

SIZE_FIELD: Final = np.dtype(">u4")
_NO_BORDERS: Final = np.zeros(1, np.int32)
# From so many bytes on a search costs less than the loop.
_SEARCHED_SIZE_MIN: Final = 32 * 1024
# So many at once stay in the processor's cache; the search takes some times their memory.
_BLOCK_SIZE: Final = 1024 * 1024
# No search where more than one byte of so many looks like what is searched for.
_SHARE_MAX: Final = 8


def find_borders(
    data: Bytes,
    search: Callable[[memoryview], npt.NDArray[np.int32]],
    go_on: Callable[[int, int], Sequence[int]],
) -> npt.NDArray[np.int32]:
    """Where each whole record begins, and as the last entry where the first that is not whole does.

    Block by block: ``search`` finds those at the start of a block, which may be none. From there ``go_on`` goes from
    one to the next, until one begins behind the block. Both end with where they come to.
    """
    view, start, end = memoryview(data), 0, len(data)
    found: list[Sequence[int] | npt.NDArray[np.int32]] = []
    is_over = False
    while not is_over:
        stop = min(start + _BLOCK_SIZE, end)
        if stop - start >= _SEARCHED_SIZE_MIN:
            borders = search(view[start:stop]) + start
            found.append(borders[:-1])
            start = int(borders[-1])
        one_by_one = go_on(start, stop)
        found.append(one_by_one[:-1])
        start = one_by_one[-1]
        is_over = start < stop or start == end
    return np.concatenate([*found, [start]], dtype=np.int32)


def gather(data: Bytes, starts: npt.NDArray[Any], record: np.dtype[Any]) -> npt.NDArray[Any]:
    """The records that stand at ``starts``, whatever lies between them, one after the other."""
    if len(starts) == 0:
        return np.empty(0, record)
    opaque = np.dtype((np.void, record.itemsize))
    at_each_byte = np.ndarray((len(data) - record.itemsize + 1,), opaque, data, strides=(1,))
    records: npt.NDArray[Any] = at_each_byte[starts].view(record)
    return records


def find(is_wanted: npt.NDArray[np.bool_]) -> Places:
    """Where something stands that is wanted; nowhere, if it stands almost everywhere."""
    places = np.flatnonzero(is_wanted)
    return places if len(places) <= len(is_wanted) // _SHARE_MAX else places[:0]


def chain_borders(starts: Places, sizes: Places, *, size_min: int, size_max: int, end: int) -> npt.NDArray[np.int32]:
    """Where the records of a block of ``end`` bytes begin, and as the last entry where what is none of them does.

    Each has a size field, and then so many bytes. They may begin at ``starts``, in their order, where these sizes
    seem to stand. The first one begins at 0, and the next where it ends.
    """
    ends = starts + SIZE_FIELD.itemsize + sizes
    is_possible = (sizes >= size_min) & (sizes <= size_max) & (ends <= end)
    starts, ends = starts[is_possible], ends[is_possible]
    if len(starts) == 0 or starts[0] != 0:
        return _NO_BORDERS
    for is_real in (_are_ends, _are_ends, _are_reached):
        if np.array_equal(ends[:-1], starts[1:]):
            break
        chosen = is_real(starts, ends)
        starts, ends = starts[chosen], ends[chosen]
    return np.append(starts, ends[-1]).astype(np.int32)


def _are_ends(starts: Places, ends: Places) -> npt.NDArray[np.bool_]:
    """Those to which some other leads. What remains is mostly what the first leads to, and costs much less to find."""
    is_end = np.zeros(max(int(ends.max()), int(starts[-1])) + 1, np.bool_)
    is_end[0] = True
    is_end[ends] = True
    return is_end[starts]


def _are_reached(starts: Places, ends: Places) -> npt.NDArray[np.bool_]:
    """Those to which the first leads: each turn goes twice as far."""
    nowhere = len(starts)
    leads_to = np.searchsorted(starts, ends)
    leads_to[np.append(starts, -1)[leads_to] != ends] = nowhere
    leads_to = np.append(leads_to, nowhere)
    is_reached = np.zeros(nowhere + 1, np.bool_)
    is_reached[0] = True
    while leads_to[0] != nowhere:
        is_reached[leads_to[is_reached]] = True
        leads_to = leads_to[leads_to]
    return is_reached[:nowhere]
