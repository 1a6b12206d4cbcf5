"""Private folders with a lock: who has one, and who cleans up after those that were killed."""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_nsq.connector.folders import FolderError, lock, locked_folder, make_private, new_socket, sweep


def test_a_lock_that_is_removed_while_one_waits_for_it_is_not_taken(tmp_path: Path) -> None:
    make_private(tmp_path / "folder")
    first = lock(tmp_path / "folder")
    assert first is not None
    assert lock(tmp_path / "folder") is None
    (tmp_path / "folder" / "lock").unlink()
    second = lock(tmp_path / "folder")
    assert second is not None
    assert lock(tmp_path / "folder") is None
    for each in (first, second):
        fcntl.flock(each, fcntl.LOCK_UN)
        os.close(each)


def test_a_folder_that_others_can_use_is_refused(tmp_path: Path) -> None:
    make_private(tmp_path / "own")
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    make_private(tmp_path / "own")
    (tmp_path / "own").chmod(0o755)
    with pytest.raises(FolderError):
        make_private(tmp_path / "own")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(FolderError):
        make_private(tmp_path / "link")


def test_only_what_the_dead_have_left_is_swept(tmp_path: Path) -> None:
    for name in ("held", "left", "young", "own", "another-prefix"):
        make_private(tmp_path / f"x-{name}")
        (tmp_path / f"x-{name}" / "a.sock").touch()
        os.utime(tmp_path / f"x-{name}", (1000, 1000))
    (tmp_path / "x-another-prefix").rename(tmp_path / "y-left")
    os.utime(tmp_path / "x-young")
    make_private(tmp_path / "x-open")
    (tmp_path / "x-open").chmod(0o755)
    os.utime(tmp_path / "x-open", (1000, 1000))
    held = lock(tmp_path / "x-held")
    assert held is not None
    os.utime(tmp_path / "x-held", (1000, 1000))
    sweep(tmp_path, "x-", stale_s=60, own=tmp_path / "x-own")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x-held", "x-open", "x-own", "x-young", "y-left"]
    os.close(held)
    sweep(tmp_path, "x-", stale_s=60)
    assert not (tmp_path / "x-held").exists()


def test_a_new_folder_is_held_and_takes_the_place_of_what_was_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make_private(tmp_path / "x-left")
    with locked_folder("x-") as first, locked_folder("x-") as second:
        assert lock(first) is None
        assert sorted(tmp_path.iterdir()) == sorted([first, second])
        assert first.stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.iterdir())


def test_a_socket_s_path_is_short_enough_or_not_used() -> None:
    assert new_socket(Path("/tmp/a")).startswith("/tmp/a/")
    assert new_socket(Path("/tmp") / ("a" * 100)) == ""


class Operated:
    """An nsq-receiver of an operator."""

    def __init__(self, folder: Path) -> None:
        token = folder / "token"
        token.write_text("0123456789abcdef")
        command = [sys.executable, "-P", "-m", "pyspark_nsq.connector.nsq_receiver", "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, "--token-file", str(token)],
            env=os.environ | {"TMPDIR": str(folder)},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr
        assert any("listening on" in line for line in self.process.stderr)


@pytest.fixture
def host() -> Iterator[Path]:
    """Its path is short enough for a socket's."""
    with tempfile.TemporaryDirectory(prefix="host-") as folder:
        yield Path(folder)


def test_a_killed_nsq_receiver_leaves_nothing_once_there_is_another(host: Path) -> None:
    first = Operated(host)
    (folder,) = host.glob("nsq-receiver-*")
    assert list(folder.glob("*.sock"))
    first.process.kill()
    first.process.wait()
    second = Operated(host)
    assert [folder] != list(host.glob("nsq-receiver-*"))
    assert len(list(host.glob("nsq-receiver-*"))) == 1
    second.process.terminate()
    assert second.process.wait(30) == 0
    assert not list(host.glob("nsq-receiver-*"))
