"""What a receiver knows of each source: a topic on an nsqd."""

from dataclasses import dataclass, field, fields
from itertools import chain

from pyspark_nsq.connector.connection import Connection, Ids, Source
from pyspark_nsq.connector.redeliveries import Redeliveries, split_ids
from pyspark_nsq.proto.frames import MESSAGE_ID_SIZE


@dataclass(frozen=True)
class Limits:
    """What the options say about one receiver."""

    channel: str
    in_flight_max: int
    bytes_max: int
    frame_size_max: int
    attempts_max: int | None
    dead_letter_topic: str | None
    retry_delay_s: float
    retry_delay_s_max: float
    # Count the messages published up to this moment: what Trigger.AvailableNow waits for.
    mark_ns: int | None = None


@dataclass
class Counts:
    received: int = 0
    emitted: int = 0
    finished: int = 0
    touched: int = 0
    requeued: int = 0
    timed_out: int = 0
    redelivered: int = 0
    dropped: int = 0
    dead_lettered: int = 0
    failed_connections: int = 0

    def add(self, other: "Counts") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass
class SourceState:
    """A source that is, or shall be, connected."""

    source: Source
    counts: Counts = field(default_factory=Counts)
    redeliveries: Redeliveries = field(default_factory=Redeliveries)
    connections: list[Connection] = field(default_factory=list)
    # What ``recent_fins`` has found: to find it takes a while, to keep it much memory.
    fin_index: set[bytes] | None = None
    assigned: bool = False
    # Another receiver has it now: nothing more is to come here.
    leaving: bool = False
    # Whether other receivers read it too, and until when all that comes may be theirs.
    shared: bool = False
    suspect_until: float = 0.0
    opening: int = 0
    wanted: int = 1
    failures: int = 0
    refusal: str = ""
    retry_at: float = 0.0
    subscribed_at: float = 0.0
    busy_until: float = 0.0
    used_up_since: float | None = None
    # Where sources take turns: since when it has one, and when its last one ended.
    turn_since: float | None = None
    turn_ended_at: float = 0.0
    lost_at: float = 0.0
    received_until_mark: int = 0

    def recent_fins(self) -> set[bytes]:
        """The ids whose FIN nsqd may not have seen: it delivers them again on whichever connection."""
        if self.fin_index is None:
            self.fin_index = set(chain.from_iterable(split_ids(each.recent_fins()) for each in self.connections))
        return self.fin_index

    def finished(self, ids: Ids) -> None:
        """FIN was sent for these."""
        self.counts.finished += len(ids) // MESSAGE_ID_SIZE
        if self.fin_index is not None:
            self.fin_index.update(split_ids(ids))

    @property
    def usable(self) -> list[Connection]:
        return [c for c in self.connections if c.subscribed and not c.closing]

    @property
    def is_used_up(self) -> bool:
        """Whether messages are in flight, and nsqd sends no more before one of them is finished."""
        usable = self.usable
        return any(c.in_flight for c in usable) and all(c.in_flight >= c.rdy for c in usable)
