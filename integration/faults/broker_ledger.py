"""Who published what and who got it: the accounts of a broker's messages, by their numbers."""

import math
import random
import time
from collections.abc import Iterable

_PADDING = random.Random(1).randbytes(1 << 16)
_LARGE_EVERY = 199  # one message in so many is much larger than the others
# nsqd's clock and ours are two readings of one.
_EARLY_S_MAX = 0.02


def length_of(number: int) -> int:
    """The length of the body with this number, without the number itself."""
    return number * 7919 % 300 + (20_000 if number % _LARGE_EVERY == 0 else 0)


def body_of(number: int) -> bytes:
    """The body with this number: nothing about it is left to chance, so a damaged one is seen."""
    length = length_of(number)
    start = number * 104_729 % (len(_PADDING) - length)
    return b"%d:%b" % (number, _PADDING[start : start + length])


def number_of(body: bytes) -> int:
    """The reverse, whatever zeros follow; an assertion where the body is not as it was published."""
    number = int(body[: body.index(b":")])
    expected = body_of(number)
    same = body.startswith(expected) and not body[len(expected) :].strip(b"\0")
    assert same, f"message {number} was delivered with another body"
    return number


class ChannelAccount:
    """What one channel delivered and what its consumers finished."""

    def __init__(self, topic: str, name: str) -> None:
        self.topic = topic
        self.name = name
        self.since = 0  # it is owed what was published with this number or a higher one
        self.delivered: set[int] = set()
        self.deliveries = 0
        self.long_finished: set[int] = set()  # by a FIN so old that no crash may undo it
        self.undone: set[int] = set()  # of those, what came again
        self.early: list[int] = []  # deferred, and delivered before its time
        self._finished: list[tuple[float, list[int]]] = []  # known to be done, since the broker's last start

    def deliver(self, number: int) -> None:
        self.deliveries += 1
        self.delivered.add(number)
        if number in self.long_finished:
            self.undone.add(number)

    def finish(self, numbers: list[int]) -> None:
        """The broker is known to have taken these FINs."""
        self._finished.append((time.monotonic(), numbers))

    @property
    def first_finish(self) -> float:
        """Since the broker's last start; infinity before there is one."""
        return self._finished[0][0] if self._finished else math.inf

    def killed(self, worked_at: float, settled_after_s: float) -> None:
        """The broker died, after it had been at work at some moment: FINs of so many seconds before that must stand."""
        for moment, numbers in self._finished:
            if worked_at - moment > settled_after_s:
                self.long_finished.update(numbers)
        self._finished.clear()


class Ledger:
    """All topics of one broker."""

    def __init__(self, channels: Iterable[tuple[str, str]]) -> None:
        self.channels = {key: ChannelAccount(*key) for key in channels}
        self.acknowledged: dict[str, set[int]] = {topic: set() for topic, _ in self.channels}
        self.next_number = 1
        self.answered_at = 0.0  # when the last publish was sent that has been answered
        self._due: dict[int, float] = {}
        self._sent: dict[int, str] = {}

    def take(self, topic: str, count: int, defer_s: float = 0.0) -> list[int]:
        """Numbers for messages that are going to be published."""
        numbers = list(range(self.next_number, self.next_number + count))
        self.next_number += count
        self._sent.update(dict.fromkeys(numbers, topic))
        if defer_s:
            self._due.update(dict.fromkeys(numbers, time.time() + defer_s))
        return numbers

    def deliver(self, account: ChannelAccount, body: bytes) -> int:
        """A message came; its number."""
        number = number_of(body)
        assert self._sent.get(number) == account.topic, f"message {number} came from topic {account.topic}"
        account.deliver(number)
        due = self._due.get(number)
        if due is not None and time.time() < due - _EARLY_S_MAX:
            account.early.append(number)
        return number

    def add_channel(self, topic: str, name: str) -> ChannelAccount:
        """A channel that was made just now: it gets what is published from here on."""
        account = self.channels[topic, name] = ChannelAccount(topic, name)
        account.since = self.next_number
        return account

    def has_old_fins(self, settled_after_s: float) -> bool:
        """Would some stand if the broker were killed now?"""
        return any(account.first_finish < self.answered_at - settled_after_s for account in self.channels.values())

    @property
    def published(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    @property
    def published_bytes(self) -> int:
        """Of all bodies, without what somebody put behind them."""
        return sum(length_of(number) for numbers in self.acknowledged.values() for number in numbers)

    def lost(self) -> dict[str, list[int]]:
        """What was acknowledged and not delivered, by channel."""
        found = {}
        for (topic, name), account in self.channels.items():
            missing = self.acknowledged[topic] - account.delivered
            owed = sorted(number for number in missing if number >= account.since)
            if owed:
                found[f"{topic}/{name}"] = owed
        return found

    @property
    def duplicated(self) -> int:
        """Deliveries of what had been delivered on that channel before."""
        return sum(account.deliveries - len(account.delivered) for account in self.channels.values())

    @property
    def settled(self) -> int:
        """FINs that no crash was allowed to undo."""
        return sum(len(account.long_finished) for account in self.channels.values())

    def complaint(self) -> str:
        """What must not have happened, and did."""
        words = []
        for account in self.channels.values():
            place = f"{account.topic}/{account.name}"
            if account.undone:
                words.append(f"{place}: {len(account.undone)} old FINs undone, as of {sorted(account.undone)[:5]}")
            if account.early:
                words.append(f"{place}: {len(account.early)} deferred messages came early, as {account.early[:5]}")
        lost = self.lost()
        words += [f"{place}: {len(numbers)} lost, as {numbers[:5]}" for place, numbers in lost.items()]
        return "; ".join(words)
