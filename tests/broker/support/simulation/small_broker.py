"""An engine on files in memory, with shorthands for what tests do all the time."""

from simulation.frames import Frame, parse
from simulation.memory_files import MemoryFiles

from pyspark_nsq.broker.channel import Channel, Consumer
from pyspark_nsq.broker.engine import Engine, EngineOptions
from pyspark_nsq.broker.topic import Ticket

NOW = 1_763_000_000_000_000_000
SECOND = 1_000_000_000


class Broker:
    """An engine with shorthands."""

    def __init__(self, files: MemoryFiles | None = None, **options: object) -> None:
        self.files = files or MemoryFiles()
        self.log: list[str] = []
        self.options = EngineOptions("data", log=lambda _level, text: self.log.append(text), **options)  # type: ignore[arg-type]
        self.now = NOW
        self.open()

    def open(self) -> None:
        self.engine = Engine(self.options, self.files, self.now)

    def publish(self, topic: str, *bodies: bytes, defer_ns: int = 0) -> Ticket:
        made = self.engine.topic(topic, self.now)
        made.start(self.now)
        ticket = made.publish(list(bodies), self.now, defer_ns)
        self.engine.commit(self.now)
        return ticket

    def channel(self, topic: str, name: str) -> Channel:
        made = self.engine.topic(topic, self.now)
        made.start(self.now)
        return made.channel(name, self.now)

    def consumer(self, channel: Channel, msg_timeout_ns: int = 60 * SECOND) -> Consumer:
        consumer = Consumer()
        consumer.msg_timeout_ns = msg_timeout_ns
        channel.subscribe(consumer)
        return consumer

    def get(self, channel: Channel, consumer: Consumer, count: int = 1000) -> list[Frame]:
        return parse(channel.deliver(consumer, self.now, count, 1 << 20)[0])

    def wait(self, duration: int) -> None:
        self.now += duration
        self.engine.tick(self.now)
        self.sync()

    def sync(self) -> None:
        """What another thread does."""
        job = self.engine.next_sync(self.now)
        if job is not None:
            job.run()
            self.engine.synced(job, self.now)


def bodies(frames: list[Frame]) -> list[bytes]:
    return [frame.body for frame in frames]
