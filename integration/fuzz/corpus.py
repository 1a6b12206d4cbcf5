"""Inputs that are kept: those that together reach everything, and those that once found something.

A file of text for each target, an input a line in base64: they are read, compared and merged like the rest of the code.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path

_FOLDER = Path(__file__).parent
# Each target reads all of its own in every test run.
SIZE_MAX = 16 * 1024


def kept(target: str) -> list[bytes]:
    """What reaches everything that was ever reached."""
    return _read(_path("corpus", target))


def found(target: str) -> list[bytes]:
    """What once did harm."""
    return _read(_path("findings", target))


def keep(target: str, inputs: Iterable[bytes]) -> None:
    """Replace the corpus: the shortest first, as many as there is room for."""
    lines, size = [], 0
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        size += len(b64encode(data)) + 1
        if size <= SIZE_MAX:
            lines.append(data)
    _write(_path("corpus", target), lines)


def add_finding(target: str, data: bytes) -> None:
    inputs = found(target)
    if data not in inputs:
        _write(_path("findings", target), [*inputs, data])


def _path(kind: str, target: str) -> Path:
    return _FOLDER / kind / f"{target}.txt"


def _read(path: Path) -> list[bytes]:
    return [b64decode(line) for line in path.read_text().splitlines()] if path.exists() else []


def _write(path: Path, inputs: Iterable[bytes]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(b64encode(data).decode() + "\n" for data in inputs))
