"""A Spark driver in a process of its own, which does what it is told on standard input and answers on standard output.

One line of JSON each. It can be killed, as the test's own process cannot.
"""

import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rig.patience import start_patiently


class Driver:
    def __init__(self, master: str, settings: dict[str, str]) -> None:
        builder = SparkSession.Builder().master(master).appName("executors")
        quiet = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.executor.memory": "512m"}
        for key, value in {**quiet, **settings}.items():
            builder = builder.config(key, value)
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")
        self.queries: dict[str, Any] = {}
        self.bodies: dict[str, dict[int, list[str]]] = {}

    def start(self, query: str, options: dict[str, Any], checkpoint: str, gate: str, available_now: bool) -> None:
        """While the file ``gate`` is there, batches do not end: see ``_hold``."""
        batches = self.bodies.setdefault(query, {})

        def keep(rows: DataFrame, batch: int) -> None:
            found = [bytes(row.body).decode() for row in rows.select("body").collect()]
            if found and Path(gate).exists():
                rows.foreachPartition(lambda _rows: _hold(gate))
            batches[batch] = found

        reader = self.spark.readStream.format("nsq")
        for name, value in options.items():
            reader = reader.option(name, value)
        writer = reader.load().writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
        self.queries[query] = start_patiently(writer.trigger(availableNow=True) if available_now else writer)

    def state(self, query: str) -> dict[str, Any]:
        failure = self.queries[query].exception()
        progress = self.queries[query].lastProgress
        batches = self.bodies[query]
        return {
            "batches": [batches[number] for number in sorted(batches)],
            "failure": str(failure) if failure else "",
            "active": self.queries[query].isActive,
            "report": _offset(progress.sources[0].latestOffset) if progress else None,
        }

    def stop(self, query: str) -> None:
        self.queries[query].stop()

    def stop_all(self) -> None:
        for query in self.queries.values():
            query.stop()


def _hold(gate: str) -> None:
    """A task on an executor goes on until the gate is gone, or the file of that name which it makes on its host."""
    sign = Path(tempfile.gettempdir(), Path(gate).name)
    sign.touch()
    while Path(gate).exists() and sign.exists():
        time.sleep(0.05)


def _offset(shown: Any) -> Any:
    return json.loads(shown) if isinstance(shown, str) else shown


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # What Spark prints goes where its log goes.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    driver = Driver(sys.argv[1], json.loads(sys.argv[2]))
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        method, arguments = json.loads(line)
        try:
            answer = {"answer": getattr(driver, method)(**arguments)}
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), file=answers, flush=True)
    with suppress(Exception):
        driver.spark.stop()


if __name__ == "__main__":
    main()
