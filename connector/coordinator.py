"""The source's side on Spark's driver: it finds nsqds, runs receivers, and turns what they hold into batches.

Spark calls it about a hundred times a second: every answer comes from what receivers and nsqds said before.
"""

import logging
import secrets
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from pyspark_nsq.connector.available_now import Drain, waiting_messages
from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.offsets import START, Offset, first_position, incarnation_of
from pyspark_nsq.connector.options import SourceOptions
from pyspark_nsq.connector.planning import LaneRange, available, deal, divide, limit_ends
from pyspark_nsq.connector.receiver import Setup
from pyspark_nsq.connector.receiver_process import ReceiverProcess
from pyspark_nsq.connector.report import Report
from pyspark_nsq.connector.rows import RangePartition
from pyspark_nsq.connector.source_state import Limits
from pyspark_nsq.connector.watcher import Watcher
from pyspark_nsq.connector.windows import split_evenly
from pyspark_nsq.connector.wire import to_source
from pyspark_nsq.proto import receiver_pb2 as pb

log = logging.getLogger(__name__)

_STATS_INTERVAL_S: Final = 2.0
# Trigger.AvailableNow waits for news of both kinds.
_DRAIN_INTERVAL_S: Final = 0.1
_REPORT_INTERVAL_S: Final = 0.5
# How long it takes to hear from lookupds why a connection has ended.
_LOOK_S: Final = 1.5
# A frame of one message must fit; the receiver's memory is bounded by this too.
_FRAME_SIZE_MAX: Final = 2**30


