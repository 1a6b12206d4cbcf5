"""A topic: what is published, in order, before and while its channels take it."""

from __future__ import annotations

from collections import Counter

from pyspark_nsq.broker.batch import Batch, Bodies, Ticket
from pyspark_nsq.broker.channel import Channel
from pyspark_nsq.broker.journal import ChannelState, Range
from pyspark_nsq.broker.keeper import Keeper
from pyspark_nsq.broker.latency import quantiles
from pyspark_nsq.broker.message_id import IdGenerator
from pyspark_nsq.broker.metadata import TopicMetadata, entry
from pyspark_nsq.broker.segment import Segment
from pyspark_nsq.broker.shared import EPHEMERAL_SUFFIX, Event, Shared
from pyspark_nsq.broker.store import Store

__all__ = ["Batch", "Bodies", "Ticket", "Topic"]


class Topic:
    """Created by `Engine.topic` only."""

    def __init__(self, name: str, shared: Shared) -> None:
        self.name = name
        self.ephemeral = name.endswith(EPHEMERAL_SUFFIX)
        self.paused = False
        self.started = False
        self.deleted = False
        self.channels: dict[str, Channel] = {}
        self.message_count = 0
        self.message_bytes = 0
        self._shared = shared
        self._batch: Batch | None = None
        self.held: list[Range] = []  # messages that no channel has yet
        self._end = 0  # the next message's sequence number
        self._bounded = self.ephemeral  # a channel may not take everything
        self.keeper = None if self.ephemeral else Keeper(self, shared)
        self.store = Store(self.keeper.log if self.keeper else None, shared.options.mem_queue_size)
        self._ids = IdGenerator(shared.options.node_id)
        self._metadata = ""  # to be made

    # --- numbers -----------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Messages that are not yet in any channel."""
        return sum(stop - first for first, stop in self.held)

    @property
    def backend_depth(self) -> int:
        """The part of `depth` beyond what memory is meant to hold."""
        return 0 if self.ephemeral else max(0, self.depth - self._shared.options.mem_queue_size)

    @property
    def latency_count(self) -> int:
        return sum(channel.latency_count for channel in self.channels.values())

    def latency(self, now: int) -> list[tuple[float, int]]:
        """(quantile, ns) over the window, of all channels; empty without percentiles in the options."""
        wanted = self._shared.options.e2e_percentiles
        if not wanted:
            return []
        buckets: Counter[int] = Counter()
        for channel in self.channels.values():
            if channel.latencies is not None:
                buckets.update(channel.latencies.buckets(now))
        return quantiles(buckets, wanted)

    @property
    def log_bytes(self) -> int:
        """On disk."""
        return self.keeper.log.nbytes if self.keeper else 0

    # --- publishing --------------------------------------------------------------------------------------------

    def publish(self, bodies: Bodies, now: int, defer_ns: int = 0) -> Ticket:
        """Queue bodies (each non-empty) for the next `Engine.commit`. The list may be reused by the caller.

        The ticket is done after that commit (after the fsync with sync_every == 1): `error` is None or why it failed
        (then nothing of this turn's batch is delivered).
        """
        batch = self._batch
        due = now + self._shared.wall_ahead + defer_ns if defer_ns > 0 else 0
        if batch is None:
            batch = self._batch = Batch(bodies, due)
            self._shared.published.append(self)
        else:
            batch.add(bodies, due)
        return batch

    def write(self, now: int) -> Batch | None:
        """Build what was published and append it to the log; None when that failed."""
        batch = self._batch
        assert batch is not None
        self._batch = None
        batch.build(self._end, self._ids, now + self._shared.wall_ahead)
        keeper = self.keeper
        if keeper is not None and not self.deleted:
            keeper.log.last_id = self._ids.last
            try:
                keeper.append(batch.segments)
            except OSError as error:
                keeper.failed(error)
                batch.error = error
                batch.done = True
                return None
            batch.checkpoint = keeper.log.checkpoint
        self._end += batch.messages
        self.message_count += batch.messages
        self.message_bytes += batch.nbytes
        return batch

    def release(self, batch: Batch, now: int) -> None:
        """Show what was written to the channels, or hold it back."""
        batch.done = True
        if self.deleted:
            return
        if self.keeper is not None:
            self.keeper.checkpoint = batch.checkpoint
            self._shared.changed[self] = None
        flowing = self._flowing
        for segment in batch.segments:
            if not flowing:
                self._hold(segment)
            elif segment.due and segment.due > now + self._shared.wall_ahead:
                if not self.ephemeral:
                    self.store.append(segment)
                self._hand_out_deferred(segment)
            else:
                self._hand_out(segment)

    @property
    def _flowing(self) -> bool:
        return self.started and not self.paused and bool(self.channels)

    def _hand_out(self, segment: Segment) -> None:
        if self._bounded:
            self._hand_out_bounded(segment)
            return
        first = segment.base
        stop = first + segment.count
        segment.readers = len(self.channels)
        self.store.append(segment)
        for channel in self.channels.values():
            channel.add(first, stop)

    def _hand_out_bounded(self, segment: Segment) -> None:
        """Some channels may not take all of it."""
        channels = self.channels.values()
        count, base = segment.count, segment.base
        takes = [channel.room(count) for channel in channels]
        segment.readers = len(takes) - takes.count(0)
        partial = min(takes) < count
        if partial:
            self.store.seal()
        if segment.readers:
            self.store.append(segment)
        if partial:
            self.store.seal()
        for channel, take in zip(channels, takes, strict=True):
            channel.add(base, base + take, count - take)

    def _hand_out_deferred(self, segment: Segment) -> None:
        """Channels name it; where there is no log to find it in, they keep it themselves."""
        if self.ephemeral:
            self.store.set_readers(segment, 0)
        for channel in self.channels.values():
            channel.add_deferred(segment)

    def _hold(self, segment: Segment) -> None:
        """Keep it for when channels may have it. An ephemeral topic drops what memory is not meant to hold."""
        stop = segment.end
        if self.ephemeral:
            room = max(self._shared.options.mem_queue_size, 1) - self.depth
            stop = min(stop, segment.base + room)
            if stop <= segment.base:
                return
        self.store.append(segment)
        if self.held and self.held[-1][1] == segment.base:
            self.held[-1] = (self.held[-1][0], stop)
        else:
            self.held.append((segment.base, stop))

    def _flow(self, now: int) -> None:
        """Give the channels what was held back, if they may have it."""
        if not self._flowing or not self.held:
            return
        held, self.held = self.held, []
        self.store.seal()
        for first, stop in held:
            in_memory: list[Segment] = []
            for segment in self.store.between(first, stop):
                if segment.due > now + self._shared.wall_ahead and segment.base >= first:
                    self._pour(first, segment.base, in_memory)
                    self._hand_out_deferred(segment)
                    first = segment.end
                    in_memory = []
                else:
                    in_memory.append(segment)
            self._pour(first, stop, in_memory)
        self._note_change()

    def _pour(self, first: int, stop: int, in_memory: list[Segment]) -> None:
        """Messages first .. stop - 1, of which some may be on disk only, go to the channels."""
        if first >= stop:
            return
        count = stop - first
        takes = [channel.room(count) for channel in self.channels.values()]
        for segment in in_memory:
            self.store.set_readers(segment, sum(first + take > segment.base for take in takes))
        for channel, take in zip(self.channels.values(), takes, strict=True):
            channel.add(first, first + take, count - take)

    # --- control -----------------------------------------------------------------------------------------------

    def start(self, now: int) -> None:
        """Let messages flow to channels (idempotent)."""
        self.started = True
        self._flow(now)

    def channel(self, name: str, now: int) -> Channel:
        """Get or create; what the topic holds back (see `depth`) goes to it, later messages too."""
        channel = self.channels.get(name)
        if channel is None:
            channel = self.channels[name] = Channel(name, self, self._shared, now)
            self._set_of_channels_changed()
            self._shared.events.append(Event("channel_created", self.name, name))
            if not self.ephemeral and not channel.ephemeral:
                channel.note_change()
                self._shared.metadata_changed = True
            self._flow(now)
            self.save_state()
        return channel

    def delete_channel(self, name: str, now: int) -> Channel:
        """Delete for good; KeyError when there is none. The server closes the returned channel's `consumers`.

        An ephemeral topic goes with its last channel.
        """
        channel = self.channels.pop(name)
        self._drop_channel(channel)
        if self.ephemeral and not self.channels:
            self._shared.drop_topic(self.name, now)
        elif not self.ephemeral and not channel.ephemeral:
            assert self.keeper is not None
            self.keeper.drop_channel(name)
            self.save_state()
            self._shared.try_to_save_metadata()
        return channel

    def _set_of_channels_changed(self) -> None:
        self.metadata_changed()
        self.store.seal()
        self._bounded = self.ephemeral or any(channel.ephemeral for channel in self.channels.values())

    def _drop_channel(self, channel: Channel) -> None:
        channel.deleted = True
        channel.forget()
        self._set_of_channels_changed()
        self._shared.ready.pop(channel, None)
        self._shared.events.append(Event("channel_deleted", self.name, channel.name))

    def delete(self) -> list[Channel]:
        """The engine has taken it out: drop channels and files."""
        self.deleted = True
        channels = list(self.channels.values())
        self.channels.clear()
        for channel in channels:
            self._drop_channel(channel)
        self._shared.changed.pop(self, None)
        self._shared.rewritten.pop(self, None)
        self._shared.failing.pop(self, None)
        if self.keeper is not None:
            self.keeper.log.rest()
        return channels

    def pause(self, now: int) -> None:
        """Hold messages back from the channels. Persisted when this returns."""
        self._set_paused(True, now)

    def unpause(self, now: int) -> None:
        """The reverse of `pause`."""
        self._set_paused(False, now)

    def _set_paused(self, paused: bool, now: int) -> None:
        self.paused = paused
        self.metadata_changed()
        self._flow(now)
        if not self.ephemeral:
            self._note_change()
            self.save_state()
            self._shared.save_metadata()

    def empty(self, _now: int) -> None:
        """Drop what is not yet in channels."""
        held, self.held = self.held, []
        for first, stop in held:
            for segment in self.store.between(first, stop):
                self.store.set_readers(segment, 0)
        self._note_change()
        self.save_state()

    # --- persistence -------------------------------------------------------------------------------------------

    @property
    def metadata(self) -> str:
        """For nsqd.dat, which has all topics and is written whole whenever one changes."""
        if not self._metadata:
            channels = {name: channel.paused for name, channel in self.channels.items() if not channel.ephemeral}
            self._metadata = entry(self.name, TopicMetadata(self.paused, channels))
        return self._metadata

    def metadata_changed(self) -> None:
        """Channels have come or gone, or something was paused or goes on."""
        self._metadata = ""

    def _note_change(self) -> None:
        if not self.ephemeral:
            self._shared.changed[self] = None

    def save_state(self) -> None:
        """Write what has changed to the journal."""
        if self.keeper is not None and not self.deleted:
            self.keeper.save()

    def load(self, names: list[str], now: int) -> None:
        """Take up what is on disk, with at least the channels `names`; the topic is not started yet."""
        if self.keeper is None:
            return
        state = self.keeper.load()
        self.held = state.held
        self._end = self.keeper.log.end
        self._ids = IdGenerator(self._shared.options.node_id, self.keeper.log.last_id)
        for name in {**state.channels, **dict.fromkeys(names)}:
            channel = self.channels[name] = Channel(name, self, self._shared, now)
            self._shared.events.append(Event("channel_created", self.name, name))
            channel.restore(state.channels.get(name) or ChannelState(), now)
        self._set_of_channels_changed()
        known = max(state.checkpoint[2], self.keeper.log.begin)
        if known < self._end:  # published after the state was last saved
            self.held = [*self.held, (known, self._end)]
        if self.keeper.log.log_files:
            self._note_change()

    def import_segments(self, channel: str | None, imported: list[Segment]) -> None:
        """Messages from elsewhere, before the start: for one channel or (None) as if just published."""
        assert self.keeper is not None
        self.keeper.append(imported)
        self.keeper.checkpoint = self.keeper.log.checkpoint
        first, self._end = imported[0].base, imported[-1].end
        if channel is None:
            self.held.append((first, self._end))
        else:
            self.channels[channel].add(first, self._end)

    @property
    def end(self) -> int:
        """The sequence number of the next message."""
        return self._end
