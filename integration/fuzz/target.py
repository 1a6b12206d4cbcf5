"""What a fuzzer feeds, and what it holds against it: any bytes end in a result or in a documented error.

Anything else that comes out of ``Target.run`` is a finding, and so is more memory than the input itself and the
declared limits account for.
"""

import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB
# tracemalloc makes everything slower: one input of so many is weighed. Which ones depends on the input alone, so that
# a finding repeats.
_WEIGHED_EVERY = 8


class TooMuchMemoryError(AssertionError):
    """An input cost more than its size and the limits account for."""


@dataclass(frozen=True)
class Target:
    """``run`` takes any bytes. An input may cost ``fixed_memory`` and so much more for each of its bytes.

    ``seeds`` are where a fuzzer begins, ``words`` what it would not guess. ``runs`` is how many inputs every test run
    tries: what takes half a second or so.
    """

    name: str
    run: Callable[[bytes], object]
    seeds: Sequence[bytes]
    words: Sequence[bytes] = ()
    size_max: int = 4 * KIB
    fixed_memory: int = 2 * MIB
    memory_per_byte: int = 64
    runs: int = 3000

    def check(self, data: bytes) -> None:
        """Run it, and weigh some inputs."""
        if zlib.crc32(data) % _WEIGHED_EVERY == 0:
            self.weigh(data)
        else:
            self.run(data)

    def weigh(self, data: bytes) -> None:
        """Run it, and hold the memory that it takes against what it may."""
        with _peak_below(self.fixed_memory + self.memory_per_byte * len(data)):
            self.run(data)


@contextmanager
def _peak_below(bytes_max: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > bytes_max:
        raise TooMuchMemoryError(f"{peak:,} bytes were taken, {bytes_max:,} are allowed")


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    """The data in pieces of a size, as a network brings it."""
    for start in range(0, len(data), size):
        yield data[start : start + size]
