"""What a session has to say, in order, until it may leave.

A publish is answered before it is written: its OK is held here until ``settle`` has seen the ticket's outcome, and
becomes the error where there is one. It is held as well until a new topic has got the channels that exist elsewhere.
"""

from pyspark_nsq.broker.segment import Buffer
from pyspark_nsq.broker.topic import Ticket, Topic
from pyspark_nsq.proto import frames

OK_FRAME = frames.encode_frame(frames.RESPONSE, frames.OK)


class Output:
    """``size`` is how many bytes wait to be taken; ``unsettled`` those publishes whose outcome is not known."""

    __slots__ = ("_said", "flush_due", "size", "unsettled")

    def __init__(self) -> None:
        self.size = 0
        # Something other than messages was said: everything leaves at once.
        self.flush_due = False
        self._said: list[Buffer] = []
        self.unsettled: list[tuple[Ticket, Topic, int, bytes]] = []

    def __bool__(self) -> bool:
        return bool(self._said)

    def say(self, frame: bytes) -> None:
        self._said.append(frame)
        self.size += len(frame)
        self.flush_due = True

    def say_ok_if(self, ticket: Ticket, topic: Topic, word: bytes, command_count: int) -> None:
        """The OKs of publishes that stand or fall with the ticket."""
        self.unsettled.append((ticket, topic, len(self._said), word))
        self._said.append(OK_FRAME if command_count == 1 else OK_FRAME * command_count)
        self.size += len(OK_FRAME) * command_count
        self.flush_due = True

    def hand_out(self, buffers: list[Buffer], size: int) -> None:
        """Messages, as frames."""
        self._said.extend(buffers)
        self.size += size

    def settle(self) -> tuple[bytes, OSError] | None:
        """Where a publish has failed: its word and why. Then its OK and all that was said since are gone."""
        for position, (ticket, topic, index, word) in enumerate(self.unsettled):
            if not ticket.done or not (topic.started or topic.deleted):
                del self.unsettled[:position]
                return None
            if ticket.error is not None:
                del self._said[index:]
                self.unsettled.clear()
                return word, ticket.error
        self.unsettled.clear()
        return None

    def take(self) -> list[Buffer]:
        """All of it."""
        said, self._said = self._said, []
        self.size = 0
        self.flush_due = False
        return said
