"""The receiver contract's messages from and to the connector's own values."""

from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.proto import receiver_pb2 as pb


def to_source(message: pb.Source) -> Source:
    return Source(message.topic, Address(message.host, message.port))


def from_source(source: Source) -> pb.Source:
    return pb.Source(topic=source.topic, host=source.nsqd.host, port=source.nsqd.port)


def with_all_sources(status: pb.Status, before: pb.Status | None) -> pb.Status:
    """What a receiver tells, with the sources of its status before where they have not changed."""
    if before and not status.has_sources:
        status.sources.extend(before.sources)
    return status


def failed_connections(status: pb.Status) -> int:
    return sum(source.counters.failed_connections for source in status.sources)
