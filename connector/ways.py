"""How Spark's tasks get to receivers that are not plainly at an address beside the driver."""

from dataclasses import dataclass, field

from pyspark_nsq.connector.receiver_tls import ReceiverTls


@dataclass(frozen=True)
class Starting:
    """What a task needs to start a receiver on its host."""

    # The network in which the hosts' addresses are; None for those from which they reach the driver.
    network: str | None
    # It goes along with every partition, so that it is to be small.
    ports: range
    lease_s: float


@dataclass(frozen=True)
class Way:
    tls: ReceiverTls | None
    token: str = field(repr=False)
    # Where the coordinator answers, if it has to be asked what became of a receiver.
    coordinator: str = ""
    # Set where tasks start receivers.
    starting: Starting | None = None
