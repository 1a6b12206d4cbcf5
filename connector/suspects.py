"""Messages that another receiver may hold: nsqd has delivered them again, and several receivers read their source.

They wait here until the others have been asked, so that none is emitted twice.
"""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from pyspark_nsq.connector.connection import Connection, Ids, Source
from pyspark_nsq.connector.redeliveries import id_column, split_ids

# They are touched so many times within a message's time-out.
_TOUCHES: Final = 4


class _Suspect(NamedTuple):
    connection: Connection
    # All that it arrived with, and where it is in there.
    messages: pa.RecordBatch
    row: int
    size: int


class Suspects:
    """``size`` is about what they take in memory; ``touch_due`` is when nsqd has to hear of them again."""

    def __init__(self) -> None:
        self.size = 0
        self.touch_due = math.inf
        self._by_source: dict[Source, dict[bytes, _Suspect]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_source.values()))

    def add(self, messages: pa.RecordBatch, connection: Connection, now: float) -> None:
        """Keep these; a copy that came before is one that nsqd has given up."""
        suspects = self._by_source.setdefault(connection.source, {})
        size = messages.nbytes // max(1, len(messages))
        for row, message_id in enumerate(split_ids(id_column(messages))):
            if former := self._remove(connection.source, message_id):
                former.connection.in_flight -= 1
            suspects[message_id] = _Suspect(connection, messages, row, size)
            self.size += size
        self.touch_due = min(self.touch_due, now + connection.msg_timeout_s / _TOUCHES)

    def _remove(self, source: Source, message_id: bytes) -> _Suspect | None:
        suspect = self._by_source.get(source, {}).pop(message_id, None)
        if suspect:
            self.size -= suspect.size
        return suspect

    def ids(self) -> dict[Source, bytes]:
        """All of them, to be asked for."""
        return {source: b"".join(suspects) for source, suspects in self._by_source.items() if suspects}

    def take(self, source: Source, ids: Ids) -> Iterator[tuple[Connection, pa.RecordBatch]]:
        """Let go of those of these that are here, by the connection that they came on."""
        pieces: dict[int, list[_Suspect]] = {}
        for message_id in split_ids(ids):
            if suspect := self._remove(source, message_id):
                pieces.setdefault(id(suspect.messages), []).append(suspect)
        for suspects in pieces.values():
            yield suspects[0].connection, suspects[0].messages.take([suspect.row for suspect in suspects])

    def lose(self, connection: Connection) -> None:
        """Forget what came on a connection that is closed: nsqd delivers it again."""
        suspects = self._by_source.get(connection.source, {})
        for message_id in [each for each, suspect in suspects.items() if suspect.connection is connection]:
            self._remove(connection.source, message_id)

    def give_up(self, connection: Connection, message_id: bytes) -> bool:
        """nsqd has it no longer in flight on this connection, and delivers it again: whether it was here."""
        suspect = self._by_source.get(connection.source, {}).get(message_id)
        if not suspect or suspect.connection is not connection:
            return False
        self._remove(connection.source, message_id)
        connection.in_flight -= 1
        return True

    def by_connection(self) -> dict[Connection, bytes]:
        """The ids of all of them."""
        found: dict[Connection, list[bytes]] = {}
        for suspects in self._by_source.values():
            for message_id, suspect in suspects.items():
                found.setdefault(suspect.connection, []).append(message_id)
        return {connection: b"".join(ids) for connection, ids in found.items()}

    def touched(self, now: float) -> None:
        """nsqd has heard of all of them."""
        self.touch_due = min(
            (now + connection.msg_timeout_s / _TOUCHES for connection in self.by_connection()), default=math.inf
        )
