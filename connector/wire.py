"""The receiver contract's messages from and to the connector's own values."""

from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.proto import receiver_pb2 as pb


def to_source(message: pb.Source) -> Source:
    return Source(message.topic, Address(message.host, message.port))


def from_source(source: Source) -> pb.Source:
    return pb.Source(topic=source.topic, host=source.nsqd.host, port=source.nsqd.port)
