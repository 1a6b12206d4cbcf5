"""The wheel whose daemons are compiled. tests/conformance runs against them as well."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def compiling(root: Path) -> ModuleType:
    """tools/compile_broker.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("compile_broker", root / "tools" / "compile_broker.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
def test_what_is_tested_of_the_source_holds_of_it(compiled_wheel: Path, root: Path) -> None:
    """Sessions, topics, channels, logs, crashes at every call: as they are tested without sockets."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "-m", "not interpreted"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV"))}
    ran = subprocess.run(
        [*command, "tests/broker", "tests/proto"],
        cwd=root,
        env=environment | {"PYTHONPATH": str(compiled_wheel)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-10_000:] + ran.stderr[-2_000:]
    assert re.search(r"\d{4} passed", ran.stdout)


def test_who_has_no_compiler_is_told(
    compiling: ModuleType, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compiling, "MODULES", ("proto/names",))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(compiling.CompileError, match=r"(?s)apt-get install gcc python3-dev.*no-such-compiler"):
        compiling.compile_into(tmp_path / "made", root)
