"""Messages of one size as an MPUB holds them, each behind its size: there is no object for a message."""

from collections.abc import Iterator
from struct import Struct
from typing import Final

SIZE_FIELD_SIZE: Final = 4
_SIZE: Final = Struct(">I")


class UniformBodies:
    """What a list of bodies tells (how many, and one after the other), and the bytes that they came in."""

    __slots__ = ("count", "messages", "stride")

    def __init__(self, messages: bytes, count: int) -> None:
        self.messages = messages
        self.count = count
        self.stride = len(messages) // count  # of a message, with its size field

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[bytes]:
        for start in range(SIZE_FIELD_SIZE, len(self.messages), self.stride):
            yield self.messages[start : start + self.stride - SIZE_FIELD_SIZE]

    def part(self, start: int, stop: int) -> "UniformBodies":
        """Messages start .. stop - 1; not copied where these are all."""
        stop = min(stop, self.count)
        return UniformBodies(self.messages[start * self.stride : stop * self.stride], stop - start)


def is_uniform(buffer: bytes, start: int, end: int, count: int) -> bool:
    """Whether what stands there is ``count`` messages of one size, and nothing else."""
    stride, rest = divmod(end - start, count)
    if rest or stride <= SIZE_FIELD_SIZE:
        return False
    size = _SIZE.pack(stride - SIZE_FIELD_SIZE)
    # A column of equal bytes for each byte of the size. The last one, where sizes differ most, is looked at first.
    return (
        buffer[start + 3 : end : stride] == size[3:] * count
        and buffer[start + 2 : end : stride] == size[2:3] * count
        and buffer[start + 1 : end : stride] == size[1:2] * count
        and buffer[start:end:stride] == size[:1] * count
    )
