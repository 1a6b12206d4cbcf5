"""The wheel whose daemons are compiled. tests/conformance runs against them as well."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


def test_it_holds_the_same_code_and_what_was_compiled(compiled_wheel: Path, compiling: ModuleType, root: Path) -> None:
    (wheel,) = compiled_wheel.glob("*.whl")
    assert re.fullmatch(r"pyspark_nsq-.+-cp3\d+-cp3\d+-linux_\w+\.whl", wheel.name)
    compiled = {path.relative_to(compiled_wheel).as_posix().partition(".")[0] for path in compiled_wheel.rglob("*.so")}
    assert compiled == {f"pyspark_nsq/{module}" for module in compiling.MODULES} | {"pyspark_nsq__mypyc"}
    for room in ("broker", "connector", "proto"):
        for path in (root / room).rglob("*.py"):
            assert (compiled_wheel / "pyspark_nsq" / path.relative_to(root)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd"])
def test_the_daemons_say_that_they_are_compiled(compiled_wheel: Path, program: str) -> None:
    ran = subprocess.run([compiled_wheel / "bin" / program, "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(rf"{program} v1\.3\.0 \(built w/python3\.\d+\.\d+-compiled\)\n", ran.stdout)


@pytest.mark.timeout(1200)
def test_what_is_tested_of_the_source_holds_of_it(compiled_wheel: Path, compiling: ModuleType, root: Path) -> None:
    """Sessions, topics, channels, logs, crashes at every call: as they are tested without sockets."""
    rooms_and_names = [module.split("/") for module in compiling.MODULES]
    files = {path for room, name in rooms_and_names for path in (root / "tests" / room).glob(f"test_{name}*.py")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "-m", "not interpreted"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV"))}
    ran = subprocess.run(
        [*command, *sorted(files), root / "tests" / "broker" / "test_crash.py"],
        cwd=root,
        env=environment | {"PYTHONPATH": str(compiled_wheel)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-10_000:] + ran.stderr[-2_000:]
    assert re.search(r"\d{3} passed", ran.stdout)


def test_who_has_no_compiler_is_told(
    compiling: ModuleType, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O")
    with pytest.raises(compiling.CompileError, match=r"without no-such-compiler \(Debian: apt-get install gcc"):
        compiling.compile_into(tmp_path / "made", root)
    assert not list(tmp_path.iterdir())
