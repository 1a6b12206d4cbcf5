"""A receiver's memory: whether there is room for what nsqds send, and who sends although there is none.

Where it is used up every RDY becomes 0. What nsqd sends before it has read that waits in the sockets, which stops it.
"""

from collections import Counter
from operator import attrgetter
from typing import Final

from pyspark_nsq.connector.connection import RECENT_FINS_MIN, Connection
from pyspark_nsq.connector.lanes import Lane
from pyspark_nsq.connector.ready import RDY_GRACE_S
from pyspark_nsq.connector.suspects import Suspects
from pyspark_nsq.proto.errors import WireError

# Where ``size_max`` stopped it, receiving goes on below this part of it.
_RESUME_PART: Final = 0.75
# So many bytes of messages may be in a connection's sockets when nsqd has read that RDY is 0.
UNASKED_SIZE_MAX: Final = 64 * 2**20
# So many FINs are remembered of all connections together, 16 bytes each.
_RECENT_FINS_MAX: Final = 500_000


class Memory:
    """``size`` is about what messages take, ``is_used_up`` says that no more of them may come."""

    def __init__(self, lane: Lane, suspects: Suspects, size_max: int) -> None:
        self.size_max = size_max
        self.is_used_up = False
        self._lane = lane
        self._suspects = suspects
        self._used_up_at = 0.0
        # What came since then although RDY was 0.
        self._unasked = Counter[Connection]()
        self._in_large_frames: set[Connection] = set()

    @property
    def size(self) -> int:
        return self._lane.size + self._suspects.size + sum(each.input_size for each in self._in_large_frames)

    def look(self, now: float) -> None:
        """Decide whether it is used up."""
        was_used_up = self.is_used_up
        self.is_used_up = self.size >= self.size_max * (_RESUME_PART if was_used_up else 1)
        if self.is_used_up and not was_used_up:
            self._used_up_at = now
            self._unasked.clear()

    def has_room(self, connection: Connection, now: float) -> bool:
        """Whether what a connection brings may come in."""
        if self.is_used_up and not self._is_rdy_read(now):
            return False
        if not connection.is_in_large_frame or self.size + connection.input_missing <= self.size_max:
            return True
        # One at a time, however large it is; otherwise none could ever come.
        return connection is max(self._in_large_frames, key=attrgetter("input_size"))

    def _is_rdy_read(self, now: float) -> bool:
        return now >= self._used_up_at + RDY_GRACE_S

    def received(self, connection: Connection, size: int, now: float) -> None:
        """So many bytes of messages came; ``WireError`` where nobody can have asked for them."""
        if connection.is_in_large_frame:
            self._in_large_frames.add(connection)
        else:
            self._in_large_frames.discard(connection)
        if size and self.is_used_up and self._is_rdy_read(now):
            if self._unasked[connection] >= UNASKED_SIZE_MAX:
                raise WireError(f"more than {UNASKED_SIZE_MAX} bytes of messages came although RDY was 0")
            self._unasked[connection] += size

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        self._in_large_frames.discard(connection)


def share_recent_fins(connections: list[Connection]) -> None:
    """Many connections remember fewer of their FINs each."""
    for connection in connections:
        connection.recent_fins_min = min(RECENT_FINS_MIN, _RECENT_FINS_MAX // len(connections))
