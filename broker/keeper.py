"""What a topic keeps on disk: the log of its messages and the journal of what its channels have done with them.

The log is written before anything is acknowledged; the journal follows within a second, and at once when channels come
or go. The journal's checkpoint says up to where the channels' states know the log: what lies behind it was shown to
all channels, or to none yet.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from pyspark_nsq.broker.journal import ChannelState, Journal, Range, TopicState
from pyspark_nsq.broker.log import Checkpoint, Log
from pyspark_nsq.broker.segment import Segment
from pyspark_nsq.broker.shared import Shared

if TYPE_CHECKING:
    from pyspark_nsq.broker.topic import Topic

DIRECTORY_SUFFIX: Final = ".log"
_KEEP_FILE_BYTES: Final = 4 * 1024 * 1024
"""A last file with nothing but finished messages is deleted only from this size on: not one a second."""


class Keeper:
    """Of one topic that is not ephemeral."""

    def __init__(self, topic: Topic, shared: Shared) -> None:
        self._topic = topic
        self._shared = shared
        self._files = shared.files
        self.directory = os.path.join(shared.options.data_path, topic.name + DIRECTORY_SUFFIX)
        self.log = Log(shared.files, self.directory, shared.options.max_bytes_per_file, shared.warn, shared.open_logs)
        self.journal = Journal(shared.files, self.directory, shared.warn)
        self.checkpoint: Checkpoint = (0, 0, 0, 0)  # of the log when what is shown to channels was written
        self.importing: int | None = None  # the log's end before messages from elsewhere were being appended
        self.imported: dict[str, list[int]] = {}  # files they came from, as in TopicState
        self._gone: list[str] = []  # channels deleted since the journal was last told
        self._rested_at = -1

    # --- messages ----------------------------------------------------------------------------------------------

    def load(self) -> TopicState:
        """Read the state; find the log's end."""
        known = self.journal.load()
        state = known or TopicState()
        self.log.load(state.checkpoint)
        if known is None and self.log.log_files:
            self._shared.warn(f"{self.journal.path} is missing: what is in the log beside it counts as just published")
        if state.importing is not None:  # it did not come to an end
            self.log.truncate(state.importing)
        self.imported = state.imported
        self.checkpoint = self.log.checkpoint
        return state

    def append(self, segments: list[Segment]) -> None:
        """Write messages; OSError when that fails (see `failed`)."""
        if not self.log.log_files:
            self._files.make_directory(self.directory)
            self.log.unsynced.add(self._shared.options.data_path)
        self.log.append(segments)
        if self._shared.failing and self._shared.failing.pop(self._topic, None) is not None:
            for topic in list(self._shared.failing):  # what is good for one is probably good for all
                if topic.keeper is not None:
                    topic.keeper.probe()

    def failed(self, error: OSError) -> None:
        """Writing has failed: remember it until it works again."""
        if self._topic not in self._shared.failing:
            self._shared.options.log("error", f"TOPIC({self._topic.name}): failed to write - {error}")
        self._shared.failing[self._topic] = error

    def probe(self) -> None:
        """After a failed write: find out whether writing works again."""
        try:
            self._files.make_directory(self.directory)
            self.log.probe()
        except OSError as error:
            self._shared.failing[self._topic] = error
        else:
            self._shared.failing.pop(self._topic, None)

    def take_unsynced(self) -> list[str]:
        """The paths that need an fsync, state first: who may have a message is to be known when the message is."""
        paths = [*self.journal.take_unsynced(), *self.log.unsynced]
        self.log.unsynced.clear()
        return paths

    def synced(self) -> None:
        """The last of these paths are."""
        try:
            if self.journal.synced():
                self.log.unsynced.add(self.directory)
        except OSError as error:
            self.failed(error)

    def sync_failed(self, error: OSError) -> None:
        """What is in the last file may be lost: write on in another."""
        self.journal.abandon_rewrite()
        self.log.spoil()
        self.failed(error)

    def rest_if_idle(self) -> None:
        """Close files that have not been written to since the last call."""
        if self.log.end == self._rested_at:
            self.log.rest()
        self._rested_at = self.log.end

    # --- state -------------------------------------------------------------------------------------------------

    def drop_channel(self, name: str) -> None:
        """It is deleted; the next `save` says so."""
        self._gone.append(name)

    def save(self, *, everything: bool = False) -> None:
        """Write to the journal what has changed; then delete the log files that nobody needs."""
        topic = self._topic
        self._shared.changed.pop(topic, None)
        large = self.log.nbytes > min(_KEEP_FILE_BYTES, self._shared.options.max_bytes_per_file)
        needed = self._needed() if large or len(self.log.log_files) > 1 else None
        finished = large and not needed
        if finished:  # the file that it would name goes
            self.checkpoint = (0, 0, *self.checkpoint[2:])
        try:
            self._files.make_directory(self.directory)
            if everything:
                self.journal.rewrite(self._state(everything=True))
            else:
                self.journal.append(self._state(everything=False))
                if self.journal.bloated:
                    self.journal.begin_rewrite(self._state(everything=True))
                    self._shared.rewritten[topic] = None
        except OSError as error:
            self._shared.changed[topic] = None
            self.failed(error)
        if needed is not None:  # on a full disk, the room that the state needs is where nobody needs the messages
            self.log.drop_files(needed, keep_last=not finished)

    def _needed(self) -> list[Range]:
        """Messages that somebody still has to get."""
        needed = self._topic.held + [part for channel in self._topic.channels.values() for part in channel.needed()]
        if self.checkpoint[2] < self.log.end:  # written, and waiting for an fsync
            needed.append((self.checkpoint[2], self.log.end))
        return needed

    def _state(self, *, everything: bool) -> TopicState:
        topic = self._topic
        channels: dict[str, ChannelState] = {
            name: channel.state(everything=everything)
            for name, channel in topic.channels.items()
            if not channel.ephemeral and (everything or channel.changed)
        }
        gone, self._gone = self._gone, []
        return TopicState(self.checkpoint, topic.held, channels, gone, self.importing, self.imported)

    # --- taking over -------------------------------------------------------------------------------------------

    def begin_import(self) -> None:
        """Messages from elsewhere are going to be appended; a crash before `end_import` takes them back. OSError
        when this cannot be put on record."""
        self.importing = self.log.end
        self._files.make_directory(self.directory)
        self.journal.rewrite(self._state(everything=True))

    def end_import(self, imported: dict[str, list[int]]) -> None:
        """All of it is in the log; the names say where it came from. OSError when it is not safe."""
        for path in self.take_unsynced():
            self._files.sync_path(path)
        self.importing = None
        self.imported = imported
        self.journal.rewrite(self._state(everything=True))

    def forget_import(self) -> None:
        """The files are gone from where they were."""
        self.imported = {}
        self.save()

    def close(self) -> None:
        """Save everything, unless the journal has it."""
        topic = self._topic
        # What is delivered is not noted as a change: who answers soon makes it one.
        if topic in self._shared.changed or any(channel.in_flight_count for channel in topic.channels.values()):
            self.save(everything=True)
        self.log.rest()
