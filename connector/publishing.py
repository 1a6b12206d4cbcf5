"""Who gets what is published, and what is done about failures: decided here, without a socket or a clock.

A request (one MPUB, or a run of DPUBs) goes to as many nsqds as the quorum says. Several requests are outstanding on
a connection, and nsqd answers in order. When a connection fails, all that was outstanding on it goes to other nsqds:
it may have been published already, which makes duplicates and never a loss. An nsqd that failed is left out for a
while, longer with each failure. A request that has failed on every nsqd has used up one of its ``retries``.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark_nsq.connector.errors import NsqError, RefusedError, SecurityError
from pyspark_nsq.connector.options import RetryOptions, SinkOptions
from pyspark_nsq.connector.settings import Address

# Errors that any nsqd with the same flags would answer again: it is the message that is wrong, or an option.
_WRONG_DATA = {"E_BAD_BODY", "E_BAD_MESSAGE", "E_BAD_TOPIC", "E_INVALID"}


class PublishError(NsqError):
    """Something could not be published: what was acknowledged before stays published."""


@dataclass(eq=False)
class Request:
    """Commands that are sent together, and how many answers they get."""

    topic: str
    message_count: int
    answer_count: int
    pieces: tuple[bytes | memoryview, ...]
    # Where it is outstanding, acknowledged, and where it failed in this round.
    asked: set[Address] = field(default_factory=set)
    stored: set[Address] = field(default_factory=set)
    failed: set[Address] = field(default_factory=set)
    rounds: int = 0


@dataclass
class Outstanding:
    request: Request
    sent_s: float
    answers_left: int


@dataclass
class _Node:
    outstanding: deque[Outstanding] = field(default_factory=deque)
    # When it answered last.
    answered_s: float = 0.0
    rejected: bool = False


# An error names so many of them.
_REASONS_MAX: Final = 6
# Stands for the nsqds that are missing, where there are fewer than the quorum.
_NOBODY = Address("", 0)


class NodeHealth:
    """Which nsqds are left out until when. It outlives tasks, so that each does not find out anew."""

    def __init__(self, retry: RetryOptions) -> None:
        self._retry = retry
        self._failures: Counter[Address] = Counter()
        self._until_s: dict[Address, float] = {}

    def failed(self, address: Address, now_s: float) -> None:
        self._failures[address] += 1
        doublings = min(self._failures[address] - 1, 60)
        self._until_s[address] = now_s + min(self._retry.delay_s * 2**doublings, self._retry.delay_s_max)

    def worked(self, address: Address) -> None:
        self._failures.pop(address, None)
        self._until_s.pop(address, None)

    def until_s(self, address: Address) -> float:
        """From when on it may be tried again."""
        return self._until_s.get(address, 0.0)


class Publishing:
    """The books of one task. ``nodes`` are tried in their order: the caller spreads tasks over them."""

    def __init__(self, nodes: Sequence[Address], health: NodeHealth, options: SinkOptions) -> None:
        self._nodes = {address: _Node() for address in nodes}
        self._health = health
        self._quorum = options.publish_quorum
        self._retries = options.retries
        self._outstanding_max = options.outstanding_max
        self._timeout_s = options.request_timeout_s
        self._waiting: deque[Request] = deque()
        self._reasons: dict[Address, NsqError] = {}
        self._silent: Sequence[NsqError] = ()
        # Messages acknowledged by topic and nsqd, and messages that were sent once more after a failure.
        self.stored: Counter[tuple[str, Address]] = Counter()
        self.resent = 0

    def submit(self, request: Request) -> None:
        self._waiting.append(request)

    def use_nodes(self, nodes: Sequence[Address]) -> None:
        """The nsqds to choose from henceforth. What is outstanding elsewhere is still waited for."""
        kept = {address: node for address, node in self._nodes.items() if node.outstanding}
        self._nodes = {address: self._nodes.get(address, _Node()) for address in nodes} | kept

    @property
    def is_waiting(self) -> bool:
        """Whether a request has not been sent to all the nsqds that it should go to."""
        return bool(self._waiting)

    @property
    def is_done(self) -> bool:
        return not self._waiting and not any(node.outstanding for node in self._nodes.values())

    def assign(self, now_s: float) -> tuple[Address, Request] | None:
        """The next request to send, and where to; None while there is nothing to send or nobody to take it."""
        while self._waiting:
            request = self._waiting[0]
            if self._owed(request) == 0:
                self._waiting.popleft()
                continue
            address = self._choose(request, now_s)
            if address is None:
                return None
            request.asked.add(address)
            self._nodes[address].outstanding.append(Outstanding(request, now_s, request.answer_count))
            return address, request
        return None

    def _owed(self, request: Request) -> int:
        return self._quorum - len(request.asked) - len(request.stored)

    def _choose(self, request: Request, now_s: float) -> Address | None:
        for address in self._untried(request):
            if not self._is_full(address) and self._health.until_s(address) <= now_s:
                return address
        return None

    def next_try_s(self) -> float | None:
        """When there may be somebody to send to again; None where only an answer changes anything."""
        if not self._waiting:
            return None
        free = [address for address in self._untried(self._waiting[0]) if not self._is_full(address)]
        if free:
            return min(map(self._health.until_s, free))
        return self._health.until_s(_NOBODY) if self.lacks_nodes() else None

    def lacks_nodes(self) -> bool:
        """Whether the first request needs more nsqds than there are."""
        return bool(self._waiting) and not self._waiting[0].asked and not self._untried(self._waiting[0])

    def lacked_nodes(self, now_s: float, silent: Sequence[NsqError]) -> None:
        """Nobody was found to ask: that counts as a round. Raises ``PublishError`` where no retry is left.

        ``silent`` tells why lookupds did not answer.
        """
        self._health.failed(_NOBODY, now_s)
        self._silent = silent
        self._end_round(self._waiting[0])

    def _untried(self, request: Request) -> list[Address]:
        taken = request.asked | request.stored | request.failed
        return [address for address in self._nodes if address not in taken]

    def _is_full(self, address: Address) -> bool:
        return len(self._nodes[address].outstanding) >= self._outstanding_max

    def deadlines_s(self) -> dict[Address, float]:
        """By when each nsqd that owes an answer has to give it."""
        return {
            address: max(node.answered_s, node.outstanding[0].sent_s) + self._timeout_s
            for address, node in self._nodes.items()
            if node.outstanding
        }

    def owes_answer(self, address: Address) -> bool:
        node = self._nodes.get(address)
        return bool(node and node.outstanding)

    def answered(self, address: Address, now_s: float) -> None:
        """An nsqd said OK to one command."""
        node = self._nodes[address]
        node.answered_s = now_s
        first = node.outstanding[0]
        first.answers_left -= 1
        if first.answers_left == 0:
            node.outstanding.popleft()
            node.rejected = False
            first.request.asked.discard(address)
            first.request.stored.add(address)
            self.stored[first.request.topic, address] += first.request.message_count
            self._health.worked(address)
            self._health.worked(_NOBODY)
            if self._owed(first.request):
                self._count_round(first.request)

    def failed(self, address: Address, reason: NsqError, now_s: float, *, was_connected: bool = True) -> None:
        """The connection to an nsqd is gone or could not be made. Raises ``PublishError`` where no retry is left."""
        self._health.failed(address, now_s)
        node = self._nodes.get(address)
        if node is None:
            return
        lost = [entry.request for entry in node.outstanding]
        if isinstance(reason, RefusedError) and reason.code in _WRONG_DATA and lost:
            raise PublishError(f"{_describe(lost[0])} was refused: {reason}. {_LIMITS_HELP}") from reason
        node.outstanding.clear()
        node.rejected = isinstance(reason, SecurityError)
        self._reasons[address] = reason
        for request in reversed(lost):
            request.asked.discard(address)
            request.failed.add(address)
            self.resent += request.message_count if was_connected else 0
            if request not in self._waiting:
                self._waiting.appendleft(request)
            self._count_round(request)

    def _count_round(self, request: Request) -> None:
        """Begin again with all nsqds once the request has failed on each that does not have it."""
        others = self._nodes.keys() - request.asked - request.stored
        if not others:
            return
        if all(self._nodes[address].rejected for address in others):
            self._give_up(request)
        if others <= request.failed:
            self._end_round(request)

    def _end_round(self, request: Request) -> None:
        request.failed.clear()
        request.rounds += 1
        if request.rounds > self._retries:
            self._give_up(request)

    def _give_up(self, request: Request) -> None:
        known = len(self._nodes)
        reasons: list[object] = [self._reasons[address] for address in sorted(self._reasons)]
        if known < self._quorum:
            reasons = [self._lack(known), *self._silent, *reasons]
        raise PublishError(
            f"{_describe(request)} could not be published, tried {request.rounds or 1} times (option retries): "
            + "; ".join(map(str, reasons[:_REASONS_MAX]))
        )

    def _lack(self, known: int) -> str:
        if known == 0:
            return "no nsqd is known"
        return f"option publishQuorum is {self._quorum}, but the nsqds that are known are {known}"


_LIMITS_HELP = "Options maxMsgSize, maxBodySize and maxReqTimeout must not exceed the flags of the same names of nsqd"


def _describe(request: Request) -> str:
    size = sum(len(piece) for piece in request.pieces)
    return f"a batch of {request.message_count} messages for topic {request.topic} ({size} bytes)"
