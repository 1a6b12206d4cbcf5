"""Runs of the fuzzer, and what comes of them."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fuzz import corpus
from fuzz.reach import smallest
from fuzz.target import Target

NOT_HERE = "atheris has no wheel for this Python or machine: fuzzing needs CPython 3.11 to 3.13 on Linux x86-64"
_WORKER = [sys.executable, "-P", "-m", "fuzz.worker"]
_INPUT_TIMEOUT_S = 10
_DONE = re.compile(r"^Done (\d+) runs", re.MULTILINE)
_STEP = re.compile(r"^#(\d+)\s.*?\bcov: (\d+)", re.MULTILINE)
_TEXT_SHOWN = 4000


@dataclass(frozen=True)
class Settings:
    """Without ``seconds`` and ``runs`` each target has its own number of inputs; with ``keeps`` what was learned and
    found is remembered."""

    runs: int | None = None
    seconds: int = 0
    seed: int = 1
    at_once: int = 1
    keeps: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of one target."""

    target: str
    inputs: int
    reached: int
    seconds: float
    findings: list[bytes]
    # What the fuzzer said, where it did not end well.
    failure: str

    @property
    def passed(self) -> bool:
        return not self.findings and not self.failure


def is_available() -> bool:
    return importlib.util.find_spec("atheris") is not None


def fuzz(targets: Sequence[Target], settings: Settings, module: str = "fuzz.all_targets") -> Iterator[Outcome]:
    """Feed each of these targets of the module, and tell of each as soon as it has ended."""
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-")))
        runs = {target.name: _Run(target, folder / target.name, settings) for target in targets}
        said = ending.enter_context((folder / "said").open("w+"))
        worker = subprocess.Popen(
            [*_WORKER, module, str(settings.at_once), *(run.job for run in runs.values())],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        ending.callback(worker.wait)
        ending.callback(worker.kill)
        assert worker.stdout is not None
        ended = set()
        with worker.stdout:
            for line in worker.stdout:
                name, code, seconds = line.split()
                ended.add(name)
                yield runs[name].outcome(int(code), float(seconds))
        if missing := set(runs) - ended:
            said.seek(0)
            raise RuntimeError(f"the fuzzer ended before {', '.join(sorted(missing))}: {said.read()[-_TEXT_SHOWN:]}")


class _Run:
    """One target's folder: inputs, words, what was found and what was said."""

    def __init__(self, target: Target, folder: Path, settings: Settings) -> None:
        self._target = target
        self._keeps = settings.keeps
        self._inputs, self._findings, self._output = folder / "inputs", folder / "findings", folder / "output"
        self._inputs.mkdir(parents=True)
        self._findings.mkdir()
        self._fill()
        words = folder / "words"
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
        limit = f"-max_total_time={settings.seconds}" if settings.seconds else f"-runs={settings.runs or target.runs}"
        self.job = json.dumps(
            [
                *(target.name, str(self._output), limit, f"-seed={settings.seed}", f"-max_len={target.size_max}"),
                *(f"-dict={words}", f"-timeout={_INPUT_TIMEOUT_S}", f"-artifact_prefix={self._findings}/"),
                str(self._inputs),
            ]
        )

    def _fill(self) -> None:
        name = self._target.name
        for number, data in enumerate([*self._target.seeds, *corpus.kept(name), *corpus.found(name)]):
            (self._inputs / f"{number:05}").write_bytes(data)

    def outcome(self, code: int, seconds: float) -> Outcome:
        text = self._output.read_text(errors="backslashreplace")
        findings = [path.read_bytes() for path in sorted(self._findings.iterdir())]
        steps, done = _STEP.findall(text), _DONE.search(text)
        inputs = int(done[1]) if done else int(steps[-1][0]) if steps else 0
        if self._keeps:
            for data in findings:
                corpus.add_finding(self._target.name, data)
            if code == 0:
                known = [path.read_bytes() for path in self._inputs.iterdir()]
                corpus.keep(self._target.name, smallest(self._target, known))
        failure = "" if code == 0 else text[-_TEXT_SHOWN:] or f"exit code {code}"
        return Outcome(self._target.name, inputs, int(steps[-1][1]) if steps else 0, seconds, findings, failure)


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)
