"""What a receiver decides: one lane, the connections that fill it, and what becomes of each message.

No socket, no thread and no clock: the process around it (``receiver.py``) brings bytes and the time, and sends what the
connections have to say. One place decides what a range contains (``read``), one what is finished (``finish``).
"""

import logging
import math
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_nsq.connector.connection import Connection, Failed, Ids, Source
from pyspark_nsq.connector.errors import DeadLetterError, SecurityError
from pyspark_nsq.connector.handshake import ServerFacts
from pyspark_nsq.connector.lanes import Chunk, Finished, Lane
from pyspark_nsq.connector.memory import Memory, share_recent_fins
from pyspark_nsq.connector.ready import RDY_GRACE_S, is_stuck, note_use, plan_ready
from pyspark_nsq.connector.redeliveries import delivered_again, id_column, split_ids, without_repeats
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.connector.source_state import Counts, Limits, SourceState
from pyspark_nsq.connector.suspects import Suspects
from pyspark_nsq.proto.arrays import Bytes, fixed_width_values, mask_array
from pyspark_nsq.proto.errors import WireError
from pyspark_nsq.proto.frames import MESSAGE_ID_SIZE
from pyspark_nsq.proto.runs import FIN, TOUCH

log = logging.getLogger(__name__)

TICK_S: Final = 0.25
_FORGET_MARGIN_S: Final = 60.0
# How long a source that is gone is remembered.
_GONE_S: Final = 60.0
# So much of nsqd's --max-msg-timeout messages may wait for others. The rest is for the batch.
_WAIT_PART: Final = 0.5


