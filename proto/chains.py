"""Where each of many records begins, that follow one another and tell their own sizes: all found at once.

To go from one to the next is a loop. Instead the places are looked for that look like the beginning of a record; the
real ones are those to which the first leads.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pyspark_nsq.proto.arrays import Bytes

Octets = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

SIZE_FIELD: Final = np.dtype(">u4")
# Never in more bytes at once: it takes some times their memory.
SEARCHED_SIZE_MAX: Final = 8 * 1024 * 1024
# Nor where more than one byte of so many looks like what is searched for.
_SHARE_MAX: Final = 8


def gather(data: Bytes, starts: npt.NDArray[Any], record: np.dtype[Any]) -> npt.NDArray[Any]:
    """The records that stand at ``starts``, whatever lies between them, one after the other."""
    if len(starts) == 0:
        return np.empty(0, record)
    opaque = np.dtype((np.void, record.itemsize))
    at_each_byte = np.ndarray((len(data) - record.itemsize + 1,), opaque, data, strides=(1,))
    records: npt.NDArray[Any] = at_each_byte[starts].view(record)
    return records


def find_octet(octets: Octets, wanted: int) -> Places:
    """Where it stands; nowhere, if it stands almost everywhere."""
    places = np.flatnonzero(octets == wanted)
    return places if len(places) <= len(octets) // _SHARE_MAX else places[:0]


def chain_borders(data: Bytes, starts: Places, size_min: int, size_max: int) -> npt.NDArray[np.int32]:
    """Where the records at the start of ``data`` begin, and as the last entry where what is none of them does.

    Each has a size of four bytes, and then so many bytes. They may begin at ``starts``, in their order. The first one
    begins at 0, and the next where it ends.
    """
    sizes = gather(data, starts, SIZE_FIELD).astype(np.int64)
    ends = starts + SIZE_FIELD.itemsize + sizes
    is_possible = (sizes >= size_min) & (sizes <= size_max) & (ends <= len(data))
    starts, ends = starts[is_possible], ends[is_possible]
    if len(starts) == 0 or starts[0] != 0:
        return np.zeros(1, np.int32)
    if not np.array_equal(ends[:-1], starts[1:]):
        is_reached = _reached(starts, ends)
        starts, ends = starts[is_reached], ends[is_reached]
    return np.append(starts, ends[-1]).astype(np.int32)


def _reached(starts: Places, ends: Places) -> npt.NDArray[np.bool_]:
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
