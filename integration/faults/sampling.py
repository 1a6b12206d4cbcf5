"""Memory and file descriptors of processes over time, and whether they grow."""

import csv
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

# What a process takes in its first time is its start, not growth.
WARM_UP_S = 90.0
# Growth over all the time that a role was observed, in one process or several one after the other, that is no noise.
_MEMORY_GROWTH_MAX_MIB = 16.0
_MEMORY_GROWTH_MAX_PART = 0.1
_FILES_GROWTH_MAX = 10.0
# Of less nothing can be told, which a run has to say that was long enough to tell.
OBSERVED_S_MIN = 240.0
LONG_RUN_S = 20 * 60.0


class Sample(NamedTuple):
    at_s: float
    role: str
    pid: int
    age_s: float
    memory_mib: float
    files: int


@dataclass(frozen=True)
class Growth:
    """Of all processes of a role: slopes are per hour, within each process, after its warm-up; ``observed_s`` is the
    time in which there was one. That of several at once counts once: what happens to all of them at a moment, as when
    an nsqd comes back with what has piled up, would else count for as many rises as there are processes."""

    role: str
    processes: int
    samples: int
    memory_mib: float
    memory_max_mib: float
    memory_slope: float
    files: float
    files_slope: float
    observed_s: float

    def complaint(self, run_s: float) -> str:
        """Empty where it does not grow, and where the run was too short to tell."""
        if self.observed_s < OBSERVED_S_MIN:
            brief = f"{self.role} was observed for {self.observed_s / 60:.1f} minutes only: its growth is not known"
            return brief if run_s >= LONG_RUN_S else ""
        observed_h = self.observed_s / 3600
        if self.memory_slope * observed_h > _MEMORY_GROWTH_MAX_MIB + _MEMORY_GROWTH_MAX_PART * self.memory_mib:
            return f"the memory of {self.role} grows by {self.memory_slope:.0f} MiB an hour"
        if self.files_slope * observed_h > _FILES_GROWTH_MAX:
            return f"the file descriptors of {self.role} grow by {self.files_slope:.0f} an hour"
        return ""


class Sampler:
    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._began = time.monotonic()

    def look(self, roles: Mapping[str, Iterable[psutil.Process]]) -> None:
        at_s, now = time.monotonic() - self._began, time.time()
        for role, processes in roles.items():
            for process in processes:
                try:
                    memory, files, age_s = process.memory_info().rss, process.num_fds(), now - process.create_time()
                except psutil.NoSuchProcess:
                    continue
                self.samples.append(Sample(at_s, role, process.pid, age_s, memory / 2**20, files))

    def growths(self) -> list[Growth]:
        """Of every role that there was, also where none of its processes became old enough."""
        by_role: dict[str, dict[int, list[Sample]]] = defaultdict(lambda: defaultdict(list))
        for sample in self.samples:
            by_pid = by_role[sample.role]
            if sample.age_s >= WARM_UP_S:
                by_pid[sample.pid].append(sample)
        return [_growth(role, by_role[role]) for role in sorted(by_role)]

    def save(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(Sample._fields)
            writer.writerows(self.samples)


def _growth(role: str, by_pid: Mapping[int, list[Sample]]) -> Growth:
    samples = [sample for each in by_pid.values() for sample in each]
    return Growth(
        role,
        len(by_pid),
        len(samples),
        _mean(sample.memory_mib for sample in samples),
        max((sample.memory_mib for sample in samples), default=0.0),
        slope_per_h([[(sample.at_s, sample.memory_mib) for sample in each] for each in by_pid.values()]),
        _mean(sample.files for sample in samples),
        slope_per_h([[(sample.at_s, sample.files) for sample in each] for each in by_pid.values()]),
        _covered_s((each[0].at_s, each[-1].at_s) for each in by_pid.values()),
    )


def _covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """The time that is in one of them, or in several."""
    covered = reached = 0.0
    for first, last in sorted(spans):
        covered += max(0.0, last - max(first, reached))
        reached = max(reached, last)
    return covered


def slope_per_h(series: Iterable[list[tuple[float, float]]]) -> float:
    """The common slope of several lines, each with a height of its own."""
    above = below = 0.0
    for points in series:
        middle_s = _mean(at_s for at_s, _ in points)
        middle = _mean(value for _, value in points)
        above += sum((at_s - middle_s) * (value - middle) for at_s, value in points)
        below += sum((at_s - middle_s) ** 2 for at_s, _ in points)
    return above / below * 3600 if below else 0.0


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def table(growths: Iterable[Growth]) -> str:
    lines = [
        "| process | processes | minutes observed | memory MiB | largest MiB | MiB per hour | files | files per hour |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for each in growths:
        memory = f"{each.memory_mib:.0f} | {each.memory_max_mib:.0f} | {each.memory_slope:+.1f}"
        files = f"{each.files:.0f} | {each.files_slope:+.1f}"
        lines.append(f"| {each.role} | {each.processes} | {each.observed_s / 60:.1f} | {memory} | {files} |")
    return "\n".join(lines) + "\n"
