"""What has come out: every body in what a sink has written, with how often it is there."""

import json
from collections import Counter
from pathlib import Path

from faults.cluster import Cluster
from faults.queries import FILES, TABLE, Order, open_table


class Outcome:
    """What a query has written so far; ``look`` reads it anew."""

    def __init__(self, order: Order, cluster: Cluster) -> None:
        self._order = order
        self._cluster = cluster
        self.bodies: Counter[bytes] = Counter()

    def look(self) -> Counter[bytes]:
        place = Path(self._order.place)
        if self._order.sink == TABLE:
            self.bodies = _table_bodies(place)
        elif self._order.sink == FILES:
            self.bodies = _file_bodies(place)
        else:
            self.bodies += self._cluster.drain_sink(self._order.place)
        return self.bodies


def _table_bodies(path: Path) -> Counter[bytes]:
    table = open_table(path)
    bodies = Counter(body.encode() for (body,) in table.execute("SELECT body FROM messages"))
    table.close()
    return bodies


def _file_bodies(folder: Path) -> Counter[bytes]:
    bodies: Counter[bytes] = Counter()
    for path in committed_files(folder):
        bodies.update(path.read_bytes().splitlines())
    return bodies


def committed_files(folder: Path) -> list[Path]:
    """The files that Spark's own reader would read: those that the sink's log names."""
    logs = {path.name: path for path in (folder / "_spark_metadata").glob("[0-9]*")}
    compact = max((int(name.removesuffix(".compact")) for name in logs if name.endswith(".compact")), default=-1)
    wanted = [f"{compact}.compact"] if compact >= 0 else []
    wanted += sorted(name for name in logs if name.isdigit() and int(name) > compact)
    entries = [json.loads(line) for name in wanted for line in logs[name].read_text().splitlines()[1:]]
    return [Path(entry["path"].removeprefix("file://")) for entry in entries if entry["action"] == "add"]
