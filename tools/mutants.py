"""Plant one fault after the other in a copy of the package, and expect tests to fail each time.

A fault is a text that stands exactly once in a file and what takes its place. First the tests run on a copy without
a fault: there they must pass, or finding the faults would mean nothing.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from os import environ
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# A fault may hang what it is in, and then every test of a selection waits in vain.
PATIENCE_SECONDS = 300


class Fault(NamedTuple):
    """What is planted where, and which tests should see it: a file of the suite and an expression for -k."""

    name: str
    path: str
    text: str
    becomes: str
    tests: tuple[str, str]


class Suite(NamedTuple):
    """Tests, which of them in any case, and how they come to use the copy in a folder."""

    folder: Path
    expression: str
    use_copy: Callable[[Path], Mapping[str, str]]


def run_suite(suite: Suite, folder: Path, selections: set[tuple[str, str]] | None) -> tuple[bool, str]:
    """Whether the tests pass on the copy, and what pytest said at the end."""
    targets, expressions = [str(suite.folder)], [suite.expression]
    if selections is not None:
        targets = [str(suite.folder / f"test_{file}.py") for file in sorted({file for file, _ in selections})]
        expressions.append(f"({' or '.join(sorted({words for _, words in selections}))})")
    expression = " and ".join(filter(None, expressions))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-k", expression]
    try:
        done = subprocess.run(
            [*command, "--timeout=60", *targets],
            cwd=ROOT,
            env={**environ, **suite.use_copy(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"still running after {PATIENCE_SECONDS} s"
    # 0: all passed, 1: some failed. Anything else is no answer: nothing was selected, or the suite itself is broken.
    if done.returncode not in {0, 1}:
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    told = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode == 0, told[0] if told else done.stdout.strip().splitlines()[-1]


def plant(folder: Path, fault: Fault) -> str:
    """Put the fault into the copy; what stood there before."""
    path = folder / "pyspark_nsq" / fault.path
    source = path.read_text()
    if source.count(fault.text) != 1:
        raise SystemExit(f"{fault.name}: {fault.text!r} stands {source.count(fault.text)} times in {fault.path}")
    path.write_text(source.replace(fault.text, fault.becomes))
    return source


def try_fault(suite: Suite, folder: Path, fault: Fault, *, everything: bool) -> bool:
    """Whether the suite sees the fault; prints its row."""
    source = plant(folder, fault)
    start = time.monotonic()
    try:
        passed, told = run_suite(suite, folder, None if everything else {fault.tests})
    finally:
        (folder / "pyspark_nsq" / fault.path).write_text(source)
    seen = "NOT SEEN" if passed else "seen"
    by = told.partition(" - ")[0].removeprefix(f"FAILED {suite.folder.relative_to(ROOT)}/")
    print(f"{fault.name:<48} {seen:<9} {time.monotonic() - start:5.1f} s  {by}", flush=True)
    return not passed


def main(description: str, suite: Suite, known: Sequence[Fault]) -> int:
    """Try the faults; 1 if one stays unseen."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("words", nargs="*", help="only faults whose names contain one of these")
    parser.add_argument("--all", action="store_true", help="run the whole suite against each fault")
    asked = parser.parse_args()
    faults = [fault for fault in known if not asked.words or any(word in fault.name for word in asked.words)]
    if not faults:
        parser.error("no fault has such a name")
    with tempfile.TemporaryDirectory(prefix="nsq-mutants-") as name:
        folder = Path(name)
        # With its links followed.
        shutil.copytree(
            ROOT / "src" / "pyspark_nsq", folder / "pyspark_nsq", ignore=shutil.ignore_patterns("__pycache__")
        )
        for fault in faults:  # a fault that cannot be planted should not be found out only at its turn
            (folder / "pyspark_nsq" / fault.path).write_text(plant(folder, fault))
        passed, told = run_suite(suite, folder, None if asked.all else {fault.tests for fault in faults})
        if not passed:
            raise SystemExit(f"the suite fails without any fault: {told}")
        unseen = [fault.name for fault in faults if not try_fault(suite, folder, fault, everything=asked.all)]
    print(f"{len(faults) - len(unseen)} of {len(faults)} faults were seen")
    return 1 if unseen else 0
