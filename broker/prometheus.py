"""Pages of metrics in Prometheus' text format.

page = Page()
page.add("nsqd_depth", GAUGE, "Messages waiting in the channel.", [({"topic": "t", "channel": "c"}, 12)])
page.add("nsqd_up_seconds", GAUGE, "Seconds since the start.", 3.5)
page.add_process(started_at)
return page.response()                  # the answer of GET /metrics
"""

import os
import resource
from collections.abc import Iterable, Mapping

from pyspark_nsq.broker.http_messages import Response

GAUGE = "gauge"
COUNTER = "counter"

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LABEL_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

Sample = tuple[Mapping[str, str], float]


class Page:
    """Metric families in the order they are added; each name may be added once."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, kind: str, help_text: str, samples: Iterable[Sample] | float) -> None:
        """A family with its samples, or with one value that has no labels. Counters are named ``..._total``."""
        self._lines.append(f"# HELP {name} {help_text}\n# TYPE {name} {kind}")
        if isinstance(samples, (int, float)):
            samples = [({}, samples)]
        for labels, value in samples:
            self._lines.append(f"{name}{_labels(labels)} {_number(value)}")

    def add_process(self, started_at: float) -> None:
        """What is usual to know of the process itself; ``started_at`` is Unix time."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.add("process_start_time_seconds", GAUGE, "Unix time of the start.", started_at)
        self.add("process_cpu_seconds_total", COUNTER, "CPU time used.", usage.ru_utime + usage.ru_stime)
        self.add("process_resident_memory_bytes", GAUGE, "Memory held.", resident_bytes())
        self.add("process_open_fds", GAUGE, "Files and sockets open.", len(os.listdir("/proc/self/fd")))

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def response(self) -> Response:
        return Response(200, self.text().encode(), CONTENT_TYPE)


def resident_bytes() -> int:
    """The memory that this process holds now."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_LABEL_ESCAPES)}"' for name, value in labels.items()) + "}"


def _number(value: float) -> str:
    return repr(value) if isinstance(value, float) and not value.is_integer() else str(int(value))
