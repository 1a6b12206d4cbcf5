import os
import stat
from pathlib import Path

import pytest

from pyspark_nsq.broker.files import Files


@pytest.fixture
def files() -> Files:
    return Files()


def test_a_directory_is_locked_for_others_until_it_is_closed(files: Files, tmp_path: Path) -> None:
    handle = files.lock_directory(str(tmp_path))
    with pytest.raises(OSError, match="in use by another nsqd"):
        files.lock_directory(str(tmp_path))
    files.close(handle)
    files.close(files.lock_directory(str(tmp_path)))


def test_everything_made_is_for_the_owner_only(files: Files, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        files.make_directory(str(tmp_path / "d"))
        files.close(files.open(str(tmp_path / "opened"), create=True))
        files.replace_file(str(tmp_path / "replaced"), b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
    for name in ("opened", "replaced"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_writes_land_where_they_should_however_many_buffers(files: Files, tmp_path: Path) -> None:
    handle = files.open(str(tmp_path / "f"), create=True)
    pieces = [b"%d," % number for number in range(3000)]
    total = sum(map(len, pieces))
    files.write(handle, 0, [b"head"], 4)
    files.write(handle, 4, pieces, total)
    files.write(handle, 4 + total, [memoryview(b"the tail")[4:]], 4)
    assert files.size(handle) == total + 8
    assert files.read(handle, 0, 1 << 20) == b"head" + b"".join(pieces) + b"tail"
    files.truncate(handle, 4)
    assert files.read(handle, 2, 100) == b"ad"
    files.close(handle)


def test_a_short_write_goes_on_until_it_is_whole(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = files.open(str(tmp_path / "f"), create=True)
    whole = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: whole(fd, b"".join(buffers)[:3], offset))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: whole(fd, data[:2], offset))
    files.write(handle, 0, [b"abc", b"defgh"], 8)
    assert files.read(handle, 0, 100) == b"abcdefgh"
    files.close(handle)


def test_replacing_leaves_the_old_content_when_it_fails(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    files.replace_file(str(path), b"old")

    def refuse(_old: str, _new: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="No space"):
        files.replace_file(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_what_a_kill_left_of_a_replacement_is_written_over(files: Files, tmp_path: Path) -> None:
    (tmp_path / "f.tmp").write_bytes(b"a long text that never came to be")
    files.replace_file(str(tmp_path / "f"), b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["f"]


def test_what_is_not_there_is_no_error_where_that_is_the_aim(files: Files, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    files.remove(missing)
    files.remove_directory(missing)
    files.sync_path(missing)
    assert files.list_directory(missing) == []
    assert files.stamp(missing) is None
    assert files.read_file(missing) is None
    (tmp_path / "file").write_bytes(b"12")
    assert files.list_directory(str(tmp_path / "file")) == []
    stamp = files.stamp(str(tmp_path / "file"))
    assert stamp is not None
    assert stamp[0] == 2
    with pytest.raises(FileNotFoundError):
        files.open(missing)
    with pytest.raises(FileNotFoundError):
        files.open(str(tmp_path / "no" / "file"), create=True)


def test_a_file_lives_on_under_its_other_name(files: Files, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"content")
    for _ in range(2):
        files.link(str(tmp_path / "f"), str(tmp_path / "f.bad"))
    files.remove(str(tmp_path / "f"))
    assert (tmp_path / "f.bad").read_bytes() == b"content"
