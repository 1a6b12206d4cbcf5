"""A receiver's connection to an nsqd, from SUB on: bytes in, messages and bytes out; no socket, no clock.

The queue of expected replies is the state: nsqd answers SUB and PUB in the order they were sent, everything else it
answers only when it fails.
"""

from collections import deque
from typing import Final, NamedTuple

import pyarrow as pa

from pyspark_nsq.connector.errors import ConnectError, DeadLetterError
from pyspark_nsq.connector.handshake import ServerFacts, refused
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.proto import commands
from pyspark_nsq.proto.arrays import Bytes
from pyspark_nsq.proto.columns import decode_frames
from pyspark_nsq.proto.errors import WireError
from pyspark_nsq.proto.frames import CLOSE_WAIT, ERROR, HEARTBEAT, MESSAGE_HEADER_SIZE, MESSAGE_ID_SIZE, OK, Frame
from pyspark_nsq.proto.pieces import append_piece
from pyspark_nsq.proto.runs import FIN, REQ, TOUCH, encode_run

Ids = bytes | memoryview

# So many FINs of a connection are remembered where there are few connections, and as many as its RDY ever was in any
# case. nsqd may not have read the last of them when the connection breaks (never more than the RDY it had), and one
# that crashes may forget some more.
RECENT_FINS_MIN: Final = 10_000

# A message of the largest size that nsqd allows unless it is told otherwise.
LARGE_FRAME_SIZE: Final = 2**20 + MESSAGE_HEADER_SIZE

# From so many FINs at once on the messages that nsqd sends for them are worth being sent together.
_MANY_FINS: Final = 32


class Source(NamedTuple):
    """A topic on an nsqd."""

    topic: str
    nsqd: Address


class Failed(NamedTuple):
    """nsqd had the message no longer in flight when the command came."""

    word: bytes
    message_id: bytes


class Events(NamedTuple):
    """What a piece of input meant."""

    messages: pa.RecordBatch
    failed: list[Failed]
    published: list[bytes]
    # Whether a frame was completed.
    has_frame: bool


