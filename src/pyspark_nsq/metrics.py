"""The source's counters for users, with the backlog: ``NsqMetrics`` is a listener for ``spark.streams.addListener``."""

from pyspark_nsq.connector.metrics import NsqMetrics, SourceMetrics

__all__ = ["NsqMetrics", "SourceMetrics"]
