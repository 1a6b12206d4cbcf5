"""The source's counters for users, who import them from ``pyspark_nsq.metrics``: a listener that keeps the newest.

metrics = NsqMetrics()
spark.streams.addListener(metrics)
...
metrics.latest()        # one SourceMetrics for each NSQ source of each query
metrics.prometheus()    # the same in Prometheus' text format
"""

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

_PREFIX: Final = "pyspark_nsq"


@dataclass(frozen=True)
class SourceMetrics:
    """One NSQ source of a query, as it was at the end of a batch. All counts are since the query started."""

    query_id: str
    query_name: str | None
    batch_id: int
    # Which of the query's sources it is.
    source: int
    # Messages that wait in the nsqds.
    backlog: int
    # Messages of batches that died with a receiver; nsqd delivers them again.
    lost: int
    # received, emitted, finished, touched, requeued, timed_out, redelivered, dropped, dead_lettered,
    # failed_connections; then the same for each nsqd.
    totals: Mapping[str, int]
    nsqds: Mapping[str, Mapping[str, int]]


class NsqMetrics(StreamingQueryListener):
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: dict[tuple[str, int], SourceMetrics] = {}

    def latest(self) -> list[SourceMetrics]:
        """The newest of every source of every query that runs."""
        with self._lock:
            return list(self._latest.values())

    def prometheus(self) -> str:
        """The newest of every source in Prometheus' text format."""
        lines: dict[str, list[str]] = {}
        for metrics in self.latest():
            labels = {"query": metrics.query_name or metrics.query_id, "source": str(metrics.source)}
            lines.setdefault("backlog gauge", []).append(_line("backlog", labels, metrics.backlog))
            lines.setdefault("lost_total counter", []).append(_line("lost_total", labels, metrics.lost))
            for nsqd, counts in metrics.nsqds.items():
                for name, count in counts.items():
                    line = _line(f"{name}_total", {**labels, "nsqd": nsqd}, count)
                    lines.setdefault(f"{name}_total counter", []).append(line)
        return "".join(f"# TYPE {_PREFIX}_{kind}\n" + "".join(found) for kind, found in lines.items())

    # Spark's side.

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 (Spark's name, as those below)
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        for index, source in enumerate(progress.sources):
            for fields in _reports(source.latestOffset):
                metrics = SourceMetrics(
                    *(str(progress.id), progress.name, progress.batchId, index),
                    *(fields["backlog"], fields["lost"], fields["totals"], fields["nsqds"]),
                )
                with self._lock:
                    self._latest[str(progress.id), index] = metrics

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        with self._lock:
            for key in [key for key in self._latest if key[0] == str(event.id)]:
                del self._latest[key]


def _reports(offset: object) -> Iterator[dict[str, Any]]:
    """The report in an offset that Spark shows, if it is one of ours."""
    try:
        fields = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return
    if isinstance(fields, dict) and {"backlog", "lost", "totals", "nsqds"} <= fields.keys():
        yield fields


def _line(name: str, labels: Mapping[str, str], value: int) -> str:
    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{_PREFIX}_{name}{{{shown}}} {value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
