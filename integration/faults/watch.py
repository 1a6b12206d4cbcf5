"""Seeing a file the moment it appears."""

import ctypes
import os
import select
import struct
import time
from pathlib import Path

_CREATE_OR_MOVED_HERE = 0x100 | 0x80
_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class FolderWatch:
    """What appears in a folder from the moment on that this is made."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = _libc.inotify_init()
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "cannot watch folders")
        if _libc.inotify_add_watch(self._descriptor, bytes(folder), _CREATE_OR_MOVED_HERE) < 0:
            number = ctypes.get_errno()
            self.close()
            raise OSError(number, f"cannot watch {folder}")

    def wait(self, name: str, timeout_s: float) -> bool:
        """Returns as soon as something of this name has appeared."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._descriptor], [], [], left)[0] and name in self._names():
                return True
        return False

    def _names(self) -> list[str]:
        data, names = os.read(self._descriptor, 65536), []
        while data:
            *_, length = _EVENT.unpack_from(data)
            names.append(os.fsdecode(data[_EVENT.size : _EVENT.size + length].rstrip(b"\0")))
            data = data[_EVENT.size + length :]
        return names

    def close(self) -> None:
        os.close(self._descriptor)
