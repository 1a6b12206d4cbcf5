"""Segments that were read from the log at once."""

from pyspark_nsq.broker.segment import Segment


class Portion(list[Segment]):
    """A list that may be known weakly, which neither a list nor a compiled segment can be."""
