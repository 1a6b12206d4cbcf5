"""Go's disk queues of a topic and its channels, copied into the topic's log (see `diskqueue`)."""

from __future__ import annotations

from typing import Final

from pyspark_nsq.broker.diskqueue import GoQueue, GoQueues, segments
from pyspark_nsq.broker.segment import Segment
from pyspark_nsq.broker.topic import Topic

_APPEND_BYTES: Final = 1024 * 1024


def take_over(topic: Topic, go_queues: GoQueues) -> None:
    """Before the topic is started: channels' queues to these channels, the topic's own to all of them."""
    keeper = topic.keeper
    if keeper is None:
        return
    names = {f"{topic.name}:{name}": name for name, channel in topic.channels.items() if not channel.ephemeral}
    queues = {name: queue for name in (*names, topic.name) if (queue := go_queues.find(name))}
    todo = {name: queue for name, queue in queues.items() if not _is_copied(queue, keeper.imported)}
    if todo:
        keeper.begin_import()
        copied = keeper.imported.copy()
        for name, queue in todo.items():
            stamps = queue.stamps()
            _copy(topic, names.get(name), queue)
            copied |= {name: [*stamp, int(name in queue.bad_names)] for name, stamp in stamps.items()}
        keeper.end_import(copied)
    if keeper.imported:
        bad_names = {name for name, (_size, _changed_at, bad) in keeper.imported.items() if bad}
        for queue in queues.values():
            queue.remove(bad_names)
        keeper.forget_import()


def _is_copied(queue: GoQueue, imported: dict[str, list[int]]) -> bool:
    return all(imported.get(name, [])[:2] == [*stamp] for name, stamp in queue.stamps().items())


def _copy(topic: Topic, channel: str | None, queue: GoQueue) -> None:
    group: list[Segment] = []
    nbytes = 0
    for segment in segments(queue.messages(), topic.end):
        group.append(segment)
        nbytes += segment.nbytes
        if nbytes >= _APPEND_BYTES:
            topic.import_segments(channel, group)
            group, nbytes = [], 0
    if group:
        topic.import_segments(channel, group)
