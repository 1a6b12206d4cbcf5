"""Sessions over a real engine, without sockets: bytes in, frames out, time by hand."""

from collections.abc import Callable
from pathlib import Path

from pyspark_nsq.broker.channel import Channel, Consumer
from pyspark_nsq.broker.engine import Engine, EngineOptions
from pyspark_nsq.broker.files import Files
from pyspark_nsq.broker.logs import Logger
from pyspark_nsq.broker.nsqd_options import NsqdOptions
from pyspark_nsq.broker.session import Session
from pyspark_nsq.broker.turn import Turn
from pyspark_nsq.proto.commands import MAGIC_V2, rdy, sub
from pyspark_nsq.proto.frames import ERROR, MESSAGE, RESPONSE, split_frames
from pyspark_nsq.proto.parser import Limits

MS = 1_000_000
SECOND = 1_000 * MS
OK = (RESPONSE, b"OK")
CLOSED = "closed"


class World:
    """One nsqd without sockets: the engine, a turn whenever it is asked for, a clock of its own."""

    tls_context = None
    exiting = False

    def __init__(self, path: Path, options: NsqdOptions, files: Files | None = None) -> None:
        self.options = options
        self.limits = Limits(
            options.max_msg_size, options.max_body_size, options.max_rdy_count, options.max_req_timeout_ns // MS
        )
        self.log = Logger("", write=lambda _: None)
        self.now = 1_700_000_000 * SECOND
        self.look_takes = 0  # time that has gone by whenever the turn looks at the clock
        self.timer_at = 0
        self.engine = Engine(EngineOptions(str(path), sync_every=options.sync_every), files or Files(), self.now)
        self.scheduled: list[Callable[[], None]] = []
        self.sync_jobs: list[object] = []
        self.turn = Turn(
            self.engine,
            self._look,
            self.scheduled.append,
            self.sync_jobs.append,
            self._start_topics,
            self._set_timer,
        )

    def _look(self) -> int:
        self.now += self.look_takes
        return self.now

    def _set_timer(self, deadline: int) -> None:
        self.timer_at = deadline

    def wake(self, channel: Channel, consumer: Consumer) -> None:
        self.turn.wake(channel, consumer)

    def _start_topics(self, _: list[object]) -> None:
        for topic in list(self.engine.topics.values()):
            topic.start(self.now)

    def run(self) -> None:
        """Turns until nothing asks for one."""
        while self.scheduled:
            self.scheduled.pop()()

    def sleep(self, nanoseconds: int, *clients: "Client") -> None:
        """Let time pass, for the engine and these clients."""
        end = self.now + nanoseconds
        while self.now < end:
            due = [client.session.deadline for client in clients if not client.session.finished]
            self.now = min([end, *(max(deadline, self.now + 1) for deadline in due)])
            for client in clients:
                if not client.session.finished and client.session.deadline <= self.now:
                    client.session.on_time(self.now)
                    self.turn.touch(client)
            self.turn.request()
            self.run()


class Client:
    """A connection: what the session sends is kept as frames."""

    def __init__(self, world: World, step: int = 1 << 20) -> None:
        self.session = Session(world, "10.0.0.1:5000", "10.0.0.1", world.now)
        self.session.owner = self
        self.touched = False
        self.starved = False
        self.unsent_size = 0
        self.received = b""
        self._world = world
        self._step = step

    def flush(self, now: int) -> None:
        if not self.session.settle(now):
            self._world.turn.hold(self)
        elif self.session.has_output:
            self.received += b"".join(self.session.take_output())
        if self.session.behind and not self.session.finished:
            self._world.scheduled.append(self._go_on)

    def _go_on(self) -> None:
        if self.session.behind:
            self.session.go_on(self._world.now)
            self._world.turn.touch(self)

    def say(self, data: bytes) -> list[tuple[int, bytes] | str]:
        """Send bytes in steps; the frames that came, and CLOSED where the session has finished."""
        for start in range(0, len(data), self._step):
            if self.session.finished or self.session.auth.question is not None:
                break
            self.session.receive(data[start : start + self._step], self._world.now)
        return self.heard()

    def heard(self) -> list[tuple[int, bytes] | str]:
        self._world.turn.touch(self)
        self._world.run()
        found, size = split_frames(self.received, 1 << 24)
        self.received = self.received[size:]
        return [*((frame.type, frame.data) for frame in found), *([CLOSED] if self.session.finished else [])]

    def error(self, data: bytes) -> str:
        """The error that these bytes end the connection with."""
        *_, frame, end = self.say(data)
        assert end == CLOSED
        assert frame[0] == ERROR
        assert isinstance(frame[1], bytes)
        return frame[1].decode()


def greeted(world: World, step: int = 1 << 20) -> Client:
    client = Client(world, step)
    assert client.say(MAGIC_V2) == []
    return client


def subscribed(world: World, count: int = 0, topic: str = "t", channel: str = "c") -> Client:
    client = greeted(world)
    assert client.say(sub(topic, channel)) == [OK]
    if count:
        assert client.say(rdy(count)) == []
    return client


def messages(frames: list[tuple[int, bytes] | str]) -> list[tuple[bytes, int, bytes]]:
    """Id, attempts and body of each message."""
    assert all(frame[0] == MESSAGE for frame in frames), frames
    return [(data[10:26], int.from_bytes(data[8:10], "big"), data[26:]) for _, data in frames]  # type: ignore[misc]