class Connection:
    """After ``source``, ``facts`` and ``rdy`` the counts that planning needs; ``alive`` ends with the socket."""

    def __init__(self, source: Source, facts: ServerFacts, channel: str, frame_size_max: int) -> None:
        self.source = source
        self.max_rdy = facts.max_rdy_count
        self.msg_timeout_s = facts.msg_timeout_ms / 1000
        self.max_msg_timeout_s = facts.max_msg_timeout_ms / 1000
        self.alive = True
        self.subscribed = False
        self.closed_by_nsqd = False
        # CLS was sent: nothing new comes after its answer.
        self.closing = False
        self.rdy = 0
        self._rdy_max = 0
        # What nsqd may still deliver under the RDY before this one, until when.
        self.former_rdy = 0
        self.former_rdy_until = 0.0
        self.in_flight = 0
        # Messages show that nsqd is well.
        self.has_delivered = False
        # Of the frame that has begun to come: how much of it is here, and how large it is.
        self.input_size = 0
        self._input_needed = 0
        self._frame_size_max = frame_size_max
        self._input: list[bytes] = []
        self._output: list[bytes] = []
        # Whether a heartbeat has come since output was taken.
        self._is_asked = False
        # The id of a message that was published elsewhere, or None for SUB.
        self._replies: deque[bytes | None] = deque([None])
        self.recent_fins_min = RECENT_FINS_MIN
        self._recent_fins = bytearray()
        self._unsent_fins = 0
        # Commands on messages, which nsqd answers only where it refuses them, less those that it has refused.
        self._refusable = 0
        self._output.append(commands.sub(source.topic, channel))

    def receive(self, data: Bytes) -> Events:
        """What these bytes and those before them say. ``WireError`` and ``ConnectError`` end the connection."""
        if self.input_size:
            append_piece(self._input, bytes(data))
            self.input_size += len(data)
            # A large frame comes in many pieces: they are joined once, when it is whole.
            if self.input_size < self._input_needed:
                data = b""
            else:
                data = b"".join(self._input)
                self._input, self.input_size = [], 0
        decoded = decode_frames(data, self._frame_size_max)
        if rest := bytes(data[decoded.consumed :]):
            self._input, self.input_size = [rest], len(rest)
            self._input_needed = 4 + int.from_bytes(rest[:4], "big") if len(rest) >= 4 else 4
        events = Events(decoded.messages, [], [], decoded.consumed > 0)
        self.in_flight += len(decoded.messages)
        self.has_delivered = self.has_delivered or len(decoded.messages) > 0
        # Twice: where a channel is emptied or messages time out, nsqd counts anew before it is noticed here.
        if self.in_flight > 2 * self._rdy_max:
            raise WireError(f"{self.in_flight} messages are in flight, RDY never allowed more than {self._rdy_max}")
        for control in decoded.controls:
            self._control(control.frame, events)
        return events

    @property
    def is_in_large_frame(self) -> bool:
        return self.input_size > 0 and self._input_needed > LARGE_FRAME_SIZE

    @property
    def input_missing(self) -> int:
        """How much of the frame that has begun to come is still to come."""
        return self._input_needed - self.input_size if self.input_size else 0

    def _control(self, frame: Frame, events: Events) -> None:
        if frame.type == ERROR:
            events.failed.append(self._failed(frame.data))
        elif frame.data == HEARTBEAT:
            self._is_asked = True
        elif frame.data == CLOSE_WAIT and self.closing and not self.closed_by_nsqd:
            self.closed_by_nsqd = True
        elif frame.data == OK and self._replies:
            message_id = self._replies.popleft()
            if message_id is None:
                self.subscribed = True
            else:
                events.published.append(message_id)
        else:
            raise self._unasked(frame.data)

    def _unasked(self, answer: bytes) -> WireError:
        return WireError(f"an answer to nothing that was asked: {answer[:60]!r}")

    def _failed(self, error: bytes) -> Failed:
        """The command that came too late; any other error is fatal, and raised."""
        for word in (FIN, TOUCH, REQ):
            prefix = b"E_%b_FAILED %b " % (word, word)
            if error.startswith(prefix) and len(error) >= len(prefix) + MESSAGE_ID_SIZE:
                if not self._refusable:
                    raise self._unasked(error)
                self._refusable -= 1
                return Failed(word, error[len(prefix) : len(prefix) + MESSAGE_ID_SIZE])
        raise self._fatal(error)

    def _fatal(self, error: bytes) -> ConnectError:
        """Why nsqd ends the connection; with the option for which it published, where that is not allowed."""
        refusal = refused(self.source.nsqd, error)
        if self.subscribed and self._replies and error.startswith(b"E_UNAUTHORIZED"):
            remedy = "with deadLetterTopic the secret has to open publishing to that topic"
            return DeadLetterError(self.source.nsqd, f"{refusal.reason}; {remedy}")
        return refusal

    def take_output(self, *, is_sending: bool = False) -> list[bytes]:
        """The bytes to send, in order. ``is_sending`` says that some still wait: they answer a heartbeat as well."""
        output, self._output = self._output, []
        if self._unsent_fins >= _MANY_FINS and self.rdy:
            # With each FIN nsqd would send one message more: now it sends all of them together at the end.
            output = [commands.rdy(0), *output, commands.rdy(self.rdy)]
        self._unsent_fins = 0
        if self._is_asked and not is_sending:
            output.append(commands.NOP)
        self._is_asked = False
        return output

    @property
    def has_output(self) -> bool:
        return self._is_asked or bool(self._output)

    def set_rdy(self, rdy: int, now: float, grace_s: float) -> None:
        """Let nsqd have so many in flight here. It may still use the former number until it has read this."""
        if rdy == self.rdy:
            return
        if rdy < self.rdy:
            self.former_rdy = max(self.rdy, self.former_rdy if now < self.former_rdy_until else 0)
            self.former_rdy_until = now + grace_s
        self.rdy = rdy
        self._rdy_max = max(self._rdy_max, rdy)
        self._output.append(commands.rdy(rdy))

    def charge(self, now: float) -> int:
        """How many messages can be in flight here, whatever happens."""
        former = self.former_rdy if now < self.former_rdy_until else 0
        return max(self.rdy, self.in_flight, former)

    def finish(self, ids: Ids) -> None:
        count = len(ids) // MESSAGE_ID_SIZE
        self._send_run(FIN, ids)
        self.in_flight -= count
        self._unsent_fins += count
        self._recent_fins += ids
        remembered = max(self.recent_fins_min, self._rdy_max) * MESSAGE_ID_SIZE
        del self._recent_fins[: max(0, len(self._recent_fins) - remembered)]

    def touch(self, ids: Ids) -> None:
        self._send_run(TOUCH, ids)

    def requeue(self, ids: Ids) -> None:
        self._send_run(REQ, ids, 0)
        self.in_flight -= len(ids) // MESSAGE_ID_SIZE

    def _send_run(self, word: bytes, ids: Ids, delay_ms: int | None = None) -> None:
        self._output.append(encode_run(word, ids, delay_ms))
        self._refusable += len(ids) // MESSAGE_ID_SIZE

    def publish(self, topic: str, message_id: bytes, body: bytes) -> None:
        """Publish here what was received here; ``Events.published`` says when nsqd has it."""
        self._output.append(commands.pub(topic, body))
        self._replies.append(message_id)

    def close(self) -> None:
        """Receive nothing more; what is unfinished can still be finished or requeued."""
        if not self.closing:
            self.closing = True
            self.rdy = 0
            self._output.append(commands.CLS)

    def recent_fins(self) -> bytes:
        """The ids whose FIN nsqd may not have seen."""
        return bytes(self._recent_fins)
