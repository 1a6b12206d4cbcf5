"""Spark on a machine that has much else to do."""

from typing import TYPE_CHECKING

from pyspark.sql.streaming.readwriter import DataStreamWriter

from rig.daemons import wait_until

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

# Spark gives a process of the source ten seconds to start, which a busy machine may not allow.
TOO_SLOW = "worker failed to connect back"


def start_patiently(writer: DataStreamWriter, attempts: int = 5) -> "StreamingQuery":
    """A query whose source's process has started, or that has failed for another reason."""
    query = writer.start()
    wait_until(lambda: not query.isActive or not query.status["message"].startswith("Initializing"), "a source")
    if TOO_SLOW in str(query.exception()) and attempts > 1:
        return start_patiently(writer, attempts - 1)
    return query
