"""What the engine, its topics and channels have in common: options, files, and the to-do lists between them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark_nsq.broker.files import Files
from pyspark_nsq.broker.open_logs import OpenLogs

if TYPE_CHECKING:
    from pyspark_nsq.broker.channel import Channel
    from pyspark_nsq.broker.topic import Topic

EPHEMERAL_SUFFIX: Final = "#ephemeral"
NEVER: Final = (1 << 63) - 1


def _no_log(_level: str, _text: str) -> None:
    """The default of `EngineOptions.log`: silence."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What the engine needs of nsqd's options; all times in nanoseconds."""

    data_path: str
    node_id: int = 0
    mem_queue_size: int = 10_000
    max_bytes_per_file: int = 100 * 1024 * 1024
    max_msg_size: int = 1024 * 1024
    sync_every: int = 2500
    sync_timeout_ns: int = 2_000_000_000
    max_msg_timeout_ns: int = 900_000_000_000
    open_logs_max: int = 512  # topics that keep files open; two files each
    persist_interval_ns: int = 1_000_000_000
    e2e_percentiles: tuple[float, ...] = ()
    e2e_window_ns: int = 600_000_000_000
    log: Callable[[str, str], None] = field(default=_no_log)  # (level in lower case, text)


@dataclass(frozen=True, slots=True)
class Event:
    """A topic or channel came or went. `kind`: topic_created, topic_deleted, channel_created, channel_deleted."""

    kind: str
    topic: str
    channel: str | None = None


class Shared:
    """One for each engine."""

    def __init__(self, options: EngineOptions, files: Files) -> None:
        self.options = options
        self.files = files
        self.open_logs = OpenLogs(options.open_logs_max)
        self.ready: dict[Channel, None] = {}  # an ordered set
        self.published: list[Topic] = []  # with messages for the next commit
        self.changed: dict[Topic, None] = {}  # whose state is to be written to their journal
        self.rewritten: dict[Topic, None] = {}  # whose journal waits for an fsync
        self.events: list[Event] = []
        self.failing: dict[Topic, OSError] = {}  # whose last write failed
        self.metadata_changed = False
        self.wall_ahead = 0  # see `Engine.follow_wall`
        self.save_metadata: Callable[[], None] = lambda: None
        self.try_to_save_metadata: Callable[[], None] = lambda: None
        self.drop_topic: Callable[[str, int], object] = lambda _name, _now: None
        self._timers: list[tuple[int, int, Channel]] = []
        self._timer_count = 0
        self.next_timer = NEVER

    def warn(self, text: str) -> None:
        self.options.log("warning", text)

    def schedule(self, deadline: int, channel: Channel) -> None:
        """Call `channel.on_time` at `deadline`."""
        self._timer_count += 1
        heapq.heappush(self._timers, (deadline, self._timer_count, channel))
        self.next_timer = self._timers[0][0]

    def due(self, now: int) -> list[Channel]:
        """Take the channels whose deadline has come."""
        channels = []
        while self._timers and self._timers[0][0] <= now:
            channels.append(heapq.heappop(self._timers)[2])
        self.next_timer = self._timers[0][0] if self._timers else NEVER
        return channels
