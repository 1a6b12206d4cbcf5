"""How Spark's tasks get to receivers that are not plainly at an address beside the driver."""

from dataclasses import dataclass, field

from pyspark_nsq.connector.receiver_tls import ReceiverTls


@dataclass(frozen=True)
class Starting:
    """What a task needs to start a receiver on its host."""

    session: str
    # An address of hosts, or the network in which theirs is.
    host: str | None
    ports: tuple[int, ...]
    lease_s: float


@dataclass(frozen=True)
class Way:
    tls: ReceiverTls | None
    token: str = field(repr=False)
    # Where the coordinator answers, if it has to be asked what became of a receiver.
    coordinator: str = ""
    # Set where tasks start receivers.
    starting: Starting | None = None
