"""When Trigger.AvailableNow has taken all that was there at its start. Numbers and times in, a decision out."""

from dataclasses import dataclass
from typing import Final

from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.discovery import TopicStats

# Where no message from before the start has come for so long, others have taken them, or the channel is paused.
_QUIET_S: Final = 5.0
# Deferred messages that are due come within this time.
_DEFERRED_QUIET_S: Final = 1.0
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


@dataclass
class _Progress:
    # None where the nsqd's HTTP address is not known.
    there: int | None
    deferred: int
    received: int = 0
    received_at: float = 0.0
    connected: bool = False
    failures: int = 0
    stats: TopicStats | None = None
    stats_at: float = -1.0


class Drain:
    """``received`` and ``told`` bring the news; ``is_done`` says whether every source has given what it had."""

    def __init__(self, stats: dict[Source, TopicStats | None], unknown: set[Source], now: float) -> None:
        self._sources = {source: _Progress(waiting_messages(each), _deferred(each)) for source, each in stats.items()}
        self._sources.update({source: _Progress(None, 0) for source in unknown})
        for progress in self._sources.values():
            progress.received_at = now

    def received(self, source: Source, until_mark: int, connections: int, failures: int, now: float) -> None:
        """What a receiver says about a source."""
        progress = self._sources.get(source)
        if progress is None:
            return
        if until_mark != progress.received or (connections and not progress.connected):
            progress.received, progress.received_at = until_mark, now
        progress.connected = progress.connected or connections > 0
        progress.failures = failures

    def told(self, source: Source, stats: TopicStats | None, asked_at: float) -> None:
        """What the nsqd said when it was asked at this time."""
        progress = self._sources.get(source)
        if progress is not None:
            progress.stats, progress.stats_at = stats, asked_at

    def is_done(self, now: float) -> bool:
        return all(_is_drained(progress, now) for progress in self._sources.values())


def _is_drained(progress: _Progress, now: float) -> bool:
    if not progress.connected:
        return progress.failures >= _FAILURES_MAX
    if progress.there is not None and progress.received >= progress.there and not progress.deferred:
        return True
    quiet_s = now - progress.received_at
    is_fresh = progress.stats_at > progress.received_at
    if is_fresh and waiting_messages(progress.stats) == 0 and not _worked_on(progress.stats):
        return quiet_s >= (_DEFERRED_QUIET_S if _deferred(progress.stats) else 0)
    return quiet_s >= _QUIET_S and not (is_fresh and progress.stats and orphans(progress.stats))


def _worked_on(stats: TopicStats | None) -> int:
    """Messages at clients. They may be our own receiver's, which has not told of them yet."""
    return stats.channel.in_flight_at_clients if stats and stats.channel else 0


def _deferred(stats: TopicStats | None) -> int:
    return stats.channel.deferred if stats and stats.channel else 0
