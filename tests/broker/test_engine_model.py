"""The engine against a plain dict: random publishing, delivering, answering, waiting, crashing."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulation.frames import parse
from simulation.memory_files import MemoryFiles
from simulation.uniform import together

from pyspark_nsq.broker.channel import Channel, Consumer
from pyspark_nsq.broker.engine import Engine, EngineOptions
from pyspark_nsq.broker.topic import Topic

STEP = 100_000_000  # deliveries closer than this may share a deadline
MSG_TIMEOUT = 30 * STEP
MAX_MSG_TIMEOUT = 80 * STEP
BODY_PAD = b"." * 30


@dataclass
class Message:
    """What a channel should know of one."""

    attempts: int = 0
    due: int = 0  # deferred until
    consumer: int | None = None  # in flight with
    deadline: int = 0
    delivered: int = 0
    finished: bool = False  # but perhaps not on disk yet


@dataclass
class ModelChannel:
    """What should be in a channel."""

    messages: dict[int, Message] = field(default_factory=dict)
    paused: bool = False
    consumers: dict[int, Consumer] = field(default_factory=dict)
    finished_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    message_count: int = 0

    def live(self) -> dict[int, Message]:
        return {number: message for number, message in self.messages.items() if not message.finished}

    def waiting(self) -> list[int]:
        return [number for number, message in self.live().items() if message.consumer is None and not message.due]

    def in_flight(self, consumer: int) -> list[int]:
        return [number for number, message in self.live().items() if message.consumer == consumer]


class EngineMachine(RuleBasedStateMachine):
    """One topic, up to three channels."""

    topic_name = "topic"

    def __init__(self) -> None:
        super().__init__()
        self.files = MemoryFiles()
        self.now = 1_763_000_000_000_000_000
        self.options = EngineOptions(
            "data",
            mem_queue_size=7,
            max_bytes_per_file=700,
            max_msg_timeout_ns=MAX_MSG_TIMEOUT,
            persist_interval_ns=10 * STEP,
            sync_every=3,
            log=lambda level, text: self.log_lines.append(f"{level}: {text}"),
        )
        self.log_lines: list[str] = []
        self.published = 0
        self.numbers = 0
        self.held: dict[int, int] = {}  # message -> due, for no channel yet
        self.channels: dict[str, ModelChannel] = {}
        self.topic_paused = False
        self.ids: dict[int, bytes] = {}
        self.last_id = b""

    @initialize()
    def start(self) -> None:
        self.engine = Engine(self.options, self.files, self.now)
        self.engine.topic(self.topic_name, self.now).start(self.now)
        self.engine.tick(self.now)
        self.create_channel("a")
        self.add_consumer("a")

    @property
    def topic(self) -> Topic:
        return self.engine.topics[self.topic_name]

    def channel(self, name: str) -> Channel:
        return self.topic.channels[name]

    def pick_channel(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.channels)))

    # --- publishing --------------------------------------------------------------------------------------------

    @rule(
        counts=st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=3),
        defer=st.sampled_from([0, 0, 0, 5, 40]),
    )
    def publish(self, counts: list[tuple[int, bool]], defer: int) -> None:
        numbers: list[int] = []
        for count, large in counts:
            bodies = [b"%d " % (self.published + at) + BODY_PAD[: self.published % 20] for at in range(count)]
            ticket = self.topic.publish(together(bodies) if large else bodies, self.now, defer * STEP)
            numbers += range(self.published, self.published + count)
            self.published += count
        assert not ticket.done
        self.engine.commit(self.now)
        assert ticket.done
        assert ticket.error is None
        due = self.now + defer * STEP if defer else 0
        self.held.update(dict.fromkeys(numbers, due))
        self.flow()
        job = self.engine.next_sync(self.now)
        if job is not None:
            job.run()
            self.engine.synced(job, self.now)

    @rule(at=st.integers(0, 5))
    def publish_in_vain(self, at: int) -> None:
        """The disk fails: nothing of it may ever be delivered."""
        self.files.fail_from = self.files.calls + at
        ticket = self.topic.publish([b"%d lost" % self.published], self.now)
        number = self.published
        self.published += 1
        self.engine.commit(self.now)
        self.files.heal()
        assert ticket.done
        if ticket.error is None:
            self.held[number] = 0
            self.flow()
        else:
            assert "No space left" in str(ticket.error)
            assert self.engine.health is ticket.error

    def flow(self) -> None:
        if self.topic_paused or not self.channels:
            return
        for channel in self.channels.values():
            for number, due in self.held.items():
                channel.messages[number] = Message(due=due if due > self.now else 0)
            channel.message_count += len(self.held)
        self.held.clear()

    # --- channels and consumers --------------------------------------------------------------------------------

    @rule(name=st.sampled_from("abc"))
    def create(self, name: str) -> None:
        self.create_channel(name)

    def create_channel(self, name: str) -> None:
        self.topic.channel(name, self.now)
        self.channels.setdefault(name, ModelChannel())
        self.flow()

    @precondition(lambda self: self.channels)
    @rule(data=st.data(), sure=st.integers(0, 3))
    def delete_channel(self, data: st.DataObject, sure: int) -> None:
        if sure:
            return
        name = self.pick_channel(data)
        deleted = self.topic.delete_channel(name, self.now)
        assert deleted.deleted
        del self.channels[name]

    @precondition(lambda self: self.channels)
    @rule(data=st.data())
    def subscribe(self, data: st.DataObject) -> None:
        self.add_consumer(self.pick_channel(data))

    def add_consumer(self, name: str) -> None:
        consumer = Consumer()
        consumer.msg_timeout_ns = MSG_TIMEOUT
        self.channel(name).subscribe(consumer)
        self.numbers += 1
        self.channels[name].consumers[self.numbers] = consumer

    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        found = self.pick_consumer(data)
        if found is not None:
            name, number = found
            consumer = self.channels[name].consumers.pop(number)
            self.channel(name).unsubscribe(consumer, self.now)
            assert self.channel(name).deliver(consumer, self.now, 12, 10_000) == ([], 0)

    def pick_consumer(self, data: st.DataObject) -> tuple[str, int] | None:
        pairs = [(name, number) for name, channel in self.channels.items() for number in channel.consumers]
        return data.draw(st.sampled_from(pairs)) if pairs else None

    @rule(data=st.data(), count=st.integers(1, 12), room=st.sampled_from([1, 100, 10_000]))
    def deliver(self, data: st.DataObject, count: int, room: int) -> None:
        found = self.pick_consumer(data)
        if found is None:
            return
        name, number = found
        model = self.channels[name]
        buffers, delivered = self.channel(name).deliver(model.consumers[number], self.now, count, room)
        frames = parse(buffers)
        assert len(frames) == delivered
        waiting = model.waiting()
        # What is due since the last tick may be delivered.
        due = {at for at, message in model.live().items() if 0 < message.due <= self.now}
        if model.paused:
            assert not delivered
            return
        if room == 10_000:
            assert min(len(waiting), count) <= delivered <= count
        elif waiting:
            assert delivered
        for frame in frames:
            at = int(frame.body.split()[0])
            message = model.messages[at]
            assert at in waiting or at in due
            assert self.ids.setdefault(at, frame.message_id) == frame.message_id
            message.attempts += 1
            assert frame.attempts == message.attempts
            message.due = 0
            message.consumer = number
            message.delivered = self.now
            message.deadline = self.now + MSG_TIMEOUT

    # --- answers -----------------------------------------------------------------------------------------------

    def pick_answered(self, data: st.DataObject) -> tuple[str, int, list[int]] | None:
        found = self.pick_consumer(data)
        if found is None:
            return None
        name, number = found
        in_flight = self.channels[name].in_flight(number)
        if not in_flight:
            return None
        start = data.draw(st.integers(0, len(in_flight) - 1))
        run = in_flight[start : start + data.draw(st.integers(1, 8))]
        return name, number, data.draw(st.permutations(run)) if data.draw(st.booleans()) else run

    def ids_of(self, numbers: list[int]) -> bytes:
        return b"".join(self.ids[number] for number in numbers)

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        found = self.pick_answered(data)
        if found is None:
            return
        name, number, answered = found
        model = self.channels[name]
        consumer = model.consumers[number]
        unknown = b"0123456789abcdef"
        failures = self.channel(name).finish(consumer, self.ids_of(answered) + unknown, self.now)
        assert failures == [(unknown, "ID not in flight")]
        for at in answered:
            model.messages[at].finished = True
            model.messages[at].consumer = None
        model.finished_count += len(answered)

    @rule(data=st.data(), delay=st.sampled_from([0, 0, 3, 25]))
    def requeue(self, data: st.DataObject, delay: int) -> None:
        found = self.pick_answered(data)
        if found is None:
            return
        name, number, answered = found
        model = self.channels[name]
        consumer = model.consumers[number]
        assert not self.channel(name).requeue(consumer, self.ids_of(answered), delay * STEP, self.now)
        for at in answered:
            model.messages[at].consumer = None
            model.messages[at].due = self.now + delay * STEP if delay else 0
        model.requeue_count += len(answered)

    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        found = self.pick_answered(data)
        if found is None:
            return
        name, number, answered = found
        model = self.channels[name]
        assert not self.channel(name).touch(model.consumers[number], self.ids_of(answered), self.now)
        for at in answered:
            message = model.messages[at]
            message.deadline = min(self.now + MSG_TIMEOUT, message.delivered + MAX_MSG_TIMEOUT)

    @rule(data=st.data())
    def answer_for_another(self, data: st.DataObject) -> None:
        found = self.pick_answered(data)
        if found is None:
            return
        name, _number, answered = found
        stranger = Consumer()
        failures = self.channel(name).finish(stranger, self.ids_of(answered), self.now)
        assert failures == [(self.ids[at], "client does not own message") for at in answered]

    # --- time and control --------------------------------------------------------------------------------------

    @rule(steps=st.sampled_from([1, 4, 12, 31, 85]))
    def wait(self, steps: int) -> None:
        self.now += steps * STEP
        self.engine.tick(self.now)
        deadline = self.engine.next_deadline(self.now)
        self.forget_finished_if_saved()
        for name, model in self.channels.items():
            # A deferred message deep in the backlog is noticed when the cursor gets there: no deadline before.
            assert deadline <= self.channel(name)._deferred.next_due
            for message in model.live().values():
                if 0 < message.due <= self.now:
                    message.due = 0
                if message.consumer is not None and message.deadline <= self.now:
                    message.consumer = None
                    model.timeout_count += 1
                assert message.consumer is None or deadline <= message.deadline
        job = self.engine.next_sync(self.now)
        if job is not None:
            job.run()
            self.engine.synced(job, self.now)

    def forget_finished_if_saved(self) -> None:
        for name, model in self.channels.items():
            if not self.channel(name).changed and not self.topic.ephemeral:
                model.messages = model.live()

    @precondition(lambda self: self.channels)
    @rule(data=st.data())
    def pause_channel(self, data: st.DataObject) -> None:
        name = self.pick_channel(data)
        model = self.channels[name]
        model.paused = not model.paused
        (self.channel(name).pause if model.paused else self.channel(name).unpause)(self.now)

    @rule()
    def pause_topic(self) -> None:
        self.topic_paused = not self.topic_paused
        (self.topic.pause if self.topic_paused else self.topic.unpause)(self.now)
        self.flow()

    @precondition(lambda self: self.channels)
    @rule(data=st.data(), sure=st.integers(0, 3))
    def empty_channel(self, data: st.DataObject, sure: int) -> None:
        if not sure:
            name = self.pick_channel(data)
            self.channel(name).empty(self.now)
            self.channels[name].messages.clear()

    @rule(sure=st.integers(0, 3))
    def empty_topic(self, sure: int) -> None:
        if not sure:
            self.topic.empty(self.now)
            self.held.clear()

    # --- the end -----------------------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.engine.close(self.now)
        assert not self.files.handles
        self.files.kill()
        self.reload()
        for name, model in self.channels.items():
            assert set(contents(self.topic, self.channel(name))) == set(model.live())
            model.messages = model.live()
        self.resume()

    @rule(at=st.one_of(st.none(), st.integers(1, 4)))
    def crash(self, at: int | None) -> None:
        """kill -9, between two calls of the file system or in the middle of one, while publishing."""
        unknown: list[int] = []
        if at is not None:
            self.files.kill_at = self.files.calls + at
            unknown = list(range(self.published, self.published + 3))
            self.published += 3
            self.topic.publish([b"%d maybe" % number for number in unknown], self.now)
            try:
                self.engine.commit(self.now)
                self.engine._persist(self.now)
            except BaseException as error:
                assert type(error).__name__ == "Killed"  # noqa: PT017
        self.files.kill()
        self.reload()
        held = read(self.topic, self.topic.held)
        assert set(self.held) <= set(held) <= set(self.held) | set(unknown)
        self.held = held
        for name, model in self.channels.items():
            found = contents(self.topic, self.channel(name))
            live = model.live()
            assert set(live) <= set(found) <= set(model.messages) | set(unknown)
            for number, (due, _attempts) in found.items():
                message = live.get(number)
                if message and message.due and not message.attempts:
                    assert due == message.due
            model.messages = {number: Message(due=due, attempts=tried) for number, (due, tried) in found.items()}
        self.resume()

    def reload(self) -> None:
        self.engine = Engine(self.options, self.files, self.now)
        assert list(self.engine.topics) == [self.topic_name]
        assert set(self.topic.channels) == set(self.channels)
        assert self.topic.paused == self.topic_paused

    def resume(self) -> None:
        for name, model in self.channels.items():
            assert self.channel(name).paused == model.paused
            model.consumers.clear()
            model.requeue_count = model.timeout_count = 0
            model.message_count = self.channel(name).message_count
            for message in model.messages.values():
                message.consumer = None
                message.due = message.due if message.due > self.now else 0
        self.engine.tick(self.now)

    # --- always ------------------------------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "engine"):
            return
        assert read(self.topic, self.topic.held).keys() == self.held.keys()
        assert self.topic.depth == len(self.held)
        for name, model in self.channels.items():
            channel = self.channel(name)
            found = contents(self.topic, channel)
            live = model.live()
            in_flight = {number for number, message in live.items() if message.consumer is not None}
            assert found.keys() | in_flight == live.keys()
            assert not found.keys() & in_flight
            assert channel.in_flight_count == len(in_flight)
            assert channel.depth + channel.deferred_count == len(found)
            assert channel.requeue_count == model.requeue_count
            assert channel.timeout_count == model.timeout_count
            assert channel.message_count == model.message_count
            for number, (due, attempts) in found.items():
                assert attempts == live[number].attempts
                assert max(due, self.now) == max(live[number].due, self.now)
            for number, consumer in model.consumers.items():
                assert consumer.in_flight_count == len(model.in_flight(number))

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close(self.now)
            unexpected = [line for line in self.log_lines if "unfinished write" not in line and "failed" not in line]
            assert not [line for line in unexpected if "state ends early" not in line]


def read(topic: Topic, ranges: list[tuple[int, int]]) -> dict[int, int]:
    """Messages in these ranges: their numbers and due times."""
    found: dict[int, int] = {}
    for first, stop in ranges:
        while first < stop:
            segments = topic.store.find(first, stop)
            assert segments, f"{first}..{stop} cannot be read"
            segment = next(segment for segment in segments if segment.end > first)
            assert segment.base <= first
            index = first - segment.base
            count = min(segment.end, stop) - first
            for frame in parse([segment.slice(index, count)]):
                number = int(frame.body.split()[0])
                assert number not in found
                found[number] = segment.due
            first += count
    return found


def contents(topic: Topic, channel: Channel) -> dict[int, tuple[int, int]]:
    """What waits or is deferred in a channel: (due, attempts made) of each message."""
    found = {number: (due, 0) for number, due in read(topic, channel._backlog.ranges()).items()}
    for seq, count, extra in requeued_entries(channel):
        numbers = read(topic, [(seq, seq + count)])
        assert not found.keys() & numbers.keys()
        found.update((number, (0, extra)) for number in numbers)
    for entry in channel._deferred._heap:
        numbers = read(topic, [(entry.seq, entry.seq + entry.messages)])
        assert not found.keys() & numbers.keys()
        found.update((number, (entry.due, entry.extra)) for number in numbers)
    return found


def requeued_entries(channel: Channel) -> list[list[int]]:
    return [[entry.seq, entry.count, entry.extra] for entry in channel._requeued._queue]


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=250, stateful_step_count=50, deadline=None, report_multiple_bugs=False)