class Coordinator:
    """One query's run. ``finish`` and ``latest`` take the offsets that Spark has committed."""

    def __init__(self, options: SourceOptions, available_now: bool) -> None:
        self.session = secrets.token_hex(8)
        self._options = options
        self._token = secrets.token_hex(32)
        self._mark_ns = time.time_ns() if available_now else None
        self._drain: Drain | None = None
        self._news = threading.Condition()
        self._committed: Offset | None = None
        self._waiting_since: float | None = None
        self._lost = 0
        self._dealt: dict[Source, list[int]] = {}
        self._report: dict[str, Any] = {}
        self._report_at = -_REPORT_INTERVAL_S
        interval_s = _DRAIN_INTERVAL_S if available_now else _STATS_INTERVAL_S
        self._watcher = Watcher(options, interval_s, self._sources_changed, self._wake)
        self._receivers = [
            ReceiverProcess(self._setup_of(index), self._token, self._wake, self._watcher.look_soon)
            for index in range(options.receivers)
        ]

    def start(self) -> None:
        for receiver in self._receivers:
            receiver.start()
        self._watcher.start()

    def stop(self) -> None:
        """Have every receiver give back what is unfinished. Takes no lock: it is called in a signal handler."""
        for receiver in self._receivers:
            receiver.begin_stop()
        for receiver in self._receivers:
            receiver.end_stop()

    def _setup_of(self, index: int) -> Any:
        options = self._options
        in_flight_max = split_evenly(options.in_flight_max, options.receivers)[index]
        bytes_max = options.in_flight_bytes_max // options.receivers
        # A topic that was deleted closes its connections, and to subscribe makes it anew: lookupds are asked first.
        retry_delay_s = max(options.retry.delay_s, _LOOK_S) if options.discovery.lookupds else options.retry.delay_s
        limits = Limits(
            channel=options.channel,
            in_flight_max=in_flight_max,
            bytes_max=bytes_max,
            frame_size_max=min(options.in_flight_bytes_max, _FRAME_SIZE_MAX),
            attempts_max=options.attempts_max,
            dead_letter_topic=options.dead_letter_topic,
            retry_delay_s=retry_delay_s,
            retry_delay_s_max=max(retry_delay_s, options.retry.delay_s_max),
            mark_ns=self._mark_ns,
        )

        def make_setup(first: int, port: int) -> Setup:
            return Setup(
                host=options.receiver_host,
                port=port,
                token=self._token,
                first_position=first,
                limits=limits,
                connection=options.connection,
                sources_interval_s=_DRAIN_INTERVAL_S if self._mark_ns else _REPORT_INTERVAL_S,
            )

        return make_setup

    def _sources_changed(self, sources: list[Source]) -> None:
        self._dealt = deal(sources, len(self._receivers), self._dealt)
        for index, receiver in enumerate(self._receivers):
            receiver.assign([source for source in sources if index in self._dealt[source]])

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
        for receiver, end in zip(self._receivers, offset.ends, strict=True):
            receiver.finish(end)

    def _log_commit(self, offset: Offset) -> None:
        before = self._starts(self._committed or START)
        parts = map(available, before, offset.ends)
        log.info("a batch of %d messages is committed; %s", sum(part.end - part.first for part in parts), self._look())

    def latest(self, start: Offset, count_max: int) -> Offset:
        """The end of the next batch, or ``start`` where there is none; in AvailableNow's run that ends the query."""
        end = self._latest(start, count_max)
        if self._mark_ns is None:
            return end
        while end == start and not self._is_drained(start):
            with self._news:
                self._news.wait(_DRAIN_INTERVAL_S)
            end = self._latest(start, count_max)
        return end

    def _latest(self, start: Offset, count_max: int) -> Offset:
        self._check_receivers()
        starts = self._starts(start)
        # A receiver that is being started again has nothing to offer.
        ends = [
            status.end if (status := receiver.status) else first
            for receiver, first in zip(self._receivers, starts, strict=True)
        ]
        count = sum(part.end - part.first for part in map(available, starts, ends))
        if not count or not self._is_enough(count):
            return start
        self._waiting_since = None
        return Offset(self.session, tuple(limit_ends(starts, ends, count_max)))

    def _check_receivers(self) -> None:
        for receiver in self._receivers:
            if receiver.failure:
                raise receiver.failure

    def _starts(self, offset: Offset) -> list[int]:
        """Where a batch after this offset begins: at the start, if the offset is of another run."""
        if offset.session == self.session:
            return list(offset.ends)
        return [first_position(0)] * len(self._receivers)

    def _is_enough(self, count: int) -> bool:
        """Whether so many messages make a batch, or have waited long enough."""
        minimum = self._options.messages_per_trigger_min
        if minimum is None or count >= minimum or self._mark_ns is not None:
            return True
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since >= self._options.trigger_delay_s_max

    def partitions(self, start: Offset, end: Offset) -> list[RangePartition]:
        """What the tasks of a batch read. A batch of another run has nothing: its messages come again."""
        if start == end:
            return []
        if end.session != self.session:
            log.warning(
                "the batch that ends at %s was planned by an earlier run of this query: it yields no rows here, "
                "nsqd delivers its messages again",
                end.to_json(),
            )
            return []
        ranges = []
        for lane, (first, last) in enumerate(zip(self._starts(start), end.ends, strict=True)):
            part = available(first, last)._replace(lane=lane)
            if incarnation_of(last) != self._receivers[lane].incarnation:
                self._lose(part)
            else:
                ranges.append(part)
        return [
            RangePartition(self._receivers[part.lane].address, self._token, part.first, part.end)
            for part in divide(ranges, self._options.num_partitions)
        ]

    def _lose(self, part: LaneRange) -> None:
        count = part.end - part.first
        if count:
            self._lost += count
            log.warning("%d messages of a batch died with their receiver: nsqd delivers them again", count)

    # Trigger.AvailableNow.

    def prepare_drain(self) -> None:
        """Look at what is there now."""
        self._watcher.first_look.wait(self._options.discovery.request_timeout_s)
        self._watcher.ask_stats()
        stats = {source: told for source, (told, _) in self._watcher.stats.items()}
        self._drain = Drain(stats, self._watcher.sources.keys() - stats.keys(), time.monotonic())

    def _is_drained(self, start: Offset) -> bool:
        assert self._drain is not None
        now = time.monotonic()
        if start.session == self.session and not self._is_finished(start):
            return False
        for source, (stats, asked_at) in self._watcher.stats.items():
            self._drain.told(source, stats, asked_at)
        for source, statuses in _by_source(self._statuses()).items():
            self._drain.received(
                source,
                sum(status.received_until_mark for status in statuses),
                sum(status.connections for status in statuses),
                max(status.counters.failed_connections for status in statuses),
                now,
            )
        return self._drain.is_done(now)

    def _is_finished(self, offset: Offset) -> bool:
        """Whether the receivers have sent every FIN up to an offset."""
        return all(
            (status := receiver.status) is not None and status.finished >= end
            for receiver, end in zip(self._receivers, offset.ends, strict=True)
            if incarnation_of(end) == receiver.incarnation
        )

    # What users see.

    def backlog(self) -> int:
        """Messages that wait in nsqds, as they said last."""
        return sum(waiting_messages(stats) for stats, _ in self._watcher.stats.values())

    def report(self) -> dict[str, Any]:
        """The newest offset with backlog and counters: what ``StreamingQueryProgress`` shows as ``latestOffset``."""
        now = time.monotonic()
        if now - self._report_at >= _REPORT_INTERVAL_S:
            self._report_at = now
            ends = tuple(status.end if (status := receiver.status) else 0 for receiver in self._receivers)
            self._report = self._look().to_json(Offset(self.session, ends))
        return self._report

    def _look(self) -> Report:
        report = Report(self.backlog(), self._lost)
        for receiver in self._receivers:
            # Those that died count on.
            report.add(receiver.past)
        report.add(self._statuses())
        return report

    def _statuses(self) -> list[pb.Status]:
        return [receiver.status for receiver in self._receivers if receiver.status]


def _by_source(statuses: Sequence[pb.Status]) -> dict[Source, list[pb.SourceStatus]]:
    found: dict[Source, list[pb.SourceStatus]] = {}
    for status in statuses:
        for each in status.sources:
            found.setdefault(to_source(each.source), []).append(each)
    return found
