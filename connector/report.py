"""What the source tells about itself beside its offset, for ``StreamingQueryProgress`` to carry."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.offsets import Offset
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.connector.wire import from_source, to_source
from pyspark_nsq.proto import receiver_pb2 as pb

COUNTERS: Final = tuple(pb.Counters.DESCRIPTOR.fields_by_name)
_counts: Final = attrgetter(*COUNTERS)


@dataclass
class Report:
    """Counts since the query started; ``backlog`` is what waits in nsqds now."""

    backlog: int
    # Messages of batches that died with a receiver. nsqd delivers them again.
    lost: int
    totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    nsqds: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, statuses: Iterable[pb.Status]) -> None:
        """Count what receivers, or those before them, said."""
        counted: dict[tuple[str, int], list[tuple[int, ...]]] = {}
        for status in statuses:
            self.lost += status.lost
            for each in status.sources:
                source = each.source
                counted.setdefault((source.host, source.port), []).append(_counts(each.counters))
        for nsqd, rows in counted.items():
            counts = self.nsqds.setdefault(str(Address(*nsqd)), dict.fromkeys(COUNTERS, 0))
            for name, column in zip(COUNTERS, zip(*rows, strict=True), strict=True):
                count = sum(column)
                counts[name] += count
                self.totals[name] += count

    def to_json(self, offset: Offset) -> dict[str, Any]:
        """Spark shows it as the latest offset, so it begins as one."""
        return {
            **offset.to_json(),
            "backlog": self.backlog,
            "lost": self.lost,
            "totals": self.totals,
            "nsqds": dict(sorted(self.nsqds.items())),
        }

    def __str__(self) -> str:
        counts = {**self.totals, "lost": self.lost}
        return f"backlog {self.backlog}, " + ", ".join(f"{name} {count}" for name, count in counts.items() if count)


def merge(statuses: Iterable[pb.Status]) -> pb.Status:
    """One that counts as much as all of them, for each nsqd."""
    merged = pb.Status()
    nsqds: dict[Address, pb.SourceStatus] = {}
    for status in statuses:
        merged.lost += status.lost
        for each in status.sources:
            nsqd = to_source(each.source).nsqd
            known = nsqds.setdefault(nsqd, pb.SourceStatus(source=from_source(Source("", nsqd))))
            for name in COUNTERS:
                setattr(known.counters, name, getattr(known.counters, name) + getattr(each.counters, name))
    merged.sources.extend(nsqds.values())
    return merged
