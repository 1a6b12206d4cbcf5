"""The engine alone: CPU microseconds per message for publishing, and for delivering, parsing FINs and finishing.

    python benchmarks/broker/engine.py [--messages N] [--profile]

No sockets, no threads: what the server adds comes on top. `best` of several rounds; the rounds write real files into a
temporary directory.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import shutil
import tempfile
import time
from collections.abc import Callable

from pyspark_nsq.broker.channel import Channel, Consumer
from pyspark_nsq.broker.engine import Engine, EngineOptions
from pyspark_nsq.broker.files import Files
from pyspark_nsq.broker.topic import Topic
from pyspark_nsq.proto.parser import CommandParser, Finish, Limits

BODY = bytes(range(200))
ROUNDS = 5


class Bench:
    """One engine with a topic and channels."""

    def __init__(self, channels: int, mem_queue_size: int) -> None:
        self.path = tempfile.mkdtemp(prefix="engine-bench-")
        now = time.time_ns()
        self.engine = Engine(EngineOptions(self.path, mem_queue_size=mem_queue_size), Files(), now)
        self.topic: Topic = self.engine.topic("bench", now)
        self.channels: list[Channel] = [self.topic.channel(f"c{number}", now) for number in range(channels)]
        self.topic.start(now)

    def close(self) -> None:
        self.engine.close(time.time_ns())
        shutil.rmtree(self.path)

    def turn(self) -> int:
        """What the server does between input and output."""
        now = time.time_ns()
        self.engine.commit(now)
        self.engine.take_ready()
        self.engine.tick(now)
        job = self.engine.next_sync(now)
        if job is not None:
            self.engine.synced(job, now)
        return now

    def publish(self, messages: int, batch: int) -> None:
        bodies = [BODY] * batch
        for _ in range(messages // batch):
            self.topic.publish(bodies, time.time_ns())
            self.turn()


def fin_lines(frames: bytes | memoryview) -> bytes:
    """A consumer's answers to these frames."""
    lines = []
    position = 0
    while position < len(frames):
        lines.append(b"FIN %b\n" % frames[position + 18 : position + 34])
        position += 4 + int.from_bytes(frames[position : position + 4], "big")
    return b"".join(lines)


def measure_publish(messages: int, batch: int, channels: int) -> float:
    bench = Bench(channels, messages)
    start = time.process_time()
    bench.publish(messages, batch)
    spent = time.process_time() - start
    bench.close()
    return spent / messages * 1e6


def measure_consume(messages: int, batch: int, answers: int, mem_queue_size: int) -> float:
    """The client's own work is done beforehand: all answers are known from what was published."""
    bench = Bench(1, mem_queue_size)
    bench.publish(messages, batch)
    channel = bench.channels[0]
    consumer = Consumer()
    channel.subscribe(consumer)
    parser = CommandParser(Limits())
    rdy = 2500
    expected: list[bytes] = []
    spent = 0.0
    finished = 0
    text = b""
    while finished < messages:
        start = time.process_time()
        now = time.time_ns()
        buffers, _count = channel.deliver(consumer, now, rdy - consumer.in_flight_count, 1 << 20)
        spent += time.process_time() - start
        expected.extend(map(fin_lines, buffers))
        text += b"".join(expected)
        expected.clear()
        data, text = text[: answers * 21], text[answers * 21 :]
        start = time.process_time()
        for command in parser.feed(data):
            assert isinstance(command, Finish)
            failures = channel.finish(consumer, command.ids, now)
            assert not failures
        bench.turn()
        spent += time.process_time() - start
        finished += len(data) // 21
    bench.close()
    return spent / messages * 1e6


def best(function: Callable[[], float]) -> float:
    return min(function() for _ in range(ROUNDS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    many, few = arguments.messages, max(arguments.messages // 10, 1000)
    cases: list[tuple[str, Callable[[], float]]] = [
        ("publish, batches of 200, 1 channel", lambda: measure_publish(many, 200, 1)),
        ("publish, batches of 200, 10 channels", lambda: measure_publish(many, 200, 10)),
        ("publish, batches of 10", lambda: measure_publish(many, 10, 1)),
        ("publish, one by one", lambda: measure_publish(few, 1, 1)),
        ("consume, batches of 200, FIN in runs of 200", lambda: measure_consume(many, 200, 200, many)),
        ("consume, batches of 200, FIN in runs of 50", lambda: measure_consume(many, 200, 50, many)),
        ("consume, batches of 200, from disk", lambda: measure_consume(many, 200, 200, 1000)),
        ("consume, published one by one", lambda: measure_consume(few, 1, 200, many)),
        ("consume, published one by one, from disk", lambda: measure_consume(few, 1, 200, 1000)),
        ("consume, batches of 200, FIN one by one", lambda: measure_consume(few, 200, 1, many)),
    ]
    for name, function in cases:
        if arguments.profile:
            profile = cProfile.Profile()
            profile.runcall(function)
            print(f"== {name}")
            pstats.Stats(profile).sort_stats("tottime").print_stats(14)
        else:
            print(f"{best(function):7.3f} us/message  {name}", flush=True)


if __name__ == "__main__":
    main()
