"""Reads the messages of a channel one by one, for people who look at them. Spark's source does it in bulk."""

import logging
import random
import select
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from pyspark_nsq.cli.cluster import read_topic
from pyspark_nsq.connector.client import NsqdStream, connect
from pyspark_nsq.connector.discovery import Directory, PollPlan
from pyspark_nsq.connector.errors import ConnectError, DiscoveryError, NsqError, OptionError, SecurityError
from pyspark_nsq.connector.handshake import refused
from pyspark_nsq.connector.options import SourceOptions
from pyspark_nsq.connector.settings import Address, HttpAddress
from pyspark_nsq.proto import commands
from pyspark_nsq.proto.errors import WireError
from pyspark_nsq.proto.frames import CLOSE_WAIT, ERROR, HEARTBEAT, MESSAGE, Frame, Message, decode_message, split_frames

log = logging.getLogger(__name__)

_READ_SIZE: Final = 256 * 1024
# nsqd's own default limit is 1 MiB; this is what a confused or hostile peer can make us hold.
_FRAME_SIZE_MAX: Final = 64 * 2**20
_CLOSE_TIMEOUT_S: Final = 2.0
_HARMLESS: Final = (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED")


class Received(NamedTuple):
    """A message, and where it came from: it has to be finished there."""

    topic: str
    nsqd: Address
    message: Message


_Place = tuple[str, Address]


class _Subscription:
    """A connection to one nsqd for one topic."""

    def __init__(self, place: _Place, channel: str, stream: NsqdStream) -> None:
        self.topic, self.nsqd = place
        self.in_flight: set[bytes] = set()
        self.rdy = 0
        self.rdy_max = stream.facts.max_rdy_count
        self._stream = stream
        self._received = b""
        stream.settimeout(0)
        self.send(commands.sub(self.topic, channel))

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def is_sending(self) -> bool:
        return self._stream.unsent_size > 0

    @property
    def pending(self) -> bool:
        return self._stream.pending

    def send(self, *pieces: bytes) -> None:
        self._stream.queue(*pieces)
        self.flush()

    def flush(self) -> None:
        self._stream.flush()

    def set_rdy(self, rdy: int) -> None:
        if rdy != self.rdy:
            self.rdy = rdy
            self.send(commands.rdy(rdy))

    def receive(self) -> list[Frame]:
        """The frames that have come, heartbeats answered; ``OSError`` at the end of the connection."""
        try:
            piece = self._stream.read(_READ_SIZE)
        except BlockingIOError:
            return []
        if not piece:
            raise ConnectionResetError("it closed the connection")
        frames, used = split_frames(self._received + piece, _FRAME_SIZE_MAX)
        self._received = (self._received + piece)[used:]
        for frame in frames:
            if frame.data == HEARTBEAT and frame.type != MESSAGE:
                self._stream.answer_heartbeat()
                self.flush()
        return frames

    def messages(self) -> list[Message]:
        found = []
        for frame in self.receive():
            if frame.type == MESSAGE:
                message = decode_message(frame.data)
                self.in_flight.add(message.id)
                found.append(message)
            elif frame.type == ERROR:
                self._check_harmless(frame.data)
        return found

    def _check_harmless(self, error: bytes) -> None:
        if not error.startswith(_HARMLESS):
            raise refused(self.nsqd, error)
        log.warning(
            "nsqd %s: %s; it will deliver that message again", self.nsqd, error[:200].decode("ascii", "replace")
        )

    def close(self) -> None:
        """Give back what is not finished, and wait until nsqd has taken note of it, a little."""
        try:
            self.send(commands.CLS)
            deadline = time.monotonic() + _CLOSE_TIMEOUT_S
            while time.monotonic() < deadline:
                self._give_back()
                poll = select.poll()
                poll.register(self, select.POLLIN | (select.POLLOUT if self.is_sending else 0))
                poll.poll(100)
                self.flush()
                frames = self.receive()
                self.in_flight.update(decode_message(frame.data).id for frame in frames if frame.type == MESSAGE)
                if any(frame.data == CLOSE_WAIT for frame in frames):
                    self._give_back()
                    break
        except (OSError, WireError):
            pass  # What was in flight on a broken connection nsqd delivers again after its time-out.
        finally:
            self._stream.close()

    def _give_back(self) -> None:
        self.send(*(commands.req(message_id, 0) for message_id in self.in_flight))
        self.in_flight.clear()

    def abandon(self) -> None:
        self._stream.close()


class Reader:
    """Subscribes wherever the topics are, also where they appear later. ``in_flight_max`` may change at any time.

    With ``only_looks`` its channel ends with it: it does not subscribe, but raises ``NsqError``, where a topic without
    channels has kept messages, all of which the first one gets.
    """

    def __init__(self, options: SourceOptions, *, only_looks: bool = False) -> None:
        self._options = options
        self._only_looks = only_looks
        self._directory = Directory(options.discovery)
        self._plan = PollPlan(options.discovery, options.retry.delay_s, random.Random())
        self._places: set[_Place] = set()
        self._https: dict[Address, HttpAddress] = {}
        self._subscriptions: dict[_Place, _Subscription] = {}
        self._retry_s: dict[_Place, float] = {}
        self._has_connected = False
        self.in_flight_max = options.in_flight_max

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for subscription in self._subscriptions.values():
            subscription.close()
        self._subscriptions.clear()

    def receive(self, timeout_s: float) -> list[Received]:
        """What has come, after waiting for something for at most so long."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._connect()
            received = self._exchange(max(0.0, min(self._due_s(), deadline) - time.monotonic()))
            if received or time.monotonic() >= deadline:
                return received

    def finish(self, received: Sequence[Received]) -> None:
        """nsqd forgets these messages."""
        for each in received:
            subscription = self._subscriptions.get((each.topic, each.nsqd))
            # On a connection of its own a message cannot be finished any more once that is gone.
            if subscription is None or each.message.id not in subscription.in_flight:
                continue
            subscription.in_flight.discard(each.message.id)
            try:
                subscription.send(commands.fin(each.message.id))
            except OSError as error:
                self._lose(subscription, error)

    def _due_s(self) -> float:
        retries = [due for place, due in self._retry_s.items() if place in self._places]
        return min([self._plan.due_s, *retries])

    def _connect(self) -> None:
        now = time.monotonic()
        if now >= self._plan.due_s:
            found = self._directory.look_up(self._options.topics)
            self._plan.polled(time.monotonic(), self._directory.reached)
            self._places = {(topic, nsqd.tcp) for topic, nsqds in found.items() for nsqd in nsqds}
            self._https = {nsqd.tcp: nsqd.http for nsqds in found.values() for nsqd in nsqds if nsqd.http}
            if not self._directory.reached and not self._has_connected and not self._places:
                raise self._directory.failures[0]
        failures = []
        for place in sorted(self._places - self._subscriptions.keys()):
            if self._retry_s.get(place, 0.0) <= now:
                failures += self._subscribe(place)
        if failures and not self._subscriptions and not self._has_connected:
            raise failures[0]
        self._share_rdy()

    def _subscribe(self, place: _Place) -> list[NsqError]:
        """The error that it ended with, if any."""
        topic, address = place
        try:
            if self._only_looks:
                self._check_nothing_is_kept(topic, address)
            stream = connect(address, self._options.connection)
            self._subscriptions[place] = _Subscription(place, self._options.channel, stream)
        except SecurityError:
            raise
        except (ConnectError, DiscoveryError, OSError) as error:
            log.warning("%s; it is tried again", error)
            self._retry_s[place] = time.monotonic() + self._options.retry.delay_s_max
            return [ConnectError(address, str(error)) if isinstance(error, OSError) else error]
        self._retry_s.pop(place, None)
        self._has_connected = True
        return []

    def _check_nothing_is_kept(self, topic: str, nsqd: Address) -> None:
        http = self._https.get(nsqd)
        if http is None:
            raise OptionError(
                f"nsqd {nsqd}: a look at topic {topic!r} begins with a question over HTTP; name that address too, with "
                "--option nsqdHttpAddresses=HOST:PORT, or a --channel to take messages from"
            )
        discovery = self._options.discovery
        counts = read_topic(http, topic, discovery.request_timeout_s, discovery.security)
        if counts.depth and not counts.channels:
            raise NsqError(
                f"nsqd {nsqd}: topic {topic!r} has no channel and keeps its messages for the first one "
                f"({counts.depth} so far), and with a channel that ends with the look they would be gone; make the "
                "channel that is to have them, or take them with --channel NAME"
            )

    def _share_rdy(self) -> None:
        count = len(self._subscriptions)
        for subscription in list(self._subscriptions.values()):
            share = max(1, self.in_flight_max // count)
            try:
                subscription.set_rdy(min(share, subscription.rdy_max))
            except OSError as error:
                self._lose(subscription, error)

    def _exchange(self, wait_s: float) -> list[Received]:
        pending = self._pending()
        subscriptions = list(self._subscriptions.values())
        poll = select.poll()
        for each in subscriptions:
            poll.register(each, select.POLLIN | (select.POLLOUT if each.is_sending else 0))
        if pending:
            wait_s = 0.0
        ready = dict(poll.poll(-(-wait_s * 1000 // 1)))
        received: list[Received] = []
        for each in subscriptions:
            if each.fileno() in ready or each in pending:
                received += self._take(each)
        return received

    def _pending(self) -> set[_Subscription]:
        """Those that have something to read which poll() does not know of."""
        found = set()
        for each in list(self._subscriptions.values()):
            try:
                if each.pending:
                    found.add(each)
            except WireError as error:
                self._lose(each, error)
        return found

    def _take(self, subscription: _Subscription) -> list[Received]:
        try:
            subscription.flush()
            found = subscription.messages()
        except (OSError, WireError) as error:
            self._lose(subscription, error)
            return []
        return [Received(subscription.topic, subscription.nsqd, message) for message in found]

    def _lose(self, subscription: _Subscription, error: Exception) -> None:
        log.warning("nsqd %s: the connection broke (%s); it is made again", subscription.nsqd, error)
        place = (subscription.topic, subscription.nsqd)
        subscription.abandon()
        self._subscriptions.pop(place, None)
        self._retry_s[place] = time.monotonic() + self._options.retry.delay_s
