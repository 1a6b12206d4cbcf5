"""Go's disk queues of a topic and its channels, copied into the topic's log (see `diskqueue`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark_nsq.broker.diskqueue import GoQueue, segments
from pyspark_nsq.broker.segment import Segment
from pyspark_nsq.broker.topic import Topic

_APPEND_BYTES: Final = 1024 * 1024


def take_over(topic: Topic, queue_of: Callable[[str], GoQueue]) -> None:
    """Before the topic is started: channels' queues to these channels, the topic's own to all of them."""
    keeper = topic.keeper
    if keeper is None:
        return
    queues: list[tuple[str | None, GoQueue]] = [
        (name, queue_of(f"{topic.name}:{name}")) for name, channel in topic.channels.items() if not channel.ephemeral
    ]
    queues.append((None, queue_of(topic.name)))
    stamps = [queue.stamps() for _channel, queue in queues]
    todo = [
        queue
        for queue, stamp in zip(queues, stamps, strict=True)
        if any(keeper.imported.get(name) != value for name, value in stamp.items())
    ]
    if todo:
        keeper.begin_import()
        for channel, queue in todo:
            _copy(topic, channel, queue)
        keeper.end_import({name: value for stamp in stamps for name, value in stamp.items()})
    if keeper.imported:
        for _channel, queue in queues:
            queue.remove()
        keeper.forget_import()


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
