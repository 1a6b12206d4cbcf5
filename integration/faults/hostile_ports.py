"""Attackers at every port of the daemons while honest clients go on: none of those is hurt, no attacker stays."""

import asyncio
import json
import ssl
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import psutil
from rig.daemons import Daemon, Lookupd, Nsqd, wait_until
from rig.security import Certificates

from faults import hostile_attacks as attacks
from faults.broker_client import Link, Message, connect
from faults.hostile_attacks import PATIENCE_S, Attack, Outcome, launch
from faults.report import Row
from faults.scenario import Context, Scenario
from pyspark_nsq.proto import commands

# The most that the attacks together may add to a daemon: what they sent, and what it may hold for one that never reads.
MEMORY_GROWTH_MAX = 64 * 2**20
_PUBLISH_PAUSE_S = 0.01
_ASK_PAUSE_S = 0.05
_FLOOD_MESSAGES = 100
_FLOOD_SIZE = 200_000


class Honest:
    """A publisher and a consumer of a topic, who count."""

    def __init__(self, nsqd: Nsqd, topic: str) -> None:
        self.published: list[bytes] = []
        self.received: Counter[bytes] = Counter()
        self.errors: list[bytes] = []
        self._address = ("127.0.0.1", nsqd.ports["TCP"])
        self._topic = topic

    async def work(self, stop: asyncio.Event) -> None:
        """Publish until told to stop, then wait for what is still on its way."""
        consumer = await connect(self._address, self._take, lambda _link, error: self.errors.append(error))
        await consumer.request(commands.sub(self._topic, "c"))
        consumer.send(commands.rdy(100))
        publisher = await connect(self._address)
        while not stop.is_set():
            body = b"honest %d" % len(self.published)
            assert await publisher.request(commands.pub(self._topic, body)) == b"OK"
            self.published.append(body)
            await asyncio.sleep(_PUBLISH_PAUSE_S)
        while len(self.received) < len(self.published):
            assert not consumer.closed.is_set(), "the honest consumer was shut out"
            await asyncio.sleep(_PUBLISH_PAUSE_S)
        consumer.close()
        publisher.close()

    def _take(self, link: Link, messages: list[Message]) -> None:
        self.received.update(message.body for message in messages)
        link.send(b"".join(commands.fin(message.id) for message in messages))

    @property
    def lost(self) -> int:
        return len(set(self.published) - self.received.keys())

    @property
    def doubled(self) -> int:
        return self.received.total() - len(self.received)


async def _ask_on(lookupd: Lookupd, topic: str, expected: str, stop: asyncio.Event) -> int:
    """Ask where a topic is, again and again; how often the answer was right."""
    asked = 0
    while not stop.is_set():
        found = await asyncio.to_thread(lookupd.producers, topic)
        assert found == [expected], f"lookupd says that {topic} is at {found}"
        asked += 1
        await asyncio.sleep(_ASK_PAUSE_S)
    return asked


class Target(NamedTuple):
    """A port with those who attack it, under TLS or not."""

    daemon: Daemon
    port: str
    attacks: Sequence[Attack]
    tls: ssl.SSLContext | None = None


async def _attack_all(targets: Sequence[Target]) -> list[Outcome]:
    launched = [
        launch(("127.0.0.1", target.daemon.ports[target.port]), attack, target.tls)
        for target in targets
        for attack in target.attacks
    ]
    return await asyncio.gather(*launched)


async def _war(
    nsqd: Nsqd, lookupd: Lookupd, honest: Honest, seed: int, topic: str, tls: ssl.SSLContext
) -> list[Outcome]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as honests:
        honests.create_task(honest.work(stop))
        while not honest.received:
            await asyncio.sleep(_PUBLISH_PAUSE_S)
        while not await asyncio.to_thread(lookupd.producers, topic):
            await asyncio.sleep(_ASK_PAUSE_S)
        asking = honests.create_task(_ask_on(lookupd, topic, nsqd.tcp, stop))
        outcomes = await _attack_all(
            [
                Target(nsqd, "TCP", attacks.nsqd_tcp(seed, "flood")),
                Target(nsqd, "HTTP", attacks.http(seed)),
                Target(nsqd, "HTTPS", attacks.tls_port(seed)),
                Target(nsqd, "HTTPS", attacks.under_tls(seed), tls),
                Target(lookupd, "TCP", attacks.lookupd_tcp(seed)),
                Target(lookupd, "HTTP", attacks.http(seed)),
            ]
        )
        stop.set()
    assert asking.result()
    return outcomes


def _memory(daemon: Daemon) -> int:
    return int(psutil.Process(daemon.process.pid).memory_info().rss)


def _complaints(outcomes: Sequence[Outcome], honest: Honest, grown: dict[str, int], daemons: Sequence[Daemon]) -> str:
    """Everything that is not as it should be."""
    found = [outcome.complaint for outcome in outcomes if outcome.complaint]
    found += [f"an honest client was told {error!r}" for error in honest.errors]
    found += [f"{name} grew by {size:,} bytes" for name, size in grown.items() if size > MEMORY_GROWTH_MAX]
    for daemon in daemons:
        if daemon.process.poll() is not None:
            found.append(f"{daemon.program} ended with code {daemon.process.returncode}")
        found += [line for line in daemon.output if "panic" in line or "Traceback" in line or "by a bug" in line][:3]
    return "; ".join(found)


def run_hostile_ports(context: Context) -> Row:
    began = time.monotonic()
    lookupd = Lookupd(context.impl)
    certificates = Certificates(context.folder / "certificates")
    flags = certificates.nsqd_flags(ask_client=False, required=False)
    nsqd = Nsqd(context.impl, context.folder / "nsqd", [lookupd], flags)
    daemons = {"nsqd": nsqd, "nsqlookupd": lookupd}
    try:
        wait_until(lambda: nsqd.ports.get("HTTPS"), "nsqd's port for HTTPS")
        nsqd.publish("flood", [bytes(_FLOOD_SIZE)] * _FLOOD_MESSAGES, portion=10)
        honest = Honest(nsqd, "honest")
        before = {name: _memory(daemon) for name, daemon in daemons.items()}
        tls = ssl.create_default_context(cafile=str(certificates.authority))
        outcomes = asyncio.run(_war(nsqd, lookupd, honest, context.seed, "honest", tls))
        grown = {name: _memory(daemon) - before[name] for name, daemon in daemons.items()}
        failure = _complaints(outcomes, honest, grown, list(daemons.values())) or _left(nsqd)
    finally:
        nsqd.kill()
        lookupd.kill()
    return Row(
        fault="hostile ports",
        victim="nsqd, nsqlookupd",
        broker="ours",
        runs=len(outcomes),
        published=len(honest.published),
        lost=honest.lost,
        duplicated=honest.doubled,
        duplicates_allowed=False,
        seconds=time.monotonic() - began,
        seed=context.seed,
        failure=failure,
    )


def _left(nsqd: Nsqd) -> str:
    """Who stays connected, and what a channel still owes."""
    deadline = time.monotonic() + PATIENCE_S
    while (stats := json.loads(nsqd.get("/stats?format=json")))["producers"]:
        if time.monotonic() > deadline:
            return f"still connected: {stats['producers']}"
        time.sleep(0.05)
    channel = next(each for topic in stats["topics"] if topic["topic_name"] == "honest" for each in topic["channels"])
    return f"not finished: {channel}" if channel["depth"] or channel["in_flight_count"] else ""


SCENARIOS = [Scenario("hostile-ports", run_hostile_ports, "hostile ports", "nsqd, nsqlookupd", brokers=("ours",))]
