"""The file system as the engine sees it: few calls, so that tests can hand in one that fails, tears or forgets."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Sequence
from typing import Final

Buffer = bytes | memoryview

_BUFFERS_PER_CALL: Final = 512  # IOV_MAX is 1024 on Linux


class DataPathError(OSError):
    """The data path does not exist, or another process owns it."""


class Files:
    """Real files; everything that is created has mode 0600 (directories 0700). All methods raise OSError."""

    def lock_directory(self, path: str) -> int:
        """Own `path` as long as the returned handle is open. The lock is on the directory itself, as Go's nsqd does."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise OSError(error.errno, "in use by another nsqd", path) from None
        return handle

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory; [] when there is no such directory."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return sorted(os.listdir(path))
        return []

    def make_directory(self, path: str) -> None:
        """Create it unless it exists."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)

    def remove_directory(self, path: str) -> None:
        """With all it contains; nothing when it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def link(self, path: str, other: str) -> None:
        """Give the file another name as well, unless that exists."""
        with contextlib.suppress(FileExistsError):
            os.link(path, other)

    def remove(self, path: str) -> None:
        """Nothing when it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def stamp(self, path: str) -> tuple[int, int] | None:
        """(size, time of change in ns), None when it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(path)
            return status.st_size, status.st_mtime_ns
        return None

    def open(self, path: str, *, create: bool = False) -> int:
        """For reading and, with `create`, for writing."""
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def close(self, handle: int) -> None:
        os.close(handle)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def read(self, handle: int, offset: int, length: int) -> bytes:
        """Less than `length` only at the end of the file."""
        return os.pread(handle, length, offset)

    def write(self, handle: int, offset: int, buffers: Sequence[Buffer], total: int) -> None:
        """All of `buffers` (`total` bytes) at `offset`; after an OSError any part of it may have been written."""
        if len(buffers) > _BUFFERS_PER_CALL:
            buffers = [b"".join(buffers)]
        written = os.pwritev(handle, buffers, offset)
        if written < total:
            self._write_rest(handle, offset + written, b"".join(buffers)[written:])

    @staticmethod
    def _write_rest(handle: int, offset: int, rest: bytes) -> None:
        """A short write is nearly always a full disk: trying on gets the error that says so."""
        while rest:
            written = os.pwrite(handle, rest, offset)
            rest = rest[written:]
            offset += written

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def sync_path(self, path: str) -> None:
        """fsync a file or directory by name; nothing when it has gone."""
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def read_file(self, path: str) -> bytes | None:
        """All of it; None when it does not exist."""
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def replace_file(self, path: str, data: bytes) -> None:
        """The file holds either what it held or `data`, whatever happens."""
        temporary = f"{path}.tmp"  # what a killed process has left of it is written over
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                self._write_rest(handle, 0, data)
                os.fsync(handle)
            finally:
                os.close(handle)
            os.rename(temporary, path)
        except BaseException:
            self.remove(temporary)
            raise
        self.sync_path(os.path.dirname(path) or ".")
