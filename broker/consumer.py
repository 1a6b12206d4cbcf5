"""Who takes messages from a channel."""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from pyspark_nsq.broker.inflight import InFlight
from pyspark_nsq.broker.topology import NOT_LOOKED_AT

NOT_IN_FLIGHT: Final = "ID not in flight"
NOT_OWNER: Final = "client does not own message"
_ASKED_AT_ONCE: Final = 4096


class Consumer:
    """What the engine knows of a subscribed client. The server's client derives from it (and calls `__init__`).

    The session sets ready_count, msg_timeout_ns, sample_rate and nearness; the engine keeps the rest.
    """

    def __init__(self) -> None:
        self.ready_count = 0
        self.msg_timeout_ns = 60_000_000_000
        self.sample_rate = 0
        self.nearness = NOT_LOOKED_AT
        self.in_flight_count = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.in_flight = InFlight()
        self.departed = False


class Reasons:
    """Why answers to messages fail. Of many at one time it is asked no more whose they are."""

    def __init__(self) -> None:
        self._time = 0
        self._left = 0

    def of(self, message_id: bytes, consumers: Iterable[Consumer], now: int) -> str:
        """For one that its consumer does not have; `consumers` may."""
        if now != self._time:
            self._time, self._left = now, _ASKED_AT_ONCE
        asked = list(islice(consumers, self._left))
        self._left -= len(asked)
        return NOT_OWNER if any(one.in_flight.find(message_id) for one in asked) else NOT_IN_FLIGHT
