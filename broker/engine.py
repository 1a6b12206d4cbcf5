"""All topics of one nsqd: the only door the server uses. Sans-IO but for short file calls through `Files`.

One turn of the server's loop:

    1. sessions parse input: `topic.publish(bodies, now)` gives a `Ticket`, `channel.finish(...)` and the like
    2. `engine.commit(now)`: one append per topic with news; resolves tickets (`ticket.done`, `ticket.error`)
    3. `job = engine.next_sync(now)`: when an fsync is due; run `job.run()` anywhere (a worker thread), then
       `engine.synced(job, now)`. With sync_every == 1 tickets are resolved there instead of in commit.
    4. `engine.tick(now)`: time-outs, deferred messages, persistence (cheap when nothing is due)
    5. `for channel in engine.take_ready(): for consumer in channel.consumers: channel.deliver(consumer, now, ...)`
    6. `engine.take_events()`: topics and channels that came or went
    7. sleep until there is input or `engine.next_deadline(now)`
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterator
from typing import Final

from pyspark_nsq.broker import metadata
from pyspark_nsq.broker.channel import Channel
from pyspark_nsq.broker.diskqueue import GoQueues
from pyspark_nsq.broker.files import DataPathError, Files
from pyspark_nsq.broker.keeper import DIRECTORY_SUFFIX
from pyspark_nsq.broker.log import is_log_directory
from pyspark_nsq.broker.metadata import MetadataWrite, TopicMetadata
from pyspark_nsq.broker.shared import EngineOptions, Event, Shared
from pyspark_nsq.broker.sync import SyncJob, Syncs
from pyspark_nsq.broker.takeover import take_over
from pyspark_nsq.broker.topic import Topic
from pyspark_nsq.broker.version import NSQ_VERSION
from pyspark_nsq.proto.names import is_valid_name

__all__ = ["DataPathError", "Engine", "EngineOptions", "Event", "SyncJob"]

# Topics' directories end with the suffix: this is none's, whatever the topics are called.
_DELETED: Final = ".deleted-"
_DELETED_DIRECTORY: Final = re.compile(r".+\.log\.deleted-[0-9a-f]{8}")
_TICK_MAX_NS: Final = 1_000_000_000
_METADATA_DELAY_NS: Final = 100_000_000  # for each thousand topics: all of them are written each time
_REST_EVERY_NS: Final = 30_000_000_000
_WALL_TOLERANCE_NS: Final = 10_000_000  # so much later than it is due may a deferred message come
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Engine:
    """Topics by name, their persistence, their timers."""

    def __init__(self, options: EngineOptions, files: Files, now: int) -> None:
        """Lock the data path, load nsqd.dat and the logs, take over what Go's nsqd left.

        Raises DataPathError, MetadataError, OSError (all with a text for the FATAL line).
        Topics that were loaded are started; those `topic()` creates are held until `Topic.start`.
        """
        self.topics: dict[str, Topic] = {}
        self._options = options
        self._files = files
        self._shared = Shared(options, files)
        self._shared.save_metadata = self.save_metadata
        self._shared.try_to_save_metadata = self.try_to_save_metadata
        self._shared.drop_topic = self.delete_topic
        self._syncs = Syncs(options, files)
        self._next_persist = now + options.persist_interval_ns
        self._next_rest = now + _REST_EVERY_NS
        self._metadata_due = now
        self._metadata_failed = False
        self._metadata_write: MetadataWrite | None = None  # that waits for an fsync job, or is a part of one
        self._timed_by = 0  # what `wall_ahead` was when timers were set for deferred messages
        try:
            self._lock = files.lock_directory(options.data_path)
        except OSError as error:
            raise DataPathError(f"failed to lock data-path: {options.data_path}: {error.strerror}") from None
        try:
            self._load(now)
        except BaseException:
            files.close(self._lock)
            raise

    def _load(self, now: int) -> None:
        known = metadata.load(self._files, self._options.data_path, self._shared.warn)
        entries = self._files.list_directory(self._options.data_path)
        self._remove_deleted(entries)
        for name in self._names_of_logs(entries):
            known.setdefault(name, TopicMetadata())
        go_queues = GoQueues(self._shared, entries)
        for name, saved in sorted(known.items()):
            topic = self._create(name)
            topic.paused = saved.paused
            topic.load(list(saved.channels), now)
            for channel_name, paused in saved.channels.items():
                topic.channels[channel_name].paused = paused
            topic.metadata_changed()
            take_over(topic, go_queues)
            topic.start(now)
        try:
            self.save_metadata()
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            # What is there can be read all the same, and that makes room.
            self._options.log("error", f"failed to persist metadata - {error}")

    def _remove_deleted(self, entries: list[str]) -> None:
        """What was being deleted when the last process ended."""
        for entry in filter(_DELETED_DIRECTORY.fullmatch, entries):
            self._remove(os.path.join(self._options.data_path, entry))

    def _names_of_logs(self, entries: list[str]) -> Iterator[str]:
        """Topics that have a log."""
        for entry in entries:
            name = entry.removesuffix(DIRECTORY_SUFFIX)
            path = os.path.join(self._options.data_path, entry)
            if name != entry and is_valid_name(name) and is_log_directory(self._files, path):
                yield name

    def _create(self, name: str) -> Topic:
        topic = self.topics[name] = Topic(name, self._shared)
        self._shared.events.append(Event("topic_created", name))
        return topic

    def topic(self, name: str, _now: int) -> Topic:
        """Get or create. A created topic is held (`topic.started` is False): call `topic.start(now)` once the channels
        known to nsqlookupd exist. Names are not checked here."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self._create(name)
            self._shared.metadata_changed |= not topic.ephemeral
        return topic

    def delete_topic(self, name: str, _now: int) -> list[Channel]:
        """Delete a topic, its channels and files, for good when this returns. KeyError when there is none; OSError, and
        nothing has happened, when its files cannot be put aside.

        Returns the channels that were deleted: the server closes their `consumers`.
        """
        topic = self.topics[name]
        doomed = self._put_aside(topic)
        del self.topics[name]
        channels = topic.delete()
        self._shared.events.append(Event("topic_deleted", name))
        if doomed is not None:
            self._remove(doomed)
        if not topic.ephemeral:
            self.try_to_save_metadata()
        return channels

    def _put_aside(self, topic: Topic) -> str | None:
        """The directory that its files are in now: no start loads it, each removes it."""
        if topic.keeper is None or self._files.stamp(topic.keeper.directory) is None:
            return None
        doomed = f"{topic.keeper.directory}{_DELETED}{secrets.token_hex(4)}"
        self._files.rename(topic.keeper.directory, doomed)
        return doomed

    def _remove(self, doomed: str) -> None:
        try:
            self._files.remove_directory(doomed)
        except OSError as error:
            self._options.log("error", f"failed to delete {doomed} - {error}")

    # --- a turn ------------------------------------------------------------------------------------------------

    def commit(self, now: int) -> None:
        """Append everything published since the last call, one write per topic, then show it to the channels."""
        published = self._shared.published
        if not published:
            return
        self._shared.published = []
        for topic in published:
            batch = topic.write(now)
            if batch is not None and not self._syncs.wrote(topic, batch, now):
                topic.release(batch, now)

    def next_sync(self, now: int) -> SyncJob | None:
        """The fsync that is due, if any and if none is under way."""
        rewritten = self._shared.rewritten
        while rewritten:
            self._syncs.note(rewritten.popitem()[0], now)
        return self._syncs.next_job(now)

    def synced(self, job: SyncJob, now: int) -> None:
        """The job has run: resolve the tickets that waited for it."""
        self._syncs.done(job, now)
        write = job.metadata
        if write is not None and write is self._metadata_write:
            self._metadata_write = None
            self._note_metadata_saved(write.error)
            if write.error is not None:
                self._shared.metadata_changed = True
                self._metadata_due = now + self._options.persist_interval_ns

    def take_ready(self) -> list[Channel]:
        """Channels that have got messages to deliver since the last call."""
        ready = self._shared.ready
        if not ready:
            return []
        self._shared.ready = {}
        return list(ready)

    def serve_first(self, channels: list[Channel]) -> None:
        """They were taken as ready and have got nothing: they are the first to be taken next."""
        self._shared.ready = dict.fromkeys(channels) | self._shared.ready

    def take_events(self) -> list[Event]:
        """Topics and channels that came or went since the last call, in order (loaded ones included)."""
        events = self._shared.events
        if events:
            self._shared.events = []
        return events

    # --- time --------------------------------------------------------------------------------------------------

    def follow_wall(self, ahead: int, now: int) -> None:
        """`now` only tells how time goes by, and the wall's time is `ahead` of it. Timestamps, ids, and the time until
        which messages are deferred are the wall's, as after a restart; time-outs are not."""
        self._shared.wall_ahead = ahead
        if abs(ahead - self._timed_by) > _WALL_TOLERANCE_NS:
            self._timed_by = ahead
            for topic in self.topics.values():
                for channel in topic.channels.values():
                    channel.schedule_deferred(now)

    def wall(self, now: int) -> int:
        """The date."""
        return now + self._shared.wall_ahead

    def tick(self, now: int) -> None:
        """Time-outs, deferred messages, persistence."""
        shared = self._shared
        if shared.next_timer <= now:
            for channel in shared.due(now):
                channel.on_time(now)
        if shared.metadata_changed and self._metadata_write is None and now >= self._metadata_due:
            shared.metadata_changed = False
            self._metadata_write = self._syncs.metadata = MetadataWrite(self._files, *self._metadata())
            self._metadata_due = now + _METADATA_DELAY_NS * (1 + len(self.topics) // 1000)
        if now >= self._next_persist:
            self._next_persist = now + self._options.persist_interval_ns
            self._persist(now)

    def next_deadline(self, now: int) -> int:
        """When there is something to do, in ns; at most 1 s ahead of `now`."""
        if self._shared.ready:
            return now
        deadline = now + _TICK_MAX_NS
        if self._next_persist < deadline:
            deadline = self._next_persist
        if self._shared.next_timer < deadline:
            deadline = self._shared.next_timer
        if self._syncs.deadline < deadline:
            deadline = self._syncs.deadline
        if self._shared.metadata_changed and self._metadata_write is None:
            deadline = min(deadline, self._metadata_due)
        return deadline

    def _persist(self, now: int) -> None:
        for topic in list(self._shared.failing):
            if topic.keeper is not None:
                topic.keeper.probe()
        for topic in list(self._shared.changed):
            topic.save_state()
        if now >= self._next_rest:
            self._next_rest = now + _REST_EVERY_NS
            for topic in self.topics.values():
                if topic.keeper is not None:
                    topic.keeper.rest_if_idle()

    @property
    def health(self) -> OSError | None:
        """The error of a write that has not worked since; None is healthy."""
        for error in self._shared.failing.values():
            return error
        return None

    # --- metadata and the end ----------------------------------------------------------------------------------

    def _metadata(self) -> tuple[str, list[str], str]:
        """Where it is to be, and what is to be in nsqd.dat."""
        entries = [topic.metadata for _, topic in sorted(self.topics.items()) if not topic.ephemeral]
        return self._options.data_path, entries, NSQ_VERSION

    def save_metadata(self) -> None:
        """Write nsqd.dat here and now, or OSError. Pausing and deleting do it; who creates does not wait: within a
        moment it becomes a part of an fsync job."""
        self._cancel_metadata_write()
        self._shared.metadata_changed = True
        metadata.save(self._files, *self._metadata())
        self._shared.metadata_changed = False

    def _cancel_metadata_write(self) -> None:
        """What is older must not take the place of what is newer."""
        if self._metadata_write is not None:
            self._metadata_write.cancel()
            self._metadata_write = None
            self._shared.metadata_changed = True

    def try_to_save_metadata(self) -> None:
        """Write nsqd.dat now; where that fails, `tick` tries on: what has changed cannot be taken back."""
        try:
            self.save_metadata()
        except OSError as error:
            self._note_metadata_saved(error)
        else:
            self._note_metadata_saved(None)

    def _note_metadata_saved(self, error: OSError | None) -> None:
        if error is not None and not self._metadata_failed:
            self._options.log("error", f"failed to persist metadata - {error}")
        self._metadata_failed = error is not None

    def close(self, now: int) -> None:
        """Graceful exit: everything persisted including attempts and delays, files synced, data path unlocked."""
        self.commit(now)
        self._cancel_metadata_write()
        self._syncs.finish(now)
        for topic in self.topics.values():
            if topic.keeper is not None:
                topic.keeper.close()
        if self._shared.metadata_changed:
            self.try_to_save_metadata()
        self._files.close(self._lock)
