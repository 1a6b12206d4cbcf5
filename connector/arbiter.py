"""Settles which messages have come to two receivers, so that one of them emits them.

nsqd delivers a message again when the connection that got it is gone, and then to whichever receiver is there. The
one that gets it keeps it back; here the others are asked, until one of them has had it finished, or none has it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import grpc

from pyspark_nsq.connector.channels import call_once
from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.receiver_tls import ReceiverTls
from pyspark_nsq.connector.redeliveries import split_ids
from pyspark_nsq.connector.wire import from_source, to_source
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
_TIMEOUT_S: Final = 10.0


class Party(Protocol):
    """A receiver; without ``status`` there is none at the moment, and what it held is lost."""

    @property
    def address(self) -> str: ...
    @property
    def status(self) -> pb.Status | None: ...


class Arbiter:
    def __init__(
        self,
        receivers: Callable[[], Sequence[Party]],
        token: str,
        tls: ReceiverTls | None = None,
    ) -> None:
        self._receivers = receivers
        self._token = token
        self._tls = tls

    def start(self) -> None:
        threading.Thread(target=self._run, name="arbiter", daemon=True).start()

    def _run(self) -> None:
        failures = 0
        while True:
            time.sleep(_LOOK_S)
            try:
                self._settle_all()
                failures = 0
            except Exception:
                failures += 1
                if failures.bit_count() == 1:
                    # The first time, and ever more rarely.
                    log.exception("settling what two receivers have failed %d times in a row", failures)

    def _settle_all(self) -> None:
        for receiver in self._receivers():
            if receiver.status and receiver.status.suspects:
                try:
                    self._settle(receiver)
                except grpc.RpcError as error:
                    # One of them is about to be gone, or is busy: the next time tells.
                    log.debug("suspects cannot be settled: %s", error)

    def _settle(self, receiver: Party) -> None:
        suspects: pb.Suspects = self._call(receiver, "Settle", pb.Verdicts())
        others = [other for other in self._receivers() if other is not receiver and other.status]
        answers = [self._call(other, "Judge", suspects) for other in others]
        self._call(receiver, "Settle", verdicts(suspects, answers))

    def _call(self, receiver: Party, method: str, request: Any) -> Any:
        stub = receiver_pb2_grpc.ReceiverStub
        return call_once(stub, receiver.address, self._tls, self._token, method, request, _TIMEOUT_S)


def verdicts(suspects: pb.Suspects, answers: Iterable[pb.Verdicts]) -> pb.Verdicts:
    """What the answers of all others say together: once finished is finished, and what nobody knows is new."""
    held: dict[Source, set[bytes]] = {}
    finished: dict[Source, set[bytes]] = {}
    for answer in answers:
        for known, found in ((held, answer.held), (finished, answer.finished)):
            for each in found:
                known.setdefault(to_source(each.source), set()).update(split_ids(each.ids))
    result = pb.Verdicts()
    for each in suspects.messages:
        source = to_source(each.source)
        done, theirs = finished.get(source, set()), held.get(source, set())
        ids = split_ids(each.ids)
        result.finished.add(source=from_source(source), ids=b"".join(one for one in ids if one in done))
        result.unknown.add(source=from_source(source), ids=b"".join(one for one in ids if one not in done | theirs))
    return result
