"""When to fsync what, and who waits for it.

sync_every counts appends (one for all that arrived for a topic in a turn). With 1, nothing is acknowledged or shown to
a channel before its fsync; publishers that arrive while one is under way share the next.
"""

from __future__ import annotations

from pyspark_nsq.broker.files import Files
from pyspark_nsq.broker.metadata import MetadataWrite
from pyspark_nsq.broker.shared import NEVER, EngineOptions
from pyspark_nsq.broker.topic import Batch, Topic


class SyncJob:
    """Files to fsync, and nsqd.dat where it is to be written. `run` touches nothing else: call it from any thread, then
    `Engine.synced`."""

    def __init__(
        self,
        files: Files,
        paths: list[str],
        topics: list[Topic],
        waiting: list[tuple[Topic, Batch]],
        metadata: MetadataWrite | None,
    ) -> None:
        self._files = files
        self._paths = paths
        self.topics = topics
        self.waiting = waiting
        self.metadata = metadata
        self.error: OSError | None = None

    def run(self) -> None:
        """fsync; an OSError is kept in the job for `Engine.synced`."""
        try:
            for path in self._paths:
                self._files.sync_path(path)
        except OSError as error:
            self.error = error
        if self.metadata is not None:
            self.metadata.run()


class Syncs:
    """Keeps the books."""

    def __init__(self, options: EngineOptions, files: Files) -> None:
        self._files = files
        self._every = max(options.sync_every, 1)
        self._timeout_ns = options.sync_timeout_ns
        self._topics: dict[Topic, None] = {}  # written to since their last fsync
        self._appends = 0
        self._waiting: list[tuple[Topic, Batch]] = []
        self._job: SyncJob | None = None  # under way
        self._deadline = NEVER
        self.metadata: MetadataWrite | None = None  # for the next job

    @property
    def deadline(self) -> int:
        """When `next_job` has something; while a job is under way there is nothing to wait for."""
        return NEVER if self._job is not None else self._deadline

    def wrote(self, topic: Topic, batch: Batch, now: int) -> bool:
        """The topic has appended. True: its batch has to wait, until `done` releases it."""
        if topic.keeper is None or topic.deleted:
            return False
        self.note(topic, now)
        if self._every > 1:
            return False
        self._waiting.append((topic, batch))
        return True

    def note(self, topic: Topic, now: int) -> None:
        """The topic has something to be synced."""
        if not self._appends:
            self._deadline = now + self._timeout_ns
        self._appends += 1
        self._topics[topic] = None

    def next_job(self, now: int) -> SyncJob | None:
        """What is due."""
        if self._job is not None or not (self.metadata is not None or self._is_due(now)):
            return None
        paths: dict[str, None] = {}
        topics = [topic for topic in self._topics if not topic.deleted]
        for topic in topics:
            if topic.keeper is not None:
                paths.update(dict.fromkeys(topic.keeper.take_unsynced()))
        self._job = SyncJob(self._files, list(paths), topics, self._waiting, self.metadata)
        self.metadata = None
        self._topics = {}
        self._waiting = []
        self._appends = 0
        self._deadline = NEVER
        return self._job

    def _is_due(self, now: int) -> bool:
        return self._appends > 0 and (self._appends >= self._every or now >= self._deadline)

    def done(self, job: SyncJob, now: int) -> None:
        """Release what waited for the job."""
        self._job = None
        waiting = job.waiting
        if job.error is None:
            for topic in job.topics:
                if topic.keeper is not None and not topic.deleted:
                    topic.keeper.synced()
            for topic, batch in waiting:
                topic.release(batch, now)
            return
        # What was written to the same files meanwhile may be lost with them: a later fsync would not tell.
        waiting += [entry for entry in self._waiting if entry[0] in job.topics]
        self._waiting = [entry for entry in self._waiting if entry[0] not in job.topics]
        for _topic, batch in waiting:
            batch.error = job.error
            batch.done = True
        for topic in job.topics:
            if topic.keeper is not None and not topic.deleted:
                topic.keeper.sync_failed(job.error)

    def finish(self, now: int) -> None:
        """Sync everything here and now."""
        self._deadline = now
        job = self._job or self.next_job(now)
        while job is not None:
            job.run()
            self.done(job, now)
            self._deadline = now
            job = self.next_job(now)
