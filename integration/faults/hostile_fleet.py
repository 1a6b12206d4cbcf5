"""Attackers at the ports of an nsq-receiver, and of the driver's side of the query that it works for."""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from rig.daemons import Nsqd, wait_until
from rig.receivers import NsqReceiver

from faults.hostile_attacks import Outcome, grpc_port, launch
from faults.hostile_ports import MEMORY_GROWTH_MAX
from faults.hostile_receiver import KNOCKS, RECEIVER_CALLS, Call, knock
from faults.report import Row
from faults.scenario import Context, Scenario
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc

_TOPIC = "held"
_PORTION = 10
_PAUSE_S = 0.05
_COORDINATOR_CALLS: dict[str, Call] = {
    "Register": lambda stub, told: stub.Register(pb.Registration(host="h", address="127.0.0.1:1"), metadata=told),
    "Gather": lambda stub, told: stub.Gather(pb.Gathering(host="h"), metadata=told),
    "Look": lambda stub, told: stub.Look(pb.Range(lane=0, first=0, end=1), metadata=told),
}


class LoneQuery:
    """A process that reads a topic, with its coordinator's port."""

    def __init__(self, options: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "faults.lone_query"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
            )
        assert self.process.stdin
        self.process.stdin.write(json.dumps(options) + "\n")
        self.process.stdin.flush()
        self.address = self._answer()

    def _answer(self) -> str:
        assert self.process.stdout
        answer = self.process.stdout.readline().strip()
        assert answer, f"the query failed:\n{self.log.read_text()[-3000:]}"
        return answer

    def end(self) -> dict[str, int]:
        """How often each body came."""
        assert self.process.stdin
        self.process.stdin.close()
        bodies: dict[str, int] = json.loads(self._answer())
        assert self.process.wait(30) == 0
        return bodies

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class _Publisher:
    def __init__(self, nsqd: Nsqd) -> None:
        self.published: list[str] = []
        self._nsqd = nsqd

    def publish(self) -> None:
        first = len(self.published)
        bodies = [f"message {number}" for number in range(first, first + _PORTION)]
        self._nsqd.publish(_TOPIC, [body.encode() for body in bodies])
        self.published += bodies


async def _war(publisher: _Publisher, query: str, receiver: str, seed: int) -> tuple[list[Outcome], list[str]]:
    """The attacks, and what they opened."""
    ports = [int(address.rpartition(":")[2]) for address in (query, receiver)]
    war = asyncio.gather(*(launch(("127.0.0.1", port), attack) for port in ports for attack in grpc_port(seed)))
    stubs: list[tuple[str, Any, Any]] = [
        (query, receiver_pb2_grpc.CoordinatorStub, _COORDINATOR_CALLS),
        (receiver, receiver_pb2_grpc.ReceiverStub, RECEIVER_CALLS),
    ]
    knocking = asyncio.gather(*(asyncio.to_thread(knock, *each) for each in stubs))
    while not (war.done() and knocking.done()):
        await asyncio.to_thread(publisher.publish)
        await asyncio.sleep(_PAUSE_S)
    return await war, [each for opened in await knocking for each in opened]


def run_hostile_fleet(context: Context) -> Row:
    began = time.monotonic()
    nsqd = Nsqd(context.impl, context.folder / "nsqd")
    nsqd.make_channel(_TOPIC, "c")
    publisher = _Publisher(nsqd)
    publisher.publish()
    receiver = NsqReceiver(context.folder / "receiver")
    options = {"nsqdTcpAddresses": nsqd.tcp, "nsqdHttpAddresses": nsqd.http, "topic": _TOPIC, "channel": "c"}
    options |= {"receivers": receiver.address, "receiverTokenFile": str(receiver.token_file)}
    query = LoneQuery(options | {"receiverHost": "127.0.0.1"}, context.folder / "query.log")
    pids = {"the receiver": receiver.process.pid, "the driver's side": query.process.pid}
    try:
        before = {name: _memory(pid) for name, pid in pids.items()}
        outcomes, opened = asyncio.run(_war(publisher, query.address, receiver.address, context.seed))
        wait_until(lambda: not nsqd.unfinished(_TOPIC, "c"), "all to be finished")
        grown = {name: _memory(pid) - before[name] for name, pid in pids.items()}
        bodies = query.end()
    finally:
        query.kill()
        receiver.kill()
        nsqd.kill()
    found = [outcome.complaint for outcome in outcomes if outcome.complaint]
    found += [f"opened: {each}" for each in opened]
    found += [f"{name} grew by {size:,} bytes" for name, size in grown.items() if size > MEMORY_GROWTH_MAX]
    logs = receiver.said + query.log.read_text(errors="backslashreplace")
    found += [logs] if "Traceback" in logs or receiver.token in logs else []
    return Row(
        fault="hostile ports",
        victim="nsq-receiver, driver's side",
        broker="ours",
        runs=len(outcomes) + (len(RECEIVER_CALLS) + len(_COORDINATOR_CALLS)) * KNOCKS,
        published=len(publisher.published),
        lost=len(set(publisher.published) - bodies.keys()),
        duplicated=sum(bodies.values()) - len(bodies),
        duplicates_allowed=False,
        seconds=time.monotonic() - began,
        seed=context.seed,
        failure="; ".join(found),
    )


def _memory(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


SCENARIOS = [
    Scenario("hostile-fleet", run_hostile_fleet, "hostile ports", "nsq-receiver, driver's side", brokers=("ours",))
]
