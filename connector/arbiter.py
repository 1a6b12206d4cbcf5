"""Settles which messages have come to two receivers, so that one of them emits them.

nsqd delivers a message again when the connection that got it is gone, and then to whichever receiver is there. The
one that gets it keeps it back; here those that were ever connected to its source are asked, until one of them has had
it finished, or none has it.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import grpc

from pyspark_nsq.connector.channels import TOKEN_KEY, open_channel
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
    """``holders`` says which of the receivers, by number, may hold messages of a source."""

    def __init__(
        self,
        receivers: Callable[[], Sequence[Party]],
        holders: Callable[[Source], Collection[int]],
        token: str,
        tls: ReceiverTls | None = None,
    ) -> None:
        self._receivers = receivers
        self._holders = holders
        self._token = token
        self._tls = tls
        # By address, for as long as a receiver is there and answers.
        self._channels: dict[str, grpc.Channel] = {}

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
        receivers = list(self._receivers())
        there = {receiver.address for receiver in receivers if receiver.status}
        for address in self._channels.keys() - there:
            self._close(address)
        for index, receiver in enumerate(receivers):
            if (status := receiver.status) and status.suspects:
                try:
                    self._settle(receivers, index)
                except grpc.RpcError as error:
                    # It is about to be gone, or is busy: the next time tells.
                    log.debug("the suspects of %s cannot be settled: %s", receiver.address, error)
                    self._close(receiver.address)

    def _settle(self, receivers: Sequence[Party], index: int) -> None:
        suspects: pb.Suspects = self._call(receivers[index], "Settle", pb.Verdicts()).result()
        questions: dict[int, pb.Suspects] = {}
        for each in suspects.messages:
            for holder in self._holders(to_source(each.source)):
                if holder != index and receivers[holder].status:
                    questions.setdefault(holder, pb.Suspects()).messages.append(each)
        answers, unanswered = self._ask(receivers, questions)
        self._call(receivers[index], "Settle", verdicts(suspects, answers, unanswered)).result()

    def _ask(
        self, receivers: Sequence[Party], questions: Mapping[int, pb.Suspects]
    ) -> tuple[list[pb.Verdicts], set[Source]]:
        """What these receivers say, all asked at once, and of which sources not all have answered."""
        calls = {holder: self._call(receivers[holder], "Judge", asked) for holder, asked in questions.items()}
        answers: list[pb.Verdicts] = []
        unanswered: set[Source] = set()
        for holder, call in calls.items():
            try:
                answers.append(call.result())
            except grpc.RpcError as error:
                log.debug("%s does not say what it holds: %s", receivers[holder].address, error)
                self._close(receivers[holder].address)
                unanswered.update(to_source(each.source) for each in questions[holder].messages)
        return answers, unanswered

    def _call(self, receiver: Party, method: str, request: Any) -> Any:
        """A call that has begun."""
        address = receiver.address
        if address not in self._channels:
            self._channels[address] = open_channel(address, self._tls)
        stub = receiver_pb2_grpc.ReceiverStub(self._channels[address])  # type: ignore[no-untyped-call]
        return getattr(stub, method).future(request, timeout=_TIMEOUT_S, metadata=[(TOKEN_KEY, self._token)])

    def _close(self, address: str) -> None:
        if channel := self._channels.pop(address, None):
            channel.close()


def verdicts(
    suspects: pb.Suspects, answers: Iterable[pb.Verdicts], unanswered: Collection[Source] = frozenset()
) -> pb.Verdicts:
    """What all others say together: once finished is finished, and what nobody knows is new, if all have answered."""
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
        if source not in unanswered:
            taken = done | theirs
            result.unknown.add(source=from_source(source), ids=b"".join(one for one in ids if one not in taken))
    return result
