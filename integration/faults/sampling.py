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
# Growth over the whole run that is no noise.
_MEMORY_GROWTH_MAX_MIB = 16.0
_MEMORY_GROWTH_MAX_PART = 0.1
_FILES_GROWTH_MAX = 10.0
_OBSERVED_MIN_H = 0.1


class Sample(NamedTuple):
    at_s: float
    role: str
    pid: int
    age_s: float
    memory_mib: float
    files: int


@dataclass(frozen=True)
class Growth:
    """Of all processes of a role: slopes are per hour, within each process, after its warm-up."""

    role: str
    processes: int
    samples: int
    memory_mib: float
    memory_max_mib: float
    memory_slope: float
    files: float
    files_slope: float
    observed_h: float

    @property
    def complaint(self) -> str:
        """Empty where it does not grow, and where there is too little to tell."""
        if self.observed_h < _OBSERVED_MIN_H:
            return ""
        memory = self.memory_slope * self.observed_h
        files = self.files_slope * self.observed_h
        if memory > _MEMORY_GROWTH_MAX_MIB + _MEMORY_GROWTH_MAX_PART * self.memory_mib:
            return f"the memory of {self.role} grows by {self.memory_slope:.0f} MiB an hour"
        if files > _FILES_GROWTH_MAX:
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
        by_role: dict[str, dict[int, list[Sample]]] = defaultdict(lambda: defaultdict(list))
        for sample in self.samples:
            if sample.age_s >= WARM_UP_S:
                by_role[sample.role][sample.pid].append(sample)
        return [_growth(role, by_role[role]) for role in sorted(by_role)]

    def save(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(Sample._fields)
            writer.writerows(self.samples)


def _growth(role: str, by_pid: Mapping[int, list[Sample]]) -> Growth:
    samples = [sample for each in by_pid.values() for sample in each]
    longest_s = max(each[-1].at_s - each[0].at_s for each in by_pid.values())
    return Growth(
        role,
        len(by_pid),
        len(samples),
        _mean(sample.memory_mib for sample in samples),
        max(sample.memory_mib for sample in samples),
        slope_per_h([[(sample.at_s, sample.memory_mib) for sample in each] for each in by_pid.values()]),
        _mean(sample.files for sample in samples),
        slope_per_h([[(sample.at_s, sample.files) for sample in each] for each in by_pid.values()]),
        longest_s / 3600,
    )


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
        "| process | processes | samples | memory MiB | largest MiB | MiB per hour | files | files per hour |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for each in growths:
        memory = f"{each.memory_mib:.0f} | {each.memory_max_mib:.0f} | {each.memory_slope:+.1f}"
        files = f"{each.files:.0f} | {each.files_slope:+.1f}"
        lines.append(f"| {each.role} | {each.processes} | {each.samples} | {memory} | {files} |")
    return "\n".join(lines) + "\n"
