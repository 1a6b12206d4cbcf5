"""A file system in memory that fails, tears writes, is killed, and forgets what was not synced: all on demand."""

import errno
import os
import random
from collections.abc import Sequence

from pyspark_nsq.broker.files import Buffer, Files


class Killed(BaseException):
    """The process has died in the middle of a call."""


class Inode:
    """A file's content now, and as of its last fsync."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""
        self.unreadable: list[range] = []


class MemoryFiles(Files):
    """Paths are plain strings; directories exist once made."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.entries: dict[str, Inode] = {}
        self.directories = {"data"}
        self._durable_entries: dict[str, Inode] = {}
        self._durable_directories = {"data"}
        self.handles: dict[int, Inode] = {}
        self.locked: dict[int, str] = {}
        self._next_handle = 100
        self.calls = 0  # that change something
        self.fail_from: int | None = None  # these calls raise `error` ...
        self.fail_until: int | None = None
        self.kill_at: int | None = None  # ... and this one kills
        self.error = errno.ENOSPC
        self.truncate_fails = False
        self.sync_fails = False
        self.read_error: int | None = None
        self.capacity: int | None = None  # bytes on the disk
        self.synced_paths: list[str] = []
        self.listed: list[str] = []
        self.reads = 0
        self.replaced_paths: list[str] = []

    # --- faults ------------------------------------------------------------------------------------------------

    def _step(self) -> str:
        """What happens to the next call that changes something."""
        self.calls += 1
        if self.kill_at is not None and self.calls >= self.kill_at:
            return "kill"
        failing = self.fail_from is not None and self.calls >= self.fail_from
        return "fail" if failing and (self.fail_until is None or self.calls < self.fail_until) else ""

    def _change(self) -> None:
        fate = self._step()
        if fate == "kill":
            raise Killed
        if fate == "fail":
            raise OSError(self.error, os.strerror(self.error))

    def _room(self) -> int:
        """How many more bytes the disk takes."""
        if self.capacity is None:
            return 1 << 60
        return max(0, self.capacity - sum(len(inode.data) for inode in self.entries.values()))

    def heal(self) -> None:
        """No more faults."""
        self.fail_from = self.fail_until = self.kill_at = None
        self.truncate_fails = self.sync_fails = False
        self.read_error = None

    def kill(self) -> None:
        """The process is gone: its handles and locks too; what it wrote stays."""
        self.handles.clear()
        self.locked.clear()
        self.heal()

    def lose_power(self) -> None:
        """As `kill`, and what was not synced is lost, or a part of it; new names may have got to the disk anyway."""
        self.kill()
        for path in sorted(self.directories):
            if self.random.random() < 0.5:
                self._sync_entries(path)
        self.entries = dict(self._durable_entries)
        self.directories = set(self._durable_directories)
        for inode in self.entries.values():
            unsynced = bytes(inode.data[len(inode.synced) :]) if inode.data.startswith(inode.synced) else b""
            kept = self.random.choice([b"", unsynced[: self.random.randint(0, len(unsynced))], bytes(len(unsynced))])
            inode.data = bytearray(inode.synced + kept)

    # --- Files -------------------------------------------------------------------------------------------------

    def lock_directory(self, path: str) -> int:
        if path not in self.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if path in self.locked.values():
            raise OSError(errno.EWOULDBLOCK, "in use by another nsqd", path)
        self._next_handle += 1
        self.locked[self._next_handle] = path
        return self._next_handle

    def list_directory(self, path: str) -> list[str]:
        self.listed.append(path)
        names = [*self.entries, *self.directories]
        return sorted(os.path.basename(name) for name in names if os.path.dirname(name) == path)

    def make_directory(self, path: str) -> None:
        if path not in self.directories:
            self._change()
            self.directories.add(path)

    def remove_directory(self, path: str) -> None:
        self._change()
        self.directories.discard(path)
        self.entries = {name: inode for name, inode in self.entries.items() if os.path.dirname(name) != path}

    def rename(self, old: str, new: str) -> None:
        self._change()
        if old in self.directories:
            self.directories.remove(old)
            self.directories.add(new)
            moved = {name: inode for name, inode in self.entries.items() if os.path.dirname(name) == old}
            for name, inode in moved.items():
                del self.entries[name]
                self.entries[os.path.join(new, os.path.basename(name))] = inode
        else:
            self.entries[new] = self.entries.pop(old)

    def remove(self, path: str) -> None:
        self._change()
        self.entries.pop(path, None)

    def stamp(self, path: str) -> tuple[int, int] | None:
        if path in self.entries:
            return len(self.entries[path].data), 1
        return (0, 1) if path in self.directories else None

    def open(self, path: str, *, create: bool = False) -> int:
        if not create and self.read_error is not None:
            raise OSError(self.read_error, os.strerror(self.read_error), path)
        if path not in self.entries:
            if not create or os.path.dirname(path) not in self.directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._change()
            self.entries[path] = Inode()
        self._next_handle += 1
        self.handles[self._next_handle] = self.entries[path]
        return self._next_handle

    def close(self, handle: int) -> None:
        if self.locked.pop(handle, None) is None:
            del self.handles[handle]

    def size(self, handle: int) -> int:
        return len(self.handles[handle].data)

    def link(self, path: str, other: str) -> None:
        self._change()
        self.entries.setdefault(other, self.entries[path])

    def read(self, handle: int, offset: int, length: int) -> bytes:
        self.reads += 1
        inode = self.handles[handle]
        stop = min(offset + length, len(inode.data))
        if any(max(offset, bad.start) < min(stop, bad.stop) for bad in inode.unreadable):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return bytes(inode.data[offset:stop])

    def write(self, handle: int, offset: int, buffers: Sequence[Buffer], total: int) -> None:
        data = b"".join(buffers)
        assert len(data) == total
        fate = self._step()
        if fate:
            data = data[: self.random.randint(0, len(data))]
        content = self.handles[handle].data
        room = self._room() + max(0, len(content) - offset)
        if len(data) > room:
            data, fate = data[:room], fate or "fail"
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data
        if fate == "kill":
            raise Killed
        if fate == "fail":
            raise OSError(self.error, os.strerror(self.error))

    def truncate(self, handle: int, size: int) -> None:
        if self.truncate_fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self._step() == "kill":
            raise Killed
        content = self.handles[handle].data
        del content[size:]
        content.extend(bytes(size - len(content)))

    def sync_path(self, path: str) -> None:
        if self.sync_fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self._step() == "kill":
            raise Killed
        self.synced_paths.append(path)
        if path in self.entries:
            self.entries[path].synced = bytes(self.entries[path].data)
        elif path in self.directories:
            self._sync_entries(path)

    def _sync_entries(self, path: str) -> None:
        durable = {name: inode for name, inode in self._durable_entries.items() if os.path.dirname(name) != path}
        durable.update((name, inode) for name, inode in self.entries.items() if os.path.dirname(name) == path)
        self._durable_entries = durable
        kept = {name for name in self._durable_directories if os.path.dirname(name) != path}
        self._durable_directories = kept | {name for name in self.directories if os.path.dirname(name) == path}

    def read_file(self, path: str) -> bytes | None:
        return bytes(self.entries[path].data) if path in self.entries else None

    def replace_file(self, path: str, data: bytes) -> None:
        self.replaced_paths.append(path)
        fate = self._step()
        if fate == "fail":
            raise OSError(self.error, os.strerror(self.error))
        if fate == "kill" and self.random.random() < 0.5:
            raise Killed
        if len(data) > self._room():  # the old file stays until the new one is whole
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        inode = Inode()
        inode.data = bytearray(data)
        inode.synced = bytes(data)
        self.entries[path] = inode
        self._sync_entries(os.path.dirname(path))
        if fate:
            raise Killed
