"""The program that runs Spark: it starts and stops queries as it is told, one line of JSON each, until it is killed.

What it answers begins with a sign, as Spark may print to the same place.
"""

import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from faults.gates import WRITTEN, Gates

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

FILES = "files"
TABLE = "foreachBatch"
NSQ = "nsq"
# What a batch had twice, which a table that knows each message of a batch once does not show.
TWICE_NOTE = "twice"
SINKS = (FILES, TABLE, NSQ)
SIGN = "@answer "


class Order(NamedTuple):
    """A query to start. ``place`` is the folder, or the topic, that the sink writes to."""

    name: str
    folder: str
    sink: str
    place: str
    source_options: dict[str, str]
    sink_options: dict[str, str]

    @property
    def gates(self) -> Gates:
        return Gates(Path(self.folder) / "gates")


def open_table(path: Path) -> sqlite3.Connection:
    table = sqlite3.connect(path, timeout=60)
    # What is killed here are processes, not the machine.
    table.execute("PRAGMA synchronous=OFF")
    columns = "batch INTEGER, id TEXT, nsqd TEXT, body TEXT, PRIMARY KEY (batch, id, nsqd)"
    table.execute(f"CREATE TABLE IF NOT EXISTS messages ({columns})")
    return table


def insert_batch(path: Path, gates: Gates, beginning: str) -> Callable[[DataFrame, int], None]:
    """``beginning`` is that of every body which was published; a liar may send what it likes, and as often."""

    def insert(rows: DataFrame, batch: int) -> None:
        found = [(batch, row.id, row.nsqd, row.body or "") for row in rows.select("id", "nsqd", "body").collect()]
        published = [message for message in found if message[3].startswith(beginning)]
        if len({message[1:3] for message in published}) < len(published):
            gates.note(TWICE_NOTE, f"{len(published)} messages of batch {batch} were not all different ones")
        table = open_table(path)
        with table:
            table.executemany("INSERT OR REPLACE INTO messages VALUES (?, ?, ?, ?)", found)
        table.close()
        if found:
            gates.wait(WRITTEN)

    return insert


def start_query(spark: SparkSession, order: Order) -> "StreamingQuery":
    gates = str(order.gates.folder)
    reader = spark.readStream.format("nsq_held").schema("id STRING, nsqd STRING, body STRING")
    rows = reader.options(**order.source_options, gates=gates).load()
    checkpoint = str(Path(order.folder) / "checkpoint")
    if order.sink == TABLE:
        writer = rows.writeStream.foreachBatch(
            insert_batch(Path(order.place), order.gates, order.source_options["topic"])
        )
    elif order.sink == FILES:
        writer = rows.select("body").writeStream.format("text").option("path", order.place)
    else:
        writer = rows.select("body").writeStream.format("nsq_held")
        writer = writer.options(**order.sink_options, topic=order.place, gates=gates)
    return writer.option("checkpointLocation", checkpoint).queryName(order.name).start()


class Server:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._queries: dict[str, StreamingQuery] = {}

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["do"]:
            case "start":
                order = Order(*command["order"])
                self._queries[order.name] = start_query(self._spark, order)
            case "stop":
                if query := self._queries.pop(command["name"], None):
                    query.stop()
            case "look":
                return {name: _failure(query) for name, query in self._queries.items()}
        return {}


def _failure(query: "StreamingQuery") -> str:
    if query.isActive:
        return ""
    return str(query.exception() or "it has ended")


def main(master: str) -> None:
    from conftest import make_session

    from faults.held_source import HeldSource

    # Idle queries would ask a hundred times a second each, which takes the processor from what is tested.
    quiet = {"spark.sql.streaming.pollingDelay": "50ms", "spark.ui.showConsoleProgress": "false"}
    patient = {"spark.python.authenticate.socketTimeout": "120s", "spark.executor.memory": "700m"}
    spark = make_session(master, **quiet, **patient)
    spark.dataSource.register(HeldSource)
    server = Server(spark)
    _answer({"application": spark.sparkContext.applicationId})
    for line in sys.stdin:
        try:
            _answer(server.obey(json.loads(line)))
        except Exception as error:
            _answer({"error": f"{type(error).__name__}: {str(error)[:2000]}"})
    spark.stop()


def _answer(content: dict[str, Any]) -> None:
    print(SIGN + json.dumps(content), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