class ReceiverCore:
    def __init__(self, limits: Limits, first_position: int) -> None:
        self.lane = Lane(first_position)
        self.suspects = Suspects()
        # Messages in ranges that were asked for here but died with the receiver before.
        self.lost = 0
        self._lost_ranges: set[tuple[int, int, int]] = set()
        self.stopping = False
        self._has_subscribed = False
        # Why the query cannot go on; empty as long as it can.
        self.failure = ""
        # The newest share that holds, and how many messages can be in flight, whatever happens.
        self.share_number = 0
        self.charge = 0
        self.sources: dict[Source, SourceState] = {}
        # What sources that are forgotten have counted.
        self.past: dict[Address, Counts] = {}
        self._limits = limits
        self._memory = Memory(self.lane, self.suspects, limits.bytes_max)
        # For want of memory, or as windows are used up, it would be in vain to wait for many more messages.
        self.full = False
        # Positions before this one are not to wait for more messages any longer, lest nsqd gives them up.
        self.due = 0
        # A source fills its window, and could fill a larger one.
        self.busy = False
        self._plan_due = 0.0

    # Connections.

    def assign(
        self, sources: Iterable[Source], shared: Iterable[Source] = (), moved: Collection[Source] = frozenset()
    ) -> None:
        """These are to be connected; others stay as long as their connections last, and are not connected again.

        Of those that are shared other receivers hold messages too. Those that have moved are theirs alone from now on.
        """
        assigned, with_others = set(sources), set(shared)
        for source in assigned:
            self._state(source)
        for source, state in list(self.sources.items()):
            state.assigned = source in assigned
            state.shared = state.shared or source in with_others
            state.leaving = source in moved

    def take_share(self, number: int, in_flight_max: int, bytes_max: int, now: float) -> None:
        """From now on this much of the query's budget is for this receiver."""
        self._limits = replace(self._limits, in_flight_max=in_flight_max, bytes_max=bytes_max)
        self._memory.size_max = bytes_max
        self._plan(now)
        self.share_number = number

    def _state(self, source: Source) -> SourceState:
        return self.sources.setdefault(source, SourceState(source))

    def to_connect(self, now: float) -> list[Source]:
        """The connections to open now, each of which is to be answered by ``connected`` or ``connect_failed``."""
        missing: list[Source] = []
        if self.paused:
            # Nothing could come, but from one that breaks the rules and would do so again.
            return missing
        for state in self.sources.values():
            count = state.wanted - len(state.connections) - state.opening
            if state.assigned and count > 0 and now >= state.retry_at and not self.stopping:
                # One is tried first: where nobody listens, or the secret is wrong, the others would fail too.
                count = count if state.connections else min(count, 1 - state.opening)
                state.opening += count
                missing += [state.source] * count
        return missing

    def connected(self, source: Source, facts: ServerFacts) -> Connection:
        state = self._state(source)
        connection = Connection(source, facts, self._limits.channel, self._limits.frame_size_max)
        state.opening -= 1
        state.connections.append(connection)
        return connection

    def connect_failed(self, source: Source, now: float, refusal: str = "") -> int:
        """How often in a row it has failed now; ``refusal`` says why, where trying again does not help."""
        state = self._state(source)
        state.opening -= 1
        state.refusal = refusal
        self._back_off(state, now)
        return state.failures

    @property
    def refusal(self) -> str:
        """Why every source has been refused since the start; empty where there is hope."""
        if self._has_subscribed:
            return ""
        refusals = [state.refusal for state in self.sources.values() if state.assigned]
        return refusals[0] if refusals and all(refusals) else ""

    def _back_off(self, state: SourceState, now: float) -> None:
        state.counts.failed_connections += 1
        delay = min(self._limits.retry_delay_s * 2 ** min(state.failures, 30), self._limits.retry_delay_s_max)
        state.failures += 1
        state.retry_at = now + delay

    def lost_connection(self, connection: Connection, now: float, error: Exception | None = None) -> None:
        """Its socket is closed, for an error or in order: what it delivered can be read, but not finished there."""
        state = self._state(connection.source)
        connection.alive = False
        state.connections.remove(connection)
        state.lost_at = now
        if isinstance(error, DeadLetterError):
            self.failure = str(error)
        if not connection.subscribed:
            state.refusal = str(error) if isinstance(error, SecurityError) else ""
        if not (connection.closed_by_nsqd and state.usable):
            # nsqd may have crashed, or may before it is connected again. The other connections would tell of that.
            state.suspect_until = now + connection.max_msg_timeout_s + _FORGET_MARGIN_S
        self.suspects.lose(connection)
        self._memory.forget(connection)
        # After its answer to CLS nsqd has read all.
        if not connection.closed_by_nsqd:
            state.redeliveries.commit(connection.recent_fins(), now)
        for chunk in self.lane:
            if chunk.connection is connection:
                self._index(chunk)
        if not connection.closing:
            has_lasted = connection.subscribed and now - state.subscribed_at >= self._limits.retry_delay_s_max
            if (connection.has_delivered or has_lasted) and not isinstance(error, WireError):
                # It did well. One that only accepts a SUB, or breaks the protocol, is asked ever later.
                state.failures = 0
            self._back_off(state, now)
        self._plan_due = now

    # Messages.

    @property
    def paused(self) -> bool:
        """It holds as many bytes as it may."""
        return self._memory.is_used_up

    def may_read(self, connection: Connection, now: float) -> bool:
        """Whether there is room for what comes: until then it waits in the socket."""
        return self.stopping or self._memory.has_room(connection, now)

    def received(self, connection: Connection, data: Bytes, now: float) -> bool:
        """Whether these bytes complete a frame. ``WireError`` and ``ConnectError`` say to close the connection."""
        was_subscribed = connection.subscribed
        events = connection.receive(data)
        state = self._state(connection.source)
        if connection.subscribed and not was_subscribed:
            self._has_subscribed = True
            state.subscribed_at = now
            self._plan_due = now
        self._memory.received(connection, events.messages.nbytes, now)
        for failed in events.failed:
            self._too_late(state, connection, failed, now)
        for message_id in events.published:
            state.counts.dead_lettered += 1
            self._finish_ids(state, connection, message_id)
        if len(events.messages):
            self._arrived(state, connection, events.messages, now)
        if not self.paused and self._memory.size >= self._limits.bytes_max:
            # At once: the next read may bring as much again.
            self._plan(now)
        return events.has_frame

    def _arrived(self, state: SourceState, connection: Connection, messages: pa.RecordBatch, now: float) -> None:
        state.counts.received += len(messages)
        for part in without_repeats(messages):
            self._take_in(state, connection, part, now)
        note_use(state, (connection,), now)

    def _take_in(self, state: SourceState, connection: Connection, messages: pa.RecordBatch, now: float) -> None:
        self._recall(state, messages, now)
        if state.redeliveries:
            messages = self._without_redelivered(state, connection, messages, now)
        if state.shared:
            messages = self._without_suspects(state, connection, messages, now)
        self._accept(state, connection, messages, now)

    def _recall(self, state: SourceState, messages: pa.RecordBatch, now: float) -> None:
        """Be ready for those that nsqd delivers again although their connection lasts.

        Both ways may take longer than a message's time-out: the FIN for its first copy, or that copy itself.
        """
        again = delivered_again(messages)
        if not again.any():
            return
        self._index_all(state.source)
        repeated = split_ids(id_column(messages.filter(mask_array(again))))
        if finished := state.recent_fins().intersection(repeated):
            state.redeliveries.commit(finished, now)

    def _accept(self, state: SourceState, connection: Connection, messages: pa.RecordBatch, now: float) -> None:
        """Messages that nobody has: they are to be emitted, if they are no poison."""
        self._count_until_mark(state, messages)
        if self._limits.attempts_max is not None:
            messages = self._without_poison(state, connection, messages, self._limits.attempts_max)
        if len(messages):
            self.lane.append(messages, connection, now)

    def _count_until_mark(self, state: SourceState, messages: pa.RecordBatch) -> None:
        if self._limits.mark_ns is not None:
            timestamps = fixed_width_values(messages.column("timestamp"), np.int64)
            state.received_until_mark += int(np.count_nonzero(timestamps <= self._limits.mark_ns))

    def _without_redelivered(
        self, state: SourceState, connection: Connection, messages: pa.RecordBatch, now: float
    ) -> pa.RecordBatch:
        """Join what is held to its first copy, finish what is committed, keep the rest."""
        is_new, held, committed = state.redeliveries.sort_out(id_column(messages))
        for _, position in held:
            chunk = self.lane.at(position)
            owner = chunk.rehomed.get(position, chunk.connection)
            if owner and owner.alive:
                owner.in_flight -= 1
                state.counts.timed_out += 1
            chunk.rehomed[position] = connection
            chunk.touch_at = min(chunk.touch_at, now + connection.msg_timeout_s / 2)
            self.lane.touch_due = min(self.lane.touch_due, chunk.touch_at)
        if committed:
            self._finish_ids(state, connection, b"".join(committed))
        state.counts.redelivered += len(held) + len(committed)
        return messages if is_new.all() else messages.filter(mask_array(is_new))

    def _without_suspects(
        self, state: SourceState, connection: Connection, messages: pa.RecordBatch, now: float
    ) -> pa.RecordBatch:
        """Keep back what another receiver may hold: ``settle`` tells what becomes of it."""
        if now < state.suspect_until:
            # After a crash nsqd counts attempts anew.
            self.suspects.add(messages, connection, now)
            return messages.slice(0, 0)
        is_suspect = delivered_again(messages)
        if not is_suspect.any():
            return messages
        self.suspects.add(messages.filter(mask_array(is_suspect)), connection, now)
        return messages.filter(mask_array(~is_suspect))

    def settle(self, source: Source, finished: Ids, unknown: Ids, now: float) -> None:
        """What the other receivers say about suspects: whose batch is committed, and which none of them has."""
        state = self._state(source)
        for connection, messages in self.suspects.take(source, finished):
            self._count_until_mark(state, messages)
            self._finish_ids(state, connection, id_column(messages))
            state.counts.redelivered += len(messages)
        for connection, messages in self.suspects.take(source, unknown):
            first = self.lane.end
            self._accept(state, connection, messages, now)
            if self.lane.end > first:
                # They have been here for a while, and may come again at any moment.
                chunk = self.lane.at(first)
                self._index(chunk)
                chunk.touch_at = self.lane.touch_due = now

    def judge(self, source: Source, ids: Ids) -> tuple[bytes, bytes]:
        """Of messages that came to another receiver: which are held here, and which have been finished."""
        state = self.sources.get(source)
        if state is None:
            return b"", b""
        self._index_all(source)
        return state.redeliveries.judge(ids, state.recent_fins())

    def _without_poison(
        self, state: SourceState, connection: Connection, messages: pa.RecordBatch, attempts_max: int
    ) -> pa.RecordBatch:
        """Publish to the dead letter topic, or drop, what has been delivered too often; keep the rest."""
        is_poison = fixed_width_values(messages.column("attempts"), np.uint16) > attempts_max
        if not is_poison.any():
            return messages
        poison = messages.filter(mask_array(is_poison))
        topic = self._limits.dead_letter_topic
        if topic:
            for message_id, body in zip(poison.column("id"), poison.column("body"), strict=True):
                connection.publish(topic, message_id.as_py(), body.as_py())
        else:
            state.counts.dropped += len(poison)
            log.warning("%s: dropped %d messages after %d attempts", _name(state.source), len(poison), attempts_max)
            self._finish_ids(state, connection, id_column(poison))
        return messages.filter(mask_array(~is_poison))

    def _finish_ids(self, state: SourceState, connection: Connection, ids: Ids) -> None:
        connection.finish(ids)
        state.finished(ids)

    def _too_late(self, state: SourceState, connection: Connection, failed: Failed, now: float) -> None:
        """nsqd has given the message up, and delivers it again, to whomever."""
        if failed.word == TOUCH and not self._give_up(state, connection, failed.message_id):
            # That was known, or its FIN fails as well.
            return
        state.counts.timed_out += 1
        if failed.word == FIN:
            state.redeliveries.commit([failed.message_id], now)

    def _give_up(self, state: SourceState, connection: Connection, message_id: bytes) -> bool:
        """nsqd has it no longer in flight on this connection: whether it was taken for that."""
        if self.suspects.give_up(connection, message_id):
            return True
        position = state.redeliveries.held.get(message_id)
        if position is None:
            return False
        chunk = self.lane.at(position)
        if chunk.rehomed.get(position, chunk.connection) is not connection:
            return False
        chunk.rehomed[position] = None
        connection.in_flight -= 1
        return True

    def _index_all(self, source: Source) -> None:
        for chunk in self.lane:
            if chunk.source == source:
                self._index(chunk)

    def _index(self, chunk: Chunk) -> None:
        """Recognise its messages when they come again."""
        if not chunk.indexed:
            chunk.indexed = True
            self._state(chunk.source).redeliveries.hold(chunk.ids(chunk.first, chunk.end), chunk.first)

    # What Spark asks for.

    def read(self, first: int, end: int) -> list[tuple[Source, pa.RecordBatch]]:
        """What a range contains; ``FinishedError`` or ``ValueError`` if it cannot be had."""
        parts = self.lane.read(first, end)
        for source, messages in parts:
            self._state(source).counts.emitted += len(messages)
        return parts

    def count_lost(self, lane: int, first: int, end: int) -> None:
        """A range of an earlier receiver was asked for: once or, where a task is tried again, more often."""
        if (lane, first, end) not in self._lost_ranges:
            self._lost_ranges.add((lane, first, end))
            self.lost += end - first
            log.warning("%d messages of a batch died with the receiver before: nsqd delivers them again", end - first)

    def finish(self, before: int, now: float) -> None:
        """Spark has committed every position before this one."""
        for part in self.lane.finish(before):
            self._finish_part(part, now)

    def _finish_part(self, part: Finished, now: float) -> None:
        chunk, first, end = part
        state = self._state(chunk.source)
        if chunk.indexed:
            state.redeliveries.release(chunk.ids(first, end))
        for owner, ids in chunk.owned_ids(first, end):
            if owner:
                self._finish_ids(state, owner, ids)
            else:
                state.redeliveries.commit(ids, now)

    # Time.

    def tick(self, now: float) -> None:
        """Do what is due; to be called every ``TICK_S``, and before anything that came after a long silence."""
        if now >= self.lane.touch_due:
            self._touch(now)
        if now >= self.suspects.touch_due:
            self._touch_suspects(now)
        if now >= self._plan_due and not self.stopping:
            self._plan(now)

    def _touch(self, now: float) -> None:
        """Keep nsqd from giving up what is held."""
        for chunk in self.lane:
            if now < chunk.touch_at:
                continue
            # From here on nsqd might be quicker than the next touch: its messages may come again.
            self._index(chunk)
            chunk.touch_at = now + chunk.connection.msg_timeout_s / 2
            for owner, ids in chunk.owned_ids(chunk.first, chunk.end):
                if owner:
                    owner.touch(ids)
                    self._state(chunk.source).counts.touched += len(ids) // MESSAGE_ID_SIZE
            if now - chunk.delivered_at > chunk.connection.max_msg_timeout_s and not chunk.warned:
                chunk.warned = True
                log.warning(
                    "%s: %d messages are held for longer than %g s, which is nsqd's --max-msg-timeout: it delivers "
                    "them again. Make batches shorter (maxMessagesPerTrigger, maxInFlight) or raise --max-msg-timeout",
                    *(_name(chunk.source), len(chunk.messages), chunk.connection.max_msg_timeout_s),
                )
        self.lane.touch_due = min((chunk.touch_at for chunk in self.lane), default=math.inf)

    def _touch_suspects(self, now: float) -> None:
        for connection, ids in self.suspects.by_connection().items():
            connection.touch(ids)
            self._state(connection.source).counts.touched += len(ids) // MESSAGE_ID_SIZE
        self.suspects.touched(now)

    def _plan(self, now: float) -> None:
        """Decide anew how much may be in flight where."""
        self._plan_due = now + TICK_S
        self._memory.look(now)
        self._forget(now)
        share_recent_fins([connection for state in self.sources.values() for connection in state.connections])
        plan_ready(self.sources.values(), self._limits.in_flight_max, self.paused, now)
        self.full = is_stuck(self.sources.values(), now) or self.paused
        self.due = self._end_of_due(now)
        self.busy = any(now < state.busy_until for state in self.sources.values())
        self.charge = sum(c.charge(now) for state in self.sources.values() for c in state.connections)

    def _end_of_due(self, now: float) -> int:
        """The end of what has waited as long as it may; 0 where nothing has."""
        ends = (
            chunk.end
            for chunk in self.lane
            if now - chunk.delivered_at > chunk.connection.max_msg_timeout_s * _WAIT_PART
        )
        return max(ends, default=0)

    def _forget(self, now: float) -> None:
        """Drop what is no longer needed of sources and messages that are gone."""
        in_lane = {chunk.source for chunk in self.lane}
        for state in list(self.sources.values()):
            timeout_s = max((c.max_msg_timeout_s for c in state.usable), default=math.inf)
            state.redeliveries.forget(now, timeout_s + _FORGET_MARGIN_S)
            state.fin_index = None
            is_gone = not (state.assigned or state.opening or state.connections or state.source in in_lane)
            if is_gone and now - state.lost_at > _GONE_S:
                del self.sources[state.source]
                self.past.setdefault(state.source.nsqd, Counts()).add(state.counts)

    # The end.

    def stop(self, now: float) -> None:
        """Receive nothing more, and give back what is unfinished. nsqd's answer to CLS says that it has read that."""
        self.stopping = True
        for state in self.sources.values():
            for connection in state.connections:
                connection.set_rdy(0, now, RDY_GRACE_S)
        self.requeue()
        for state in self.sources.values():
            for connection in state.connections:
                connection.close()

    def requeue(self) -> None:
        """Give back all that is unfinished, in its order; what was on its way at ``stop`` needs it once more."""
        for chunk, first, end in self.lane.finish(self.lane.end):
            state = self._state(chunk.source)
            for owner, ids in chunk.owned_ids(first, end):
                if owner:
                    self._requeue_ids(state, owner, ids)
        for source, ids in self.suspects.ids().items():
            for connection, messages in self.suspects.take(source, ids):
                self._requeue_ids(self._state(source), connection, id_column(messages))

    def _requeue_ids(self, state: SourceState, connection: Connection, ids: Ids) -> None:
        connection.requeue(ids)
        state.counts.requeued += len(ids) // MESSAGE_ID_SIZE


def _name(source: Source) -> str:
    return f"{source.topic} on {source.nsqd}"
