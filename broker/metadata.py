"""nsqd.dat: the topics and channels that exist, and whether they are paused, in Go nsqd's format."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

from pyspark_nsq.broker.files import Files
from pyspark_nsq.proto.names import is_ephemeral, is_valid_name

FILE_NAME: Final = "nsqd.dat"


class MetadataError(Exception):
    """The file is there and cannot be understood."""


@dataclass(slots=True)
class TopicMetadata:
    """A topic; channels map to whether they are paused."""

    paused: bool = False
    channels: dict[str, bool] = field(default_factory=dict)


def load(files: Files, data_path: str, warn: Callable[[str], None]) -> dict[str, TopicMetadata]:
    """What the file says; {} when there is none."""
    path = os.path.join(data_path, FILE_NAME)
    data = files.read_file(path)
    if data is None:
        return {}
    try:
        value = json.loads(data)
        return _topics(value, warn)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise MetadataError(f"failed to parse metadata in {path} - {error}") from None


def _topics(value: Any, warn: Callable[[str], None]) -> dict[str, TopicMetadata]:
    topics = {}
    for topic in _list(_dict({} if value is None else value).get("topics")):
        name = _name(_dict(topic).get("name"))
        if not is_valid_name(name):
            warn(f"skipping creation of invalid topic {name}")
            continue
        if is_ephemeral(name):
            continue  # it has ended with the process that had it
        topics[name] = TopicMetadata(_bool(topic.get("paused")))
        for channel in _list(topic.get("channels")):
            channel_name = _name(_dict(channel).get("name"))
            if not is_valid_name(channel_name):
                warn(f"skipping creation of invalid channel {channel_name}")
                continue
            topics[name].channels[channel_name] = _bool(channel.get("paused"))
    return topics


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, not {type(value).__name__}")
    return value


def _list(value: Any) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise TypeError(f"expected a list, not {type(value).__name__}")
    return value or []


def _bool(value: Any) -> bool:
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"expected true or false, not {value!r}")
    return bool(value)


def _name(value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"expected a name, not {value!r}")
    return value or ""


def entry(name: str, topic: TopicMetadata) -> str:
    """What the file has of a topic. No channels are null, as Go writes them."""
    channels = [{"name": channel, "paused": paused} for channel, paused in sorted(topic.channels.items())]
    return _json({"name": name, "paused": topic.paused, "channels": channels or None})


def save(files: Files, data_path: str, entries: list[str], version: str) -> None:
    """Replace the file. Ephemeral names are the caller's to leave out, as is the order of the entries."""
    topics = f"[{','.join(entries)}]" if entries else "null"
    content = f'{{"topics":{topics},"version":{_json(version)}}}'
    files.replace_file(os.path.join(data_path, FILE_NAME), content.encode())


class MetadataWrite:
    """Replacing the file, for another thread: it waits for the disk."""

    def __init__(self, files: Files, data_path: str, entries: list[str], version: str) -> None:
        self.error: OSError | None = None
        self._save: Callable[[], None] | None = lambda: save(files, data_path, entries, version)
        self._lock = Lock()

    def run(self) -> None:
        """Unless that was cancelled; an OSError is kept."""
        with self._lock:
            try:
                if self._save is not None:
                    self._save()
            except OSError as error:
                self.error = error

    def cancel(self) -> None:
        """Once this returns it does nothing any more; what it has begun is waited for."""
        with self._lock:
            self._save = None


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
