"""Print the folder that holds the wheel of this checkout with nsqd compiled (see compile_broker.py), unpacked, and in
``bin`` the daemons' programs. Built where it is not there yet; several may ask at once."""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAMS = ("nsqd", "nsqlookupd")
_PROGRAM = """#!{python}
import sys

sys.path.insert(0, {site!r})
from pyspark_nsq.launch import {program}

sys.exit({program}())
"""


def fingerprint() -> str:
    """Of the source, and of what it is compiled with."""
    digest = hashlib.sha256(sys.version.encode())
    sources = [
        path for room in ("broker", "connector", "proto", "src", "tools") for path in (ROOT / room).rglob("*.py")
    ]
    for path in (ROOT / "pyproject.toml", ROOT / "constraints.txt", *sorted(sources)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def compiled_wheel() -> Path:
    """The folder."""
    cache = ROOT / ".cache" / "compiled"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / fingerprint()
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache) as draft:
                made = Path(draft) / "made"
                _build(made)
                for program in PROGRAMS:
                    _write_program(made / "bin" / program, folder)
                made.rename(folder)
    return folder


def _build(folder: Path) -> None:
    """The wheel, and all that is in it."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    environment = os.environ | {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": "true"}
    ran = subprocess.run(
        command, check=False, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if ran.returncode:
        sys.exit(ran.stdout)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)


def _write_program(path: Path, site: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(_PROGRAM.format(python=sys.executable, site=str(site), program=path.name))
    path.chmod(0o755)


if __name__ == "__main__":
    print(compiled_wheel())
