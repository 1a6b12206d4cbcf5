"""What surrounds a session."""

from typing import TYPE_CHECKING, Protocol

from pyspark_nsq.broker.channel import Channel, Consumer
from pyspark_nsq.broker.engine import Engine
from pyspark_nsq.broker.logs import Logger
from pyspark_nsq.broker.nsqd_options import NsqdOptions
from pyspark_nsq.proto.parser import Limits

if TYPE_CHECKING:
    # Imported when a client asks for it: a start without is quicker.
    import ssl


class Host(Protocol):
    """What a session needs of the nsqd around it."""

    options: NsqdOptions
    limits: Limits
    engine: Engine
    tls_context: "ssl.SSLContext | None"
    log: Logger
    exiting: bool

    def wake(self, channel: Channel, consumer: Consumer) -> None:
        """This consumer may now take more than before."""
