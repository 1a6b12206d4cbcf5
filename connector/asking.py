"""What Spark's tasks, and receivers on executors, ask of the coordinator."""

from contextlib import suppress
from typing import Any, Final

import grpc

from pyspark_nsq.connector.channels import call_once
from pyspark_nsq.connector.ways import Way
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc

_TIMEOUT_S: Final = 5.0


def gathered(way: Way, host: str) -> bool:
    """Whether a task that was to start a receiver may end; no answer means that the query has."""
    try:
        reply: pb.Gathered = _ask(way, "Gather", pb.Gathering(host=host))
    except grpc.RpcError:
        return True
    return reply.done


def register(way: Way, host: str, address: str, instance: str) -> bool:
    """A receiver is ready; False where the query has ended. ``grpc.RpcError`` if nobody answers."""
    reply: pb.Registered = _ask(way, "Register", pb.Registration(host=host, address=address, instance=instance))
    return not reply.ended


def tell_failure(way: Way, reason: str) -> None:
    """A receiver could not start, and ends; as good as possible, for its log has it too."""
    with suppress(grpc.RpcError, OSError):
        _ask(way, "Register", pb.Registration(failure=reason))


def is_lost(way: Way, lane: int, first: int, end: int) -> bool:
    """Whether these positions died with their receiver; without an answer nothing is known, so not."""
    try:
        reply: pb.Fate = _ask(way, "Look", pb.Range(lane=lane, first=first, end=end))
    except grpc.RpcError:
        return False
    return reply.lost


def _ask(way: Way, method: str, request: Any) -> Any:
    stub = receiver_pb2_grpc.CoordinatorStub
    return call_once(stub, way.coordinator, way.tls, way.token, method, request, _TIMEOUT_S)
