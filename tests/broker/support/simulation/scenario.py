"""A little of everything, in a fixed order, with a record of what was promised."""

from simulation.frames import Frame, parse
from simulation.memory_files import MemoryFiles
from simulation.uniform import together

from pyspark_nsq.broker.channel import Consumer
from pyspark_nsq.broker.engine import Engine, EngineOptions

START = 1_763_000_000_000_000_000
SECOND = 1_000_000_000
TOPICS = ("first", "second")
CHANNELS = ("a", "b")


class Scenario:
    """Two topics with two channels each; consumers of channel a finish some of what they get."""

    def __init__(self, files: MemoryFiles, sync_every: int = 2500) -> None:
        self.files = files
        self.now = START
        self.warnings: list[str] = []
        self.options = EngineOptions(
            "data",
            mem_queue_size=5,
            max_bytes_per_file=900,
            sync_every=sync_every,
            log=lambda _level, text: self.warnings.append(text),
        )
        self.number = 0
        self.acknowledged: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
        self.refused: set[bytes] = set()
        self.unanswered: set[bytes] = set()
        self.finished: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
        self.long_finished: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}  # since before the last save
        self.existing: dict[str, set[str]] = {topic: set() for topic in TOPICS}  # channels
        self.due: dict[bytes, int] = {}
        self.backlog: set[bytes] = set()  # published before there were channels: all for the first of them

    def open(self) -> None:
        self.engine = Engine(self.options, self.files, self.now)

    def run(self) -> None:
        """All of it; whatever the files do to it shows in what is recorded."""
        self.open()
        for topic in TOPICS:
            self.engine.topic(topic, self.now).start(self.now)
        self.publish("first", 3)
        self.backlog = self.acknowledged["first"] | self.unanswered
        for topic in TOPICS:
            for channel in CHANNELS:
                self.engine.topics[topic].channel(channel, self.now)
                self.existing[topic].add(channel)
        for _ in range(6):
            for topic in TOPICS:
                self.publish(topic, 1)
                self.publish(topic, 4)
                self.publish(topic, 1, defer_ns=3600 * SECOND)
                self.consume(topic)
            self.wait(SECOND)

    def publish(self, topic: str, count: int, defer_ns: int = 0) -> None:
        bodies = [b"%b %d" % (topic.encode(), self.number + at) for at in range(count)]
        self.number += count
        self.unanswered.update(bodies)
        ticket = self.engine.topics[topic].publish(together(bodies) if count > 3 else bodies, self.now, defer_ns)
        if defer_ns:
            self.due.update(dict.fromkeys(bodies, self.now + defer_ns))
        self.engine.commit(self.now)
        self.sync()
        if not ticket.done:
            return
        self.unanswered.difference_update(bodies)
        if ticket.error is None:
            self.acknowledged[topic].update(bodies)
        else:
            self.refused.update(bodies)

    def sync(self) -> None:
        job = self.engine.next_sync(self.now)
        if job is not None:
            job.run()
            self.engine.synced(job, self.now)

    def consume(self, topic: str) -> None:
        channel = self.engine.topics[topic].channels["a"]
        consumer = Consumer()
        channel.subscribe(consumer)
        frames = parse(channel.deliver(consumer, self.now, 4, 10_000)[0])
        for at, frame in enumerate(frames):
            if at == 1:
                channel.requeue(consumer, frame.message_id, 0, self.now)
            elif at == 3:
                channel.requeue(consumer, frame.message_id, SECOND, self.now)
            else:
                assert not channel.finish(consumer, frame.message_id, self.now)
                self.finished[topic].add(frame.body)
        channel.unsubscribe(consumer, self.now)

    def wait(self, duration: int) -> None:
        self.now += duration
        self.engine.tick(self.now)
        self.sync()
        for topic in TOPICS:
            keeper = self.engine.topics[topic].keeper
            assert keeper is not None
            if not any(channel.changed for channel in self.engine.topics[topic].channels.values()):
                self.long_finished[topic] = set(self.finished[topic])

    def drain(self, topic: str, name: str) -> list[Frame]:
        """Everything a channel has, whenever it is due."""
        engine = self.engine
        channel = engine.topics[topic].channels[name]
        consumer = Consumer()
        consumer.msg_timeout_ns = 1 << 60
        channel.subscribe(consumer)
        frames = []
        for _ in range(8):
            while True:
                delivered = parse(channel.deliver(consumer, self.now, 1000, 1 << 20)[0])
                if not delivered:
                    break
                assert all(self.due.get(frame.body, 0) <= self.now for frame in delivered)
                frames += delivered
            self.now += 1000 * SECOND
            engine.tick(self.now)
        return frames

    def expected(self, topic: str, name: str) -> set[bytes]:
        """What a channel must have."""
        return self.acknowledged[topic] - (self.finished[topic] if name == "a" else self.backlog)

    def check_survivors(self) -> None:
        """After a restart: what was acknowledged is there, what was refused is not, what was finished long ago stays
        finished."""
        for topic in TOPICS:
            if self.acknowledged[topic]:
                assert topic in self.engine.topics
            for name in self.existing[topic] & set(
                self.engine.topics[topic].channels if self.acknowledged[topic] else ()
            ):
                frames = self.drain(topic, name)
                bodies = {frame.body for frame in frames}
                assert len(frames) == len(bodies), "delivered twice in one go"
                assert self.expected(topic, name) <= bodies
                assert bodies <= self.acknowledged[topic] | self.unanswered
                assert not bodies & self.refused
                if name == "a":
                    assert not bodies & self.long_finished[topic]
