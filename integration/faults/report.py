"""What came of the faults: one row each, kept in a file, shown as a table.

Several processes may append to one report. Rows are lines of JSON in ``rows.jsonl`` in the folder that the environment
variable NSQ_FAULTS_REPORT names, or that the caller does; without either they are not kept. ``write`` makes
``report.md`` and ``report.json`` of them.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

FOLDER_VARIABLE = "NSQ_FAULTS_REPORT"
_ROWS = "rows.jsonl"


@dataclass(frozen=True)
class Row:
    """A fault and what it did. ``lost`` has to be 0; ``duplicated`` too, where duplicates are not allowed.

    ``fault`` says what was done, ``victim`` to whom, ``broker`` is "go", "ours" or "-" where none takes part.
    ``published`` counts what was acknowledged, or the inputs of a fuzzer, ``lost`` what never came back, or crashes.
    ``seed``, ``name`` and ``is_long`` repeat the run: ``./run faults --only NAME --seed SEED [--long]``.
    """

    fault: str
    victim: str
    broker: str
    runs: int
    published: int
    lost: int
    duplicated: int
    duplicates_allowed: bool
    seconds: float
    seed: int
    name: str = ""
    # What went wrong otherwise: it fails the row whatever the numbers say.
    failure: str = ""
    is_long: bool = False

    @property
    def passed(self) -> bool:
        return not self.lost and not self.failure and (self.duplicates_allowed or not self.duplicated)

    @property
    def command(self) -> str:
        """What repeats the run; without a name that is more than the suite knows."""
        if not self.name:
            return f"seed {self.seed}"
        return f"./run faults --only '{self.name}' --seed {self.seed}{' --long' * self.is_long}"


def append(row: Row, folder: Path | None = None) -> None:
    """Add a row to the report, if there is one."""
    named = folder or os.environ.get(FOLDER_VARIABLE)
    if not named:
        return
    path = Path(named) / _ROWS
    path.parent.mkdir(parents=True, exist_ok=True)
    # One write at the end of the file: rows of several processes do not mix.
    line = json.dumps(asdict(row)).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def load(folder: Path) -> list[Row]:
    path = folder / _ROWS
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def merged(rows: Iterable[Row]) -> list[Row]:
    """One row for all runs of the same fault on the same victim and broker; failed ones stay by themselves."""
    sums: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key: tuple[object, ...] = (row.fault, row.victim, row.broker, row.duplicates_allowed)
        if not row.passed:
            key += (row.name, row.seed, len(sums))
        before = sums.get(key)
        sums[key] = _added(before, row) if before else row
    return list(sums.values())


def _added(one: Row, other: Row) -> Row:
    return replace(
        one,
        runs=one.runs + other.runs,
        published=one.published + other.published,
        lost=one.lost + other.lost,
        duplicated=one.duplicated + other.duplicated,
        seconds=one.seconds + other.seconds,
    )


_HEADINGS = ("fault", "victim", "broker", "runs", "published", "lost", "duplicated", "allowed", "seconds", "result")


def table(rows: Iterable[Row]) -> str:
    """A table in Markdown, numbers to the right."""
    lines = [_cells(_HEADINGS), "|---|---|---|--:|--:|--:|--:|---|--:|---|"]
    for row in rows:
        allowed = "yes" if row.duplicates_allowed else "no"
        counts = (f"{row.runs:,}", f"{row.published:,}", f"{row.lost:,}", f"{row.duplicated:,}")
        result = "ok" if row.passed else "FAILED"
        lines.append(_cells((row.fault, row.victim, row.broker, *counts, allowed, f"{row.seconds:.0f}", result)))
    return "\n".join(lines) + "\n"


def _cells(values: Sequence[object]) -> str:
    return "| " + " | ".join(str(value).replace("|", "\\|").replace("\n", " ") for value in values) + " |"


def write(folder: Path, title: str, facts: dict[str, Any]) -> list[Row]:
    """Make ``report.md`` and ``report.json`` of the rows so far, and return them. Of several processes the last one has
    them all."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _write(folder, title, facts)


def _write(folder: Path, title: str, facts: dict[str, Any]) -> list[Row]:
    rows = load(folder)
    failed = [row for row in rows if not row.passed]
    text = [f"# {title}\n"]
    text += [f"- {name}: {value}" for name, value in facts.items()]
    text.append(_summary(rows, failed))
    text.append(table(merged(rows)))
    text += [_replay(row) for row in failed]
    (folder / "report.md").write_text("\n".join(text))
    content = {"facts": facts, "rows": [asdict(row) | {"passed": row.passed} for row in rows]}
    (folder / "report.json").write_text(json.dumps(content, indent=1) + "\n")
    return rows


def _summary(rows: Sequence[Row], failed: Sequence[Row]) -> str:
    published, lost = sum(row.published for row in rows), sum(row.lost for row in rows)
    duplicated, runs = sum(row.duplicated for row in rows), sum(row.runs for row in rows)
    counts = f"{runs:,} runs, {published:,} published, {lost:,} lost, {duplicated:,} duplicated"
    return f"- result: {counts}; {len(failed)} of {len(rows)} faults FAILED\n" if failed else f"- result: {counts}\n"


def _replay(row: Row) -> str:
    what = f"{row.fault}, {row.victim}, {row.broker}: {row.failure or 'see the numbers'}"
    return f"FAILED: {what}. To repeat it: `{row.command}`\n"
