"""Private folders of receivers: each holds a lock in its own for as long as it lives, and serves on a socket in it.

The lock is the kernel's: it goes with the process, however that ends. So others see which folders are left over.
"""

import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LOCK_NAME: Final = "lock"
# What a socket's path can be long at most, with some room.
_SOCKET_PATH_MAX: Final = 104


class FolderError(OSError):
    """A private folder that is not ours alone."""


def make_private(folder: Path) -> None:
    """Make the folder, or make sure that nobody else can get into it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    check_private(folder)


def check_private(folder: Path) -> None:
    """Raise ``FolderError`` unless it is a folder of this user's, and nobody else can look into it."""
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o170077 != 0o040000:
        raise FolderError(f"{folder} belongs to somebody else, or others may look into it")


def lock(folder: Path) -> int | None:
    """The descriptor that holds the folder's lock; None where a living process has it."""
    while True:
        path = folder / LOCK_NAME
        found = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(found), path.stat()):
                return found
            # A receiver has removed it on its way out.
        except BlockingIOError:
            os.close(found)
            return None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(found)
            raise
        os.close(found)
        folder.mkdir(mode=0o700, exist_ok=True)


def sweep(parent: Path, prefix: str, stale_s: float, own: Path | None = None) -> None:
    """Remove the folders of this prefix whose receivers were killed, but for those that are younger."""
    for folder in parent.glob(f"{prefix}*"):
        try:
            if folder == own or time.time() - folder.stat().st_mtime < stale_s:
                continue
            check_private(folder)
            lock_fd = lock(folder)
            if lock_fd is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock_fd)
        except OSError:
            continue  # Somebody else has done it, or it is none of ours.


@contextmanager
def locked_folder(prefix: str) -> Iterator[Path]:
    """A new folder of this prefix, which is gone afterwards; those that others have left are removed at once."""
    sweep(Path(tempfile.gettempdir()), prefix, stale_s=0)
    folder, lock_fd = _new_folder(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock_fd)


def _new_folder(prefix: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        try:
            lock_fd = lock(folder)
        except FileNotFoundError:
            continue  # Before it had its lock, it was swept.
        if lock_fd is not None:
            return folder, lock_fd


def new_socket(folder: Path) -> str:
    """The path for a unix socket there; empty where it would be too long for one."""
    path = str(folder / f"{secrets.token_hex(4)}.sock")
    return path if len(path) <= _SOCKET_PATH_MAX else ""
