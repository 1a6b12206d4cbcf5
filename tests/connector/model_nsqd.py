"""A channel of an nsqd without sockets and clock: its rules of delivery, for the receiver's core to be tested on."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from pyspark_nsq.connector.connection import Connection, Source
from pyspark_nsq.connector.errors import NsqError
from pyspark_nsq.connector.handshake import ServerFacts
from pyspark_nsq.connector.receiver_core import ReceiverCore
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.connector.source_state import Limits
from pyspark_nsq.proto import parser
from pyspark_nsq.proto.errors import WireError
from pyspark_nsq.proto.frames import CLOSE_WAIT, ERROR, OK, RESPONSE, encode_frame, encode_message
from pyspark_nsq.proto.parser import (
    Close,
    CommandParser,
    Finish,
    Nop,
    Publish,
    Ready,
    Requeue,
    Subscribe,
    Touch,
)

# A liar goes on until so much is unread.
_SOCKET_SIZE = 2**20


@dataclass
class Message:
    id: bytes
    body: bytes
    attempts: int = 0


@dataclass
class Flight:
    message: Message
    delivered_at: float
    deadline: float


@dataclass
class Client:
    parser: CommandParser
    core: ReceiverCore
    rdy: int = 0
    rdy_given: int = 0
    in_flight: dict[bytes, Flight] = field(default_factory=dict)
    replies: bytearray = field(default_factory=bytearray)
    is_closing: bool = False


class ModelNsqd:
    def __init__(
        self, port: int = 4150, rdy_max: int = 10, timeout_s: float = 60.0, timeout_s_max: float = 900.0
    ) -> None:
        self.source = Source("topic", Address("127.0.0.1", port))
        self.facts = ServerFacts("1.3.0", rdy_max, int(timeout_s * 1000), int(timeout_s_max * 1000))
        self.queue: deque[Message] = deque()
        self.clients: dict[Connection, Client] = {}
        # Messages of connections that are gone.
        self.orphans: list[Flight] = []
        self.finished: Counter[bytes] = Counter()
        self.requeued: list[bytes] = []
        self.published: list[tuple[str, bytes]] = []
        self.errors: list[bytes] = []
        # Nothing goes through, either way, and nothing is lost.
        self.is_stalled = False
        # Commands that it answers with an error, after which it breaks the connection.
        self.refused: dict[type, bytes] = {}
        # Once it was asked for messages it delivers them, whatever RDY says.
        self.is_liar = False
        # Why connections ended.
        self.broken: list[str] = []
        self._timeout_s = timeout_s
        self._timeout_s_max = timeout_s_max
        self._count = 0

    def publish(self, count: int, size: int = 0) -> list[bytes]:
        """So many messages, with bodies of so many bytes, or short ones."""
        ids = [b"%08d%08d" % (self.source.nsqd.port, self._count + index) for index in range(count)]
        self._count += count
        self.queue.extend(Message(message_id, bytes(size) or b"body of " + message_id) for message_id in ids)
        return ids

    def connect(self, core: ReceiverCore) -> Connection:
        connection = core.connected(self.source, self.facts)
        self.clients[connection] = Client(CommandParser(parser.Limits(rdy_count_max=self.facts.max_rdy_count)), core)
        return connection

    def cut(self, connection: Connection) -> None:
        """The connection breaks: what it has stays in flight until its time-out."""
        client = self.clients.pop(connection)
        self.orphans += client.in_flight.values()

    def crash(self) -> None:
        """All connections break, and all that is unfinished waits again, as if it had never been delivered."""
        for connection in list(self.clients):
            self.cut(connection)
        for flight in self.orphans:
            flight.message.attempts = 0
            self.queue.append(flight.message)
        self.orphans = []

    def expire(self, now: float) -> None:
        for client in self.clients.values():
            for flight in [each for each in client.in_flight.values() if each.deadline <= now]:
                del client.in_flight[flight.message.id]
                self.queue.append(flight.message)
        for flight in [each for each in self.orphans if each.deadline <= now]:
            self.orphans.remove(flight)
            self.queue.append(flight.message)

    def obey(self, now: float) -> None:
        """Read what the connections have to say."""
        if self.is_stalled:
            return
        for connection, client in self.clients.items():
            for command in client.parser.feed(b"".join(connection.take_output())):
                self._obey(client, command, now)

    def _obey(self, client: Client, command: object, now: float) -> None:
        match command:
            case _ if type(command) in self.refused:
                client.replies += encode_frame(ERROR, self.refused[type(command)])
            case Subscribe():
                client.replies += encode_frame(RESPONSE, OK)
            case Ready(count):
                client.rdy = 0 if client.is_closing else count
                client.rdy_given = max(client.rdy_given, client.rdy)
            case Finish(ids):
                self._each(client, b"FIN", ids, now)
            case Touch(ids):
                self._each(client, b"TOUCH", ids, now)
            case Requeue(ids, _):
                self._each(client, b"REQ", ids, now)
            case Publish(_, topic, bodies):
                self.published += [(topic, body) for body in bodies]
                client.replies += encode_frame(RESPONSE, OK) * len(bodies)
            case Close():
                client.is_closing, client.rdy = True, 0
                client.replies += encode_frame(RESPONSE, CLOSE_WAIT)
            case Nop():
                pass
            case _:
                raise AssertionError(f"nsqd would close the connection on {command}")

    def _each(self, client: Client, word: bytes, ids: bytes, now: float) -> None:
        for start in range(0, len(ids), 16):
            message_id = ids[start : start + 16]
            flight = client.in_flight.get(message_id)
            if flight is None:
                self.errors.append(word)
                client.replies += encode_frame(
                    ERROR, b"E_%b_FAILED %b %b failed ID not in flight" % (word, word, message_id)
                )
            elif word == b"TOUCH":
                flight.deadline = min(now + self._timeout_s, flight.delivered_at + self._timeout_s_max)
            else:
                del client.in_flight[message_id]
                if word == b"FIN":
                    self.finished[message_id] += 1
                else:
                    self.requeued.append(message_id)
                    self.queue.append(flight.message)

    def deliver(self, core: ReceiverCore, now: float) -> None:
        """Send a receiver replies, and messages as far as RDY allows."""
        for connection, client in [each for each in self.clients.items() if each[1].core is core]:
            data, client.replies = bytes(client.replies), bytearray()
            is_unread = len(data) > _SOCKET_SIZE
            lies = self.is_liar and client.rdy_given > 0 and not is_unread
            while self.queue and (lies or len(client.in_flight) < client.rdy):
                message = self.queue.popleft()
                message.attempts += 1
                client.in_flight[message.id] = Flight(message, now, now + self._timeout_s)
                data += encode_message(int(now * 1e9), message.attempts, message.id, message.body)
            if self.is_stalled or not core.may_read(connection, now):
                client.replies += data
            elif data:
                self._send(core, connection, data, now)

    def _send(self, core: ReceiverCore, connection: Connection, data: bytes, now: float) -> None:
        """Only one that refuses, or lies, may be told by the receiver that this ends the connection."""
        try:
            core.received(connection, data, now)
        except (NsqError, WireError) as error:
            if not self.refused and not self.is_liar:
                raise
            self.broken.append(str(error))
            self.cut(connection)
            core.lost_connection(connection, now, error)

    def exchange(self, core: ReceiverCore, now: float) -> None:
        """Read, answer, and read what that led to."""
        self.obey(now)
        self.deliver(core, now)
        self.obey(now)

    def in_flight(self) -> int:
        return sum(len(client.in_flight) for client in self.clients.values())


class Loop:
    """A receiver's loop without thread and time: it calls at once."""

    def call(self, function: Callable[[float], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(function(0.0))
        except Exception as error:
            future.set_exception(error)
        return future


def step(core: ReceiverCore, nsqds: Sequence[ModelNsqd], now: float) -> None:
    """All that happens at a moment."""
    for nsqd in nsqds:
        nsqd.expire(now)
    core.tick(now)
    for source in core.to_connect(now):
        next(nsqd for nsqd in nsqds if nsqd.source == source).connect(core)
    for nsqd in nsqds:
        nsqd.exchange(core, now)


def limits(**changes: object) -> Limits:
    values: dict[str, object] = {
        "channel": "channel",
        "in_flight_max": 100,
        "bytes_max": 2**30,
        "frame_size_max": 2**30,
        "attempts_max": None,
        "dead_letter_topic": None,
        "retry_delay_s": 0.1,
        "retry_delay_s_max": 10.0,
        **changes,
    }
    return Limits(**values)  # type: ignore[arg-type]


def started(nsqd: ModelNsqd, **changes: object) -> ReceiverCore:
    """A receiver with its first connection and windows."""
    core = ReceiverCore(limits(**changes), 0)
    core.assign([nsqd.source])
    run(core, nsqd, 0.0)
    return core


def run(core: ReceiverCore, nsqd: ModelNsqd, *times: float) -> None:
    for now in times:
        # Twice: what is received changes what is planned.
        step(core, [nsqd], now)
        step(core, [nsqd], now)


def ids(core: ReceiverCore, first: int, end: int) -> list[bytes]:
    return [message_id for _, part in core.read(first, end) for message_id in part.column("id").to_pylist()]


def connection_of(nsqd: ModelNsqd) -> Connection:
    return next(iter(nsqd.clients))


def lose(core: ReceiverCore, nsqd: ModelNsqd, connection: Connection, now: float) -> None:
    nsqd.cut(connection)
    core.lost_connection(connection, now)
