"""The source's side on Spark's driver: it finds nsqds, runs receivers, and turns what they hold into batches.

Spark calls it about a hundred times a second: every answer comes from what receivers and nsqds said before.
"""

import logging
import secrets
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from pyspark_nsq.connector.arbiter import Arbiter
from pyspark_nsq.connector.available_now import Drain, Intake, waiting_messages
from pyspark_nsq.connector.beginning import Beginning
from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.crews import Crew, LocalCrew, RemoteCrew
from pyspark_nsq.connector.errors import DiscoveryError, NsqError
from pyspark_nsq.connector.executors import StartPartition
from pyspark_nsq.connector.offsets import START, Offset, first_position, incarnation_of
from pyspark_nsq.connector.options import SourceOptions
from pyspark_nsq.connector.placement import deal
from pyspark_nsq.connector.planning import LaneRange, available, cut_off, divide, limit_ends
from pyspark_nsq.connector.report import Report
from pyspark_nsq.connector.rows import Place, RangePartition
from pyspark_nsq.connector.source_state import Limits
from pyspark_nsq.connector.watcher import STATS_TIMEOUT_S, Watcher
from pyspark_nsq.connector.wire import to_source
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto.frames import MESSAGE_HEADER_SIZE

log = logging.getLogger(__name__)

_STATS_INTERVAL_S: Final = 2.0
# Trigger.AvailableNow waits for news of both kinds.
_DRAIN_INTERVAL_S: Final = 0.1
_REPORT_INTERVAL_S: Final = 0.5
# How long it takes to hear from lookupds why a connection has ended.
_LOOK_S: Final = 1.5
# The largest message that any nsqd is expected to be set to. It has to fit whatever ``maxInFlightBytes`` is, or its
# nsqd could never send anything else.
_FRAME_SIZE_MAX: Final = 2**30 + MESSAGE_HEADER_SIZE
# A batch that only starts receivers has so many tasks for each one that a batch with rows would have, and so many at
# least: Spark spreads them over executors, and hosts that get none have their turn with the first rows they read.
_STARTERS_FACTOR: Final = 2
_STARTERS_MIN: Final = 4


class RefusalError(NsqError):
    """No nsqd lets the query in, or one refuses its dead letters, and trying again does not help."""


