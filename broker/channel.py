"""A channel: a cursor into its topic's messages, and everything that departs from plain order.

A message is in exactly one of four places, and finished when it is in none:

    backlog   not delivered yet         -> in flight (deliver), deferred (its due time is still to come)
    in flight with one consumer         -> finished (FIN), requeued (REQ 0, time-out), deferred (REQ n)
    requeued  to be delivered again     -> in flight
    deferred  until a time              -> requeued
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Final

from pyspark_nsq.broker.backlog import Backlog
from pyspark_nsq.broker.consumer import Consumer, Reasons
from pyspark_nsq.broker.deferred import Deferred
from pyspark_nsq.broker.inflight import Run
from pyspark_nsq.broker.journal import ChannelState
from pyspark_nsq.broker.latency import Latency, quantiles
from pyspark_nsq.broker.message_id import ID_BYTES
from pyspark_nsq.broker.requeued import Requeued, frames_of
from pyspark_nsq.broker.segment import Buffer, Segment
from pyspark_nsq.broker.shared import EPHEMERAL_SUFFIX, NEVER, Shared
from pyspark_nsq.broker.unreadable import UnreadableError

if TYPE_CHECKING:
    from pyspark_nsq.broker.topic import Topic

__all__ = ["Channel", "Consumer"]

Failures = list[tuple[bytes, str]]
_READ_AGAIN_NS: Final = 1_000_000_000
_AT_ONCE: Final = 4096
"""Of what there may be millions of, so many are looked at before others have their turn."""


class Channel:
    """Created by `Topic.channel` only."""

    def __init__(self, name: str, topic: Topic, shared: Shared, now: int) -> None:
        self.name = name
        self.topic = topic
        self.ephemeral = name.endswith(EPHEMERAL_SUFFIX)
        self.paused = False
        self.deleted = False
        self.consumers: list[Consumer] = []
        self.message_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.in_flight_count = 0
        self.latency_count = 0
        self.ranked = False  # some consumers are to be served before others
        self._counted: Counter[str] = Counter()  # deliveries to consumers that have left
        self._shared = shared
        self._departed: list[Consumer] = []  # gone, with messages in flight
        self._backlog = Backlog(topic.store)
        self._requeued = Requeued(topic.store)
        self._fresh = 0  # messages that have left the backlog
        self._serving: Requeued | None = None  # where `_next` found something; None: in the backlog
        self._waits_since = 0  # for the log, which could not be read
        self._read_again_at = 0
        self._reasons = Reasons()
        self._timers: list[int] = []  # when `on_time` will be called, descending
        self._scheduled = NEVER  # the next of them
        self._bounded = self.ephemeral or topic.ephemeral
        self._deferred = Deferred(topic.store.log, tracked=not self._bounded)
        self._latency = Latency(shared.options.e2e_window_ns, now) if shared.options.e2e_percentiles else None
        self._in_log = topic.store.log is not None and self._latency is None  # latencies are told by frames
        self.changed = False  # since it was last saved

    # --- numbers -----------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Messages that wait; without those in flight and deferred."""
        return self._backlog.count + self._requeued.count

    @property
    def backend_depth(self) -> int:
        """The part of `depth` beyond what memory is meant to hold."""
        return 0 if self._bounded else max(0, self.depth - self._shared.options.mem_queue_size)

    @property
    def deferred_count(self) -> int:
        return self._deferred.count

    def latency(self, now: int) -> list[tuple[float, int]]:
        """(quantile, ns) over the window; empty without percentiles in the options."""
        if self._latency is None:
            return []
        return quantiles(self._latency.buckets(now), self._shared.options.e2e_percentiles)

    @property
    def counted(self) -> Counter[str]:
        """Deliveries by how near the consumers were; empty where that is not looked at."""
        counts = self._counted.copy()
        for consumer in self.consumers:
            if consumer.nearness.counter:
                counts[consumer.nearness.counter] += consumer.message_count
        return counts

    @property
    def latencies(self) -> Latency | None:
        return self._latency

    # --- from the topic ----------------------------------------------------------------------------------------

    def room(self, count: int) -> int:
        """How many of `count` new messages it takes; an ephemeral one drops what it cannot hold."""
        if not self._bounded:
            return count
        return min(count, max(0, max(self._shared.options.mem_queue_size, 1) - self.depth))

    def add(self, first: int, stop: int, dropped: int = 0) -> None:
        """New messages of the topic; some were dropped."""
        self.message_count += stop - first + dropped
        self._backlog.add(first, stop)
        if not self.changed:
            self.note_change()
        if self.consumers and not self.paused:
            self._shared.ready[self] = None

    def add_deferred(self, segment: Segment) -> None:
        """New messages that are due later."""
        self.message_count += segment.count
        self._defer(segment, 0, segment.count, 0, segment.due)

    # --- consumers ---------------------------------------------------------------------------------------------

    def subscribe(self, consumer: Consumer) -> None:
        """Add to `consumers` (the limit of consumers is the server's to check)."""
        self.consumers.append(consumer)
        self.ranked = self.ranked or consumer.nearness.rank > 0
        self.note_ready()

    def note_ready(self) -> None:
        """If there is something to deliver, and somebody to deliver it to."""
        if self.depth and self.consumers and not self.paused:
            self._shared.ready[self] = None

    def unsubscribe(self, consumer: Consumer, now: int) -> None:
        """The client left: what it holds waits for its time-out. An ephemeral channel goes with its last consumer."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        consumer.departed = True
        if consumer.nearness.counter:
            self._counted[consumer.nearness.counter] += consumer.message_count
        if consumer.in_flight_count:
            self._departed.append(consumer)
        if self.ephemeral and not self.consumers and not self.deleted:
            self.topic.delete_channel(self.name, now)

    def deliver(self, consumer: Consumer, now: int, max_messages: int, max_bytes: int) -> tuple[list[Buffer], int]:
        """Up to `max_messages` (the caller passes min(ready_count - in_flight_count, what it likes)) as frames ready
        to send, in buffers (bytes or memoryview), and how many messages they are. All are in flight when this returns.

        At least one message when one is there, however large; after the first, `max_bytes` bounds the sum.
        ([], 0) when paused, nothing waits, or it has unsubscribed. Where much is dropped or put aside the channel is
        ready again: it goes on after others have had their turn.
        """
        buffers: list[Buffer] = []
        left, room = max_messages, max_bytes
        may_look_at = _AT_ONCE
        if self.paused or self.deleted or consumer.departed:
            return buffers, 0
        deadline = now + consumer.msg_timeout_ns
        while left > 0:
            following = self._next(now)
            if following is None:
                break
            segment, index, count, extra = following
            if count > left:
                count = left
            nbytes = segment.nbytes if count == segment.count else segment.offset(index + count) - segment.offset(index)
            if nbytes > room:
                count = segment.fitting(index, count, room)
                if not count and buffers:
                    break
                count = count or 1
                nbytes = segment.offset(index + count) - segment.offset(index)
            self._advance(count)
            if consumer.sample_rate:
                sent, sent_bytes = self._deliver_sample(consumer, segment, index, count, extra, now, buffers)
                left -= sent
                room -= sent_bytes
                may_look_at -= count
                if may_look_at <= 0:
                    self._shared.ready[self] = None
                    break
                continue
            buffers.append(frames_of(segment, index, count, extra))
            consumer.in_flight.add(segment.in_flight(nbytes, self._in_log), index, count, extra, now, deadline)
            left -= count
            room -= nbytes
        delivered = max(max_messages - left, 0)
        if delivered:
            self._count_delivered(consumer, delivered, now, deadline)
        return buffers, delivered

    def _count_delivered(self, consumer: Consumer, count: int, now: int, deadline: int) -> None:
        self.in_flight_count += count
        consumer.in_flight_count += count
        consumer.message_count += count
        if now >= self._read_again_at:
            self._waits_since = 0
        if deadline < self._scheduled:
            self._schedule(deadline)

    def _next(self, now: int) -> tuple[Segment, int, int, int] | None:
        """(segment, index, count, extra attempts) of what is to be delivered next; extra is 0 for fresh messages and
        those that come from being deferred, which nobody has seen yet."""
        if now < self._read_again_at:
            return None
        try:
            return self._find(now)
        except OSError as error:
            self._wait_for_log(error, now)
            return None

    def _wait_for_log(self, error: OSError, now: int) -> None:
        """Nothing can be read now; nothing is lost either, as long as that may change."""
        if not self._waits_since:
            self._waits_since = now
            self._shared.options.log("error", f"TOPIC({self.topic.name}): failed to read - {error}")
        if isinstance(error, UnreadableError) and now - self._waits_since >= error.patience_ns:
            self.topic.store.step_over(error)
        self._read_again_at = now + _READ_AGAIN_NS
        if self._read_again_at < self._scheduled:
            self._schedule(self._read_again_at)

    def _find(self, now: int) -> tuple[Segment, int, int, int] | None:
        put_aside = 0
        while True:
            requeued = self._requeued
            if requeued.count and (not self._backlog.count or requeued.turn <= self._fresh):
                again = requeued.head()
                if again is not None:
                    self._serving = requeued
                    return again
                continue
            head = self._backlog.head()
            if head is None:
                if requeued.count:
                    continue
                return None
            segment, index, count = head
            if not segment.due or segment.due <= now + self._shared.wall_ahead:
                self._serving = None
                return segment, index, count, 0
            self._backlog.advance(count)
            self._defer(segment, index, count, 0, segment.due)
            put_aside += 1
            if put_aside == _AT_ONCE:
                self._shared.ready[self] = None
                return None

    def _advance(self, count: int) -> None:
        """`count` messages of what `_next` gave are taken."""
        if self._serving is not None:
            self._serving.take(count)
        else:
            self._backlog.advance(count)
            self._fresh += count

    def _deliver_sample(
        self, consumer: Consumer, segment: Segment, index: int, count: int, extra: int, now: int, buffers: list[Buffer]
    ) -> tuple[int, int]:
        """Send each message with the consumer's probability, drop the others for the whole channel; how many messages
        and bytes are sent."""
        sent = nbytes = 0
        deadline = now + consumer.msg_timeout_ns
        for at in range(index, index + count):
            if random.randrange(100) < consumer.sample_rate:
                frame = frames_of(segment, at, 1, extra)
                buffers.append(frame)
                consumer.in_flight.add(segment.in_flight(len(frame), self._in_log), at, 1, extra, now, deadline)
                sent += 1
                nbytes += len(frame)
        self.note_change()
        return sent, nbytes

    # --- answers -----------------------------------------------------------------------------------------------

    def finish(self, consumer: Consumer, ids: bytes, now: int) -> Failures:
        """FIN of n ids (16 bytes each, contiguous). Returns the failed ones with the reason for the error text."""
        return self._answer(
            consumer, ids, now, lambda run, index, count: self._finish(consumer, run, index, count, now)
        )

    def requeue(self, consumer: Consumer, ids: bytes, delay_ns: int, now: int) -> Failures:
        """REQ of n ids with one delay (0: at once). The session has clamped the delay."""

        def requeue_run(run: Run, index: int, count: int) -> None:
            self._take(consumer, run, index, count)
            consumer.requeue_count += count
            self.requeue_count += count
            if delay_ns > 0:
                self._defer(run.segment, index, count, run.extra + 1, now + self._shared.wall_ahead + delay_ns)
            else:
                self._requeue(run.segment, run.segment.base + index, count, run.extra + 1)

        return self._answer(consumer, ids, now, requeue_run)

    def touch(self, consumer: Consumer, ids: bytes, now: int) -> Failures:
        """TOUCH of n ids: a new time-out from now, capped at delivery + max_msg_timeout."""

        def touch_run(run: Run, index: int, count: int) -> None:
            latest = run.delivered + self._shared.options.max_msg_timeout_ns
            deadline = min(now + consumer.msg_timeout_ns, latest)
            consumer.in_flight.retime(run, index, count, deadline)
            if deadline < self._scheduled:
                self._schedule(deadline)

        return self._answer(consumer, ids, now, touch_run)

    def _answer(self, consumer: Consumer, ids: bytes, now: int, apply: Callable[[Run, int, int], None]) -> Failures:
        """Apply to each run the ids name."""
        failures: Failures = []
        pos, end = 0, len(ids)
        while pos < end:
            found = consumer.in_flight.match(ids, pos)
            if found is None:
                message_id = ids[pos : pos + ID_BYTES]
                reason = self._reasons.of(message_id, chain(self.consumers, self._departed), now)
                failures.append((message_id, reason))
                pos += ID_BYTES
            else:
                apply(*found)
                pos += ID_BYTES * found[2]
        return failures

    def _finish(self, consumer: Consumer, run: Run, index: int, count: int, now: int) -> None:
        self._take(consumer, run, index, count)
        consumer.finish_count += count
        if self._latency is not None:
            self.latency_count += count
            segment, wall = run.segment, now + self._shared.wall_ahead
            if segment.timestamp:
                self._latency.record(wall - segment.timestamp, now, count)
            else:
                for timestamp in segment.timestamps(index, count):
                    self._latency.record(wall - timestamp, now)

    def _take(self, consumer: Consumer, run: Run, index: int, count: int) -> None:
        consumer.in_flight.take(run, index, count)
        consumer.in_flight_count -= count
        self.in_flight_count -= count
        if not self.changed:
            self.note_change()

    # --- once more ---------------------------------------------------------------------------------------------

    def _requeue(self, segment: Segment | None, seq: int, count: int, extra: int) -> None:
        """To the end of the queue: behind what waits now, but not behind a backlog longer than memory is meant to
        hold, which could take for ever."""
        waiting, limit = self._backlog.count, self._shared.options.mem_queue_size
        self._requeued.add(segment, seq, count, extra, self._fresh + (min(waiting, limit) if limit else waiting))
        self.note_change()
        if self.consumers and not self.paused:
            self._shared.ready[self] = None

    def _defer(self, segment: Segment, index: int, count: int, extra: int, due: int) -> None:
        kept = segment if self.topic.ephemeral else None
        self._deferred.add(due, segment.base + index, count, extra, kept)
        self.note_change()
        if due - self._shared.wall_ahead < self._scheduled:
            self._schedule(due - self._shared.wall_ahead)

    def schedule_deferred(self, now: int) -> None:
        """They may be due sooner than was thought."""
        due = max(self._deferred.next_due - self._shared.wall_ahead, now)
        if self._deferred.count and due < self._scheduled:
            self._schedule(due)

    def _schedule(self, deadline: int) -> None:
        """Sooner than it would be."""
        self._timers.append(deadline)
        self._scheduled = deadline
        self._shared.schedule(deadline, self)

    def on_time(self, now: int) -> None:
        """A deadline has come: time-outs and deferred messages."""
        if self.deleted or now < self._scheduled:
            return  # an earlier or a later call does the work
        while self._timers and self._timers[-1] <= now:
            self._timers.pop()
        self._scheduled = self._timers[-1] if self._timers else NEVER
        if self._waits_since:
            self.note_ready()
        ahead = self._shared.wall_ahead
        for entry in self._deferred.take_due(now + ahead, _AT_ONCE):
            self._requeue(entry.segment, entry.seq, entry.messages, entry.extra)
        deadline = self._deferred.next_due - ahead
        for consumer in self.consumers + self._departed:
            if consumer.in_flight_count:
                self._expire(consumer, now)
                deadline = min(deadline, consumer.in_flight.next_deadline)
        self._departed = [consumer for consumer in self._departed if consumer.in_flight_count]
        if deadline < self._scheduled:
            self._schedule(deadline)

    def _expire(self, consumer: Consumer, now: int) -> None:
        for run in consumer.in_flight.expire(now):
            self.timeout_count += run.left
            self.in_flight_count -= run.left
            consumer.in_flight_count -= run.left
            for index, count in run.pieces():
                self._requeue(run.segment, run.segment.base + index, count, run.extra + 1)

    # --- control -----------------------------------------------------------------------------------------------

    def pause(self, now: int) -> None:
        """No deliveries; persisted when this returns."""
        self._set_paused(True, now)

    def unpause(self, now: int) -> None:
        """The reverse of `pause`."""
        self._set_paused(False, now)

    def _set_paused(self, paused: bool, _now: int) -> None:
        self.paused = paused
        self.topic.metadata_changed()
        self.note_ready()
        if not self._bounded:
            self._shared.save_metadata()

    def empty(self, _now: int) -> None:
        """Drop everything: waiting, in flight, deferred."""
        self.forget()
        self.note_change()
        self.topic.save_state()
        if self.consumers:
            self._shared.ready[self] = None

    def forget(self) -> None:
        """Drop everything from memory."""
        self._backlog.clear()
        self._requeued.clear()
        self._deferred.clear()
        for consumer in self.consumers + self._departed:
            consumer.in_flight.clear()
            consumer.in_flight_count = 0
        self._departed.clear()
        self.in_flight_count = 0

    # --- persistence -------------------------------------------------------------------------------------------

    def note_change(self) -> None:
        """Something is to be saved, or no longer to be kept in the topic's log."""
        if not self.topic.ephemeral:
            self.changed = not self.ephemeral
            self._shared.changed[self.topic] = None

    def state(self, *, everything: bool) -> ChannelState:
        """What the journal is to be told: all, or what it does not know yet."""
        self.changed = False
        deferred, removed, everything = self._deferred.changes(everything=everything)
        passed, backlog = self._backlog.changes(everything=everything)
        taken, requeued = self._requeued.changes(everything=everything)
        return ChannelState(passed, backlog, taken, requeued, self._in_flight(), deferred, removed, everything)

    def _in_flight(self) -> list[list[int]]:
        """[seq, count, extra attempts] of what consumers have, joined where it goes on."""
        out: list[list[int]] = []
        for consumer in self.consumers + self._departed:
            for run in consumer.in_flight.runs():
                for index, count in run.pieces():
                    out.append([run.segment.base + index, count, run.extra + 1])
        out.sort()
        joined: list[list[int]] = []
        for entry in out:
            seq, count, extra = entry
            if joined and joined[-1][2] == extra and joined[-1][0] + joined[-1][1] == seq:
                joined[-1][1] += count
            else:
                joined.append(entry)
        return joined

    def restore(self, state: ChannelState, now: int) -> None:
        """Take up what `state` said."""
        self._backlog.restore(state.backlog)
        self._requeued.restore(state.requeued)
        for seq, count, extra in state.in_flight:
            self._requeued.add(None, seq, count, extra, 0)
        for seq, count, extra, due in state.deferred:
            self._deferred.add(due, seq, count, extra, None, saved=True)
        self.schedule_deferred(now)

    def needed(self) -> list[tuple[int, int]]:
        """Ranges that hold all messages it still needs from the log."""
        ranges = self._backlog.needed() + self._requeued.needed() + self._deferred.needed()
        for consumer in self.consumers + self._departed:
            ranges += [(run.segment.base + run.low, run.segment.base + run.stop) for run in consumer.in_flight.runs()]
        return ranges
