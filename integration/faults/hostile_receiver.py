"""Attackers at a receiver's port while its query goes on reading: it gets every message once, and they get nothing."""

import asyncio
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import psutil
from rig.daemons import Nsqd

from faults.hostile_attacks import Outcome, grpc_port, launch
from faults.hostile_ports import MEMORY_GROWTH_MAX
from faults.report import Row
from faults.scenario import Context, Scenario
from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.offsets import first_position
from pyspark_nsq.connector.receiver import Setup
from pyspark_nsq.connector.settings import Address, ConnectionSettings
from pyspark_nsq.connector.source_state import Limits
from pyspark_nsq.connector.wire import from_source
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc

_TOKEN = "the token that attackers do not have"
_TOPIC = "held"
_LIMITS = Limits("c", 1000, 64 * 2**20, 2 * 2**20, None, None, 0.1, 1.0)
_SETUP = Setup("127.0.0.1", [0], _TOKEN, first_position(1), _LIMITS, ConnectionSettings(), 0.5)
_WRONG = ("", "wrong", _TOKEN + "x", _TOKEN[:-1], "x" * 4000)
# How often somebody knocks with each call: with each of these, and with none.
KNOCKS = 1 + len(_WRONG)
_PORTION = 10
_PAUSE_S = 0.05

Metadata = Sequence[tuple[str, str]]
Call = Callable[[Any, Metadata], Any]


class Query:
    """What a coordinator and its tasks do with a receiver: command it, read what came, let it finish that."""

    def __init__(self, nsqd: Nsqd, channel: grpc.Channel) -> None:
        self.received: Counter[int] = Counter()
        self._nsqd = nsqd
        self._stub: Any = receiver_pb2_grpc.ReceiverStub(channel)  # type: ignore[no-untyped-call]
        self._commands: queue.SimpleQueue[pb.Command | None] = queue.SimpleQueue()
        self._metadata = [("authorization", _TOKEN)]
        self._at = first_position(1)
        self._statuses: Any = None
        self._thread = threading.Thread(target=self._follow)

    def start(self) -> None:
        source = from_source(Source(_TOPIC, Address("127.0.0.1", self._nsqd.ports["TCP"])))
        self._commands.put(pb.Command(assignment=pb.Assignment(sources=[source])))
        self._statuses = self._stub.Control(iter(self._commands.get, None), metadata=self._metadata)
        self._thread.start()

    def stop(self) -> None:
        self._statuses.cancel()
        self._commands.put(None)
        self._thread.join(20)

    def _follow(self) -> None:
        try:
            for status in self._statuses:
                if status.end > self._at:
                    self._read(status.end)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise

    def _read(self, end: int) -> None:
        request = pb.ReadRequest(first=self._at, end=end)
        rows = sum(piece.message_count for piece in self._stub.Read(request, metadata=self._metadata))
        self.received.update(range(self._at, self._at + rows))
        self._at = end
        self._commands.put(pb.Command(finish=pb.Finish(before=end)))


RECEIVER_CALLS: Mapping[str, Call] = {
    "Control": lambda stub, told: list(stub.Control(iter([pb.Command(stop=pb.Stop())]), metadata=told)),
    "Read": lambda stub, told: list(stub.Read(pb.ReadRequest(first=1, end=2), metadata=told)),
    "Settle": lambda stub, told: stub.Settle(pb.Verdicts(), metadata=told),
    "Judge": lambda stub, told: stub.Judge(pb.Suspects(), metadata=told),
}


def knock(address: str, stub_of: Callable[[grpc.Channel], Any], calls: Mapping[str, Call]) -> list[str]:
    """Calls without the right token; what was answered that is no refusal."""
    opened = []
    for token in (None, *_WRONG):
        metadata = [] if token is None else [("authorization", token)]
        with grpc.insecure_channel(address) as channel:
            stub = stub_of(channel)
            opened += [
                f"{name} with token {token!r}" for name, call in calls.items() if not _is_refused(call, stub, metadata)
            ]
    return opened


def _is_refused(call: Call, stub: Any, metadata: Metadata) -> bool:
    try:
        call(stub, metadata)
    except grpc.RpcError as error:
        return bool(error.code() is grpc.StatusCode.UNAUTHENTICATED)
    return False


async def _war(nsqd: Nsqd, port: int, seed: int) -> tuple[list[Outcome], list[str], int]:
    """The attacks, what they opened, and how many messages were published meanwhile."""
    war = asyncio.gather(*(launch(("127.0.0.1", port), attack) for attack in grpc_port(seed)))
    stub = receiver_pb2_grpc.ReceiverStub
    knocking = asyncio.create_task(asyncio.to_thread(knock, f"127.0.0.1:{port}", stub, RECEIVER_CALLS))
    published = 0
    while not (war.done() and knocking.done()):
        await asyncio.to_thread(nsqd.publish, _TOPIC, [b"message"] * _PORTION)
        published += _PORTION
        await asyncio.sleep(_PAUSE_S)
    return await war, await knocking, published


def run_hostile_receiver(context: Context) -> Row:
    began = time.monotonic()
    nsqd = Nsqd(context.impl, context.folder / "nsqd")
    nsqd.make_channel(_TOPIC, "c")
    command = [sys.executable, "-P", "-m", "pyspark_nsq.connector.receiver"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin
    assert process.stdout
    try:
        pickle.dump(_SETUP, process.stdin)
        process.stdin.flush()
        port = int(process.stdout.readline())
        before = psutil.Process(process.pid).memory_info().rss
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            query = Query(nsqd, channel)
            query.start()
            outcomes, opened, published = asyncio.run(_war(nsqd, port, context.seed))
            deadline = time.monotonic() + 20
            while (query.received.total() < published or nsqd.unfinished(_TOPIC, "c")) and time.monotonic() < deadline:
                time.sleep(_PAUSE_S)
            grown = psutil.Process(process.pid).memory_info().rss - before
            query.stop()
        found = [outcome.complaint for outcome in outcomes if outcome.complaint]
        found += [f"opened: {each}" for each in opened]
        found += [f"the receiver grew by {grown:,} bytes"] if grown > MEMORY_GROWTH_MAX else []
        found += [f"not finished: {nsqd.raw_stats()}"] if nsqd.unfinished(_TOPIC, "c") else []
    finally:
        process.kill()
        said = process.communicate()[1].decode(errors="backslashreplace")
        nsqd.kill()
    found += [said] if "Traceback" in said or _TOKEN in said else []
    return Row(
        fault="hostile ports",
        victim="receiver",
        broker="ours",
        runs=len(outcomes) + len(RECEIVER_CALLS) * KNOCKS,
        published=published,
        lost=published - len(query.received),
        duplicated=query.received.total() - len(query.received),
        duplicates_allowed=False,
        seconds=time.monotonic() - began,
        seed=context.seed,
        failure="; ".join(found),
    )


SCENARIOS = [Scenario("hostile-receiver", run_hostile_receiver, "hostile ports", "receiver", brokers=("ours",))]