class Coordinator:
    """One query's run. ``finish`` and ``latest`` take the offsets that Spark has committed."""

    def __init__(self, options: SourceOptions, available_now: bool) -> None:
        self.session = secrets.token_hex(8)
        self._options = options
        self._token = secrets.token_hex(32)
        self._mark_ns = time.time_ns() if available_now else None
        self._drain: Drain | None = None
        # Where AvailableNow's run ends: the lanes' ends when all had come that was there at its start.
        self._lasts: list[int] | None = None
        self._incarnations: list[int] = []
        self._news = threading.Condition()
        self._committed: Offset | None = None
        self._waiting_since: float | None = None
        self._lost = 0
        self._dealt: dict[Source, list[int]] = {}
        self._in_use: set[int] = set()
        interval_s = _DRAIN_INTERVAL_S if available_now else _STATS_INTERVAL_S
        self._watcher = Watcher(options, interval_s, self._sources_changed, self._wake, asks_first=available_now)
        self._crew = self._make_crew()
        self._receivers = self._crew.receivers
        # Which receivers were ever connected to a source, and may hold messages of it.
        self._holders: dict[Source, set[int]] = {}
        self._dealing = threading.Lock()
        self._arbiter = Arbiter(lambda: self._receivers, self._holders_of, self._token, options.receivers.tls)
        self._count()

    def start(self) -> None:
        self._crew.start()
        self._watcher.start()
        threading.Thread(target=self._keep_counting, name="counting", daemon=True).start()
        if self._options.receivers.count != 1:
            self._arbiter.start()

    def stop(self) -> None:
        """Have every receiver give back what is unfinished. Takes no lock: it is called in a signal handler."""
        self._crew.stop()

    def _make_crew(self) -> Crew:
        options = self._options
        # A topic that was deleted closes its connections, and to subscribe makes it anew: lookupds are asked first.
        retry_delay_s = max(options.retry.delay_s, _LOOK_S) if options.discovery.lookupds else options.retry.delay_s
        limits = Limits(
            channel=options.channel,
            # Until it gets its share.
            in_flight_max=0,
            bytes_max=options.in_flight_bytes_max,
            frame_size_max=_FRAME_SIZE_MAX,
            attempts_max=options.attempts_max,
            dead_letter_topic=options.dead_letter_topic,
            retry_delay_s=retry_delay_s,
            retry_delay_s_max=max(retry_delay_s, options.retry.delay_s_max),
            mark_ns=self._mark_ns,
        )
        query = Beginning(
            session=self.session,
            token=self._token,
            first_position=first_position(0),
            limits=limits,
            connection=options.connection,
            sources_interval_s=_DRAIN_INTERVAL_S if self._mark_ns else _REPORT_INTERVAL_S,
            lease_s=options.receivers.lease_s,
        )
        if options.receivers.count:
            return LocalCrew(options, query, self._wake, self._watcher.look_soon)
        return RemoteCrew(options, query, self._wake, self._watcher.look_soon, self._deal_again)

    def _deal_again(self) -> None:
        """Receivers have come or gone."""
        self._sources_changed(list(self._watcher.sources))

    def _sources_changed(self, sources: list[Source]) -> None:
        with self._dealing:
            live = self._crew.live
            before = self._dealt
            dealt = self._dealt = deal(sources, live, before)
            # Receivers forget sources that are gone when nothing of them is left, and topics of a pattern come and go.
            known = dealt.keys() | before.keys() | _intakes(self._statuses()).keys()
            self._holders = {source: holders for source, holders in self._holders.items() if source in known}
            self._in_use = {index for indexes in dealt.values() for index in indexes}
            for source in dealt:
                self._holders.setdefault(source, set()).update(dealt[source])
            shared = [source for source in dealt if len(self._holders[source]) > 1]
            for index in live:
                own = [source for source in dealt if index in dealt[source]]
                moved = [source for source in dealt if index not in dealt[source]]
                self._receivers[index].assign(own, shared, moved)

    def _holders_of(self, source: Source) -> Collection[int]:
        with self._dealing:
            return frozenset(self._holders.get(source, range(len(self._receivers))))

    def _wake(self) -> None:
        with self._news:
            self._news.notify_all()

    # What Spark asks.

    def finish(self, offset: Offset) -> None:
        """Spark has committed everything up to this offset."""
        if offset.session != self.session or offset == self._committed:
            return
        self._log_commit(offset)
        self._committed = offset
        for receiver, end in zip(self._receivers, offset.ends, strict=False):
            receiver.finish(end)

    def _log_commit(self, offset: Offset) -> None:
        before = self._starts(self._committed or START)
        parts = map(available, before, offset.ends)
        log.info("a batch of %d messages is committed; %s", sum(part.end - part.first for part in parts), self._counted)

    def latest(self, start: Offset, count_max: int) -> Offset:
        """The end of the next batch, or ``start`` where there is none; in AvailableNow's run that ends the query."""
        end = self._latest(start, count_max)
        if self._mark_ns is None:
            return end
        while end == start and not self._is_read(start):
            with self._news:
                self._news.wait(_DRAIN_INTERVAL_S)
            end = self._latest(start, count_max)
        if end == start:
            self._name_unread()
        return end

    def _latest(self, start: Offset, count_max: int) -> Offset:
        self._check_receivers()
        round_ends = self._crew.new_round(self._is_waited_for)
        starts = self._starts(start)
        if round_ends is not None:
            return Offset(self.session, tuple(round_ends.get(lane, first) for lane, first in enumerate(starts)))
        if self._drain is not None:
            self._look_at(self._drain, starts)
        ends = self._ends(starts)
        if self._lasts is not None:
            ends = cut_off(starts, ends, self._lasts)
        count = sum(part.end - part.first for part in map(available, starts, ends))
        if not count or not self._is_enough(count, starts):
            return start
        self._waiting_since = None
        return Offset(self.session, tuple(limit_ends(starts, ends, count_max)))

    def _ends(self, starts: Sequence[int]) -> list[int]:
        """A receiver that is being started again has nothing to offer; one that comes this moment has nothing yet."""
        return [
            status.end if (status := receiver.status) else first
            for receiver, first in zip(self._receivers, starts, strict=False)
        ]

    def _is_waited_for(self) -> bool:
        """Whether messages wait in an nsqd; also where nobody can tell."""
        stats = self._watcher.stats
        return self.backlog() > 0 or any(source not in stats for source in self._watcher.sources)

    def _check_receivers(self) -> None:
        if failure := self._crew.failure:
            raise failure
        if failures := [status.failure for status in self._statuses() if status.failure]:
            raise RefusalError(failures[0])
        refusals = [
            receiver.status.refusal if receiver.status and not receiver.incarnation else ""
            for index, receiver in enumerate(self._receivers)
            if index in self._in_use
        ]
        if refusals and all(refusals):
            raise RefusalError(refusals[0])

    def _starts(self, offset: Offset) -> list[int]:
        """Where a batch after this offset begins: at the start, if the offset is of another run."""
        ends = list(offset.ends) if offset.session == self.session else []
        # Lanes come as receivers do.
        return ends + [first_position(0)] * (len(self._receivers) - len(ends))

    def _is_enough(self, count: int, starts: Sequence[int]) -> bool:
        """Whether so many messages make a batch that begins there, or have waited long enough."""
        minimum = self._options.messages_per_trigger_min
        if minimum is None or count >= minimum or self._mark_ns is not None:
            return True
        statuses = [receiver.status or pb.Status() for receiver in self._receivers]
        if any(status.full or status.due > first for status, first in zip(statuses, starts, strict=False)):
            return True
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since >= self._options.trigger_delay_s_max

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """What the tasks of a batch read. A batch of another run has nothing: its messages come again."""
        if start == end:
            return []
        if end.session != self.session:
            log.warning(
                "the batch that ends at %s was planned by an earlier run of this query: it yields no rows here, "
                "nsqd delivers its messages again",
                end.to_json(),
            )
            return self._starters()
        ranges = []
        for lane, (first, last) in enumerate(zip(self._starts(start), end.ends, strict=False)):
            part = available(first, last)._replace(lane=lane)
            if incarnation_of(last) != self._receivers[lane].incarnation:
                self._lose(part)
            else:
                ranges.append(part)
        return list(map(self._partition, divide(ranges, self._options.num_partitions))) or self._starters()

    def _partition(self, part: LaneRange) -> InputPartition:
        crew, lane = self._crew, part.lane
        place = Place(self._receivers[lane].address, lane, crew.socket_of(lane), crew.way)
        return RangePartition(place, self._token, part.first, part.end)

    def _starters(self) -> list[InputPartition]:
        """Tasks without rows, which start receivers."""
        way = self._crew.way
        if way is None or way.starting is None:
            return []
        count = max(_STARTERS_MIN, _STARTERS_FACTOR * self._options.num_partitions)
        return [StartPartition(number, way) for number in range(count)]

    def _lose(self, part: LaneRange) -> None:
        count = part.end - part.first
        if count:
            self._lost += count
            log.warning("%d messages of a batch died with their receiver: nsqd delivers them again", count)

    # Trigger.AvailableNow.

    def prepare_drain(self) -> None:
        """Look at what is there now; ``DiscoveryError`` where nobody can say."""
        discovery = self._options.discovery
        # A pattern takes two questions.
        timeout_s = 2 * discovery.request_timeout_s + STATS_TIMEOUT_S
        if not self._watcher.first_look.wait(timeout_s) and not self._watcher.sources:
            raise DiscoveryError(
                discovery.lookupds[0],
                "neither this lookupd nor another one of lookupdHttpAddresses answered, so that it is not known what "
                "there is to read with Trigger.AvailableNow: are they running, at these addresses?",
            )
        stats = {source: told for source, (told, _) in self._watcher.first_stats.items()}
        self._drain = Drain(stats, self._watcher.sources.keys() - stats.keys(), time.monotonic())

    def _look_at(self, drain: Drain, starts: Sequence[int]) -> None:
        """Once all has come that was there at the start, what comes after it is left to the next run."""
        now = time.monotonic()
        incarnations = [receiver.incarnation for receiver in self._receivers]
        if self._incarnations != incarnations[: len(self._incarnations)]:
            drain.start_again(now)
            self._lasts = None
        self._incarnations = incarnations
        if self._lasts is not None:
            return
        for source, (stats, asked_at) in self._watcher.stats.items():
            drain.told(source, stats, asked_at)
        for source, intake in _intakes(self._statuses()).items():
            drain.received(source, intake, now)
        if drain.is_done():
            self._lasts = self._ends(starts)

    def _is_read(self, offset: Offset) -> bool:
        """Whether nothing follows this offset in AvailableNow's run, and every FIN up to it is on its way."""
        return self._lasts is not None and (offset.session != self.session or self._is_finished(offset))

    def _name_unread(self) -> None:
        assert self._drain is not None
        for source in self._drain.unread():
            log.warning(
                "nsqd %s could not be reached: what it has of topic %s was not read, and is left to the next run",
                *(source.nsqd, source.topic),
            )

    def _is_finished(self, offset: Offset) -> bool:
        """Whether the receivers have sent every FIN up to an offset."""
        return all(
            (status := receiver.status) is not None and status.finished >= end
            for receiver, end in zip(self._receivers, offset.ends, strict=False)
            if incarnation_of(end) == receiver.incarnation
        )

    # What users see.

    def backlog(self) -> int:
        """Messages that wait in nsqds, as they said last."""
        return sum(waiting_messages(stats) for stats, _ in self._watcher.stats.values())

    def report(self) -> dict[str, Any]:
        """The newest offset with backlog and counters: what ``StreamingQueryProgress`` shows as ``latestOffset``."""
        return self._report

    def _keep_counting(self) -> None:
        """Runs in a thread of its own: with thousands of topics it takes longer than Spark's calls may."""
        while True:
            try:
                self._count()
            except Exception:
                log.exception("adding up what the receivers count failed")
            time.sleep(_REPORT_INTERVAL_S)

    def _count(self) -> None:
        ends = tuple(status.end if (status := receiver.status) else 0 for receiver in self._receivers)
        self._counted = self._look()
        self._report = self._counted.to_json(Offset(self.session, ends))

    def _look(self) -> Report:
        report = Report(self.backlog(), self._lost + self._crew.lost)
        for receiver in self._receivers:
            # Those that died count on.
            report.add(receiver.past)
        report.add(self._statuses())
        return report

    def _statuses(self) -> list[pb.Status]:
        return [receiver.status for receiver in self._receivers if receiver.status]


def _intakes(statuses: Sequence[pb.Status]) -> dict[Source, Intake]:
    found: dict[Source, list[pb.SourceStatus]] = {}
    for status in statuses:
        for each in status.sources:
            found.setdefault(to_source(each.source), []).append(each)
    return {
        source: Intake(
            received=sum(each.counters.received for each in told),
            until_mark=sum(each.received_until_mark for each in told),
            connections=sum(each.connections for each in told),
            failures=max(each.counters.failed_connections for each in told),
            is_full=all(each.full for each in told),
        )
        for source, told in found.items()
    }
