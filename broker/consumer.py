"""Who takes messages from a channel."""

from pyspark_nsq.broker.inflight import InFlight
from pyspark_nsq.broker.topology import NOT_LOOKED_AT


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
