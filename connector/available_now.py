"""When Trigger.AvailableNow has taken all that was there at its start. Numbers and times in, a decision out."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.discovery import TopicStats

# Where no message from before the start has come for so long, others have taken them, or the channel is paused.
_QUIET_S: Final = 5.0
# Deferred messages that are due come within this time: Go's nsqd looks at a channel that is new only after 5 seconds.
_DEFERRED_QUIET_S: Final = 6.0
# So much of the time between two looks counts as silence where the receivers were full: between them they had room.
_FULL_LOOK_S: Final = 1.0
# Messages that have no consumer for so long had one that is dead. For a moment it seems so where others are at work.
_ORPHANED_S: Final = 1.0
# After so many failures in a row an nsqd counts as not there.
_FAILURES_MAX: Final = 3


def waiting_messages(stats: TopicStats | None) -> int:
    """How many messages will come without anybody publishing: not those that a live consumer works on."""
    if stats is None:
        return 0
    return stats.depth + (stats.channel.depth + orphans(stats) if stats.channel else 0)


def orphans(stats: TopicStats) -> int:
    """Messages in flight whose consumer is gone: nsqd delivers them again after their time-out."""
    return max(0, stats.channel.in_flight - stats.channel.in_flight_at_clients) if stats.channel else 0


class Intake(NamedTuple):
    """What the receivers of a source say of it together."""

    # Messages, and those of them that were published before the start.
    received: int
    until_mark: int
    connections: int
    failures: int
    # Nothing more can come before something is finished.
    is_full: bool


_NOTHING: Final = Intake(0, 0, 0, 0, is_full=False)


@dataclass
class _Progress:
    # None where the nsqd's HTTP address is not known.
    there: int | None
    deferred: int
    looked_at: float
    received_at: float
    intake: Intake = _NOTHING
    connected: bool = False
    # How long no message has come that was there at the start, and how long none at all.
    quiet_s: float = 0.0
    idle_s: float = 0.0
    stats: TopicStats | None = None
    stats_at: float = -1.0
    # Since when there are messages whose consumer is gone.
    orphaned_at: float | None = None

    @property
    def is_fresh(self) -> bool:
        return self.stats_at > self.received_at

    @property
    def has_all(self) -> bool:
        return self.there is not None and self.intake.until_mark >= self.there and not self.deferred


class Drain:
    """``received`` and ``told`` bring the news; ``is_done`` says whether every source has given what it had."""

    def __init__(self, stats: dict[Source, TopicStats | None], unknown: set[Source], now: float) -> None:
        self._sources = {
            source: _Progress(waiting_messages(each), _deferred(each), now, now) for source, each in stats.items()
        }
        self._sources.update({source: _Progress(None, 0, now, now) for source in unknown})

    def received(self, source: Source, intake: Intake, now: float) -> None:
        """What receivers say about a source."""
        progress = self._sources.get(source)
        if progress is None:
            return
        before, progress.intake = progress.intake, intake
        passed_s, progress.looked_at = now - progress.looked_at, now
        if intake.is_full and intake.received == before.received:
            passed_s = min(passed_s, _FULL_LOOK_S)
        is_news = intake.until_mark != before.until_mark or (intake.connections > 0 and not progress.connected)
        progress.quiet_s = 0.0 if is_news else progress.quiet_s + passed_s
        progress.idle_s = 0.0 if is_news or intake.received != before.received else progress.idle_s + passed_s
        if is_news:
            progress.received_at = now
        progress.connected = progress.connected or intake.connections > 0

    def told(self, source: Source, stats: TopicStats | None, asked_at: float) -> None:
        """What the nsqd said when it was asked at this time."""
        progress = self._sources.get(source)
        if progress is None:
            return
        progress.stats, progress.stats_at = stats, asked_at
        if stats and orphans(stats):
            progress.orphaned_at = asked_at if progress.orphaned_at is None else progress.orphaned_at
        elif progress.orphaned_at is not None:
            if asked_at - progress.orphaned_at >= _ORPHANED_S:
                # nsqd has taken them back, and they are about to come.
                progress.quiet_s = progress.idle_s = 0.0
            progress.orphaned_at = None

    def start_again(self, now: float) -> None:
        """A receiver is gone: what it held comes again, and it counts no longer."""
        for progress in self._sources.values():
            progress.intake, progress.connected = _NOTHING, False
            progress.looked_at = progress.received_at = now
            progress.quiet_s = progress.idle_s = 0.0

    def is_done(self) -> bool:
        return all(map(_is_drained, self._sources.values()))

    def unread(self) -> Iterable[Source]:
        """Where messages may have been left, as there is no connection any more, or never was one."""
        return [
            source
            for source, progress in self._sources.items()
            if not (progress.intake.connections or progress.has_all or _is_empty(progress))
        ]


def _is_drained(progress: _Progress) -> bool:
    if _is_empty(progress):
        return True
    if not progress.connected:
        return progress.intake.failures >= _FAILURES_MAX
    if progress.has_all:
        return True
    if progress.is_fresh and progress.stats and orphans(progress.stats):
        return False
    # Where messages are published all the time it is never idle. Clocks differ: some that look new may be older.
    has_enough = progress.intake.received >= (progress.there or 0)
    quiet_s = _DEFERRED_QUIET_S if _deferred(progress.stats) else _QUIET_S
    return progress.quiet_s >= quiet_s and (has_enough or progress.idle_s >= quiet_s)


def _is_empty(progress: _Progress) -> bool:
    """Whether the nsqd has said, after all that came, that nothing is left."""
    if not progress.is_fresh or waiting_messages(progress.stats) or _worked_on(progress.stats):
        return False
    return not _deferred(progress.stats) or progress.stats_at - progress.received_at >= _DEFERRED_QUIET_S


def _worked_on(stats: TopicStats | None) -> int:
    """Messages at clients. They may be our own receiver's, which has not told of them yet."""
    return stats.channel.in_flight_at_clients if stats and stats.channel else 0


def _deferred(stats: TopicStats | None) -> int:
    return stats.channel.deferred if stats and stats.channel else 0
