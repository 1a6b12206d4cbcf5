"""kill -9 at random moments, again and again, under everything that clients do: nothing acknowledged may be lost.

    python -m faults.broker_kills --kills 1000 --seed 7          (in the folder ``integration``)

Four brokers suffer beside each other, in two ways to run nsqd. Each is killed at random moments, some while it starts,
and started again on its data path. What was answered OK has to come on every channel that existed, a FIN older than
the interval of background persistence has to stand, and what was deferred must not come early. A FIN is known to be
taken when a later command of the same connection has been answered, and to be old when a publish that was sent so much
later has been answered: however busy the machine is, nsqd has been at work in between.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rig.daemons import Implementation, own_brokers

from faults.broker_client import Link, LostError, Message, connect
from faults.broker_ledger import ChannelAccount, Ledger, body_of
from faults.broker_victim import Victim
from faults.report import Row, append
from faults.scenario import Context, Scenario
from pyspark_nsq.proto import commands

# nsqd notes FINs once a second, before it answers anything.
SETTLED_AFTER_S = 1.1
DRAIN_S_MAX = 240.0
_NOBODYS_ID = b"f" * 16
_BARRIER_ANSWER = b"E_FIN_FAILED FIN " + _NOBODYS_ID
_KILLED_AT_START = 0.1
_KILLED_AT_FIRST_BYTES = 0.2
_LONG_LIVES = 0.12
_LIFE_S_MAX = 30.0
_LATE_CHANNELS_EVERY = 10
_BROKERS_EACH = 2  # while one starts another one is under load
_CHANNELS = [
    ("one", "a"),
    ("one", "b"),
    ("one", "unread"),
    ("many", "a"),
    ("many", "b"),
    ("later", "a"),
    ("later", "b"),
]


class Variant(NamedTuple):
    """A way to run nsqd. ``left_bytes_max``: what a topic's log may take when nobody is owed a message: its last file
    goes only from some size on."""

    name: str
    flags: Sequence[str]
    left_bytes_max: int


VARIANTS = (
    Variant("memory for 500 messages", ("--mem-queue-size=500",), 5 * 1024 * 1024),
    Variant(
        "fsync of each, files of 64 KiB",
        ("--sync-every=1", "--mem-queue-size=100", "--max-bytes-per-file=65536"),
        100 * 1024,
    ),
)


class Subscriber:
    """A consumer that finishes most, gives some back, at once or with a delay, and forgets a few."""

    def __init__(self, ledger: Ledger, account: ChannelAccount, chance: random.Random, *, kind: bool = False) -> None:
        self.account = account
        self._ledger = ledger
        self._chance = chance
        self._kind = kind  # finishes everything
        self._answered: list[tuple[bytes, int]] = []  # FINs behind the last barrier
        self._barriers: list[dict[bytes, int]] = []  # FINs before each barrier that is not answered yet

    async def run(self, address: tuple[str, int]) -> None:
        """Until the connection ends."""
        link = await connect(address, self._receive, self._hear_error)
        timeout_ms = 60_000 if self._kind else 1500
        await link.request(commands.identify({"msg_timeout": timeout_ms, "feature_negotiation": True}))
        await link.request(commands.sub(self.account.topic, self.account.name))
        link.send(commands.rdy(2500 if self._kind else self._chance.choice((1, 20, 300))))
        await link.ended()

    def _receive(self, link: Link, messages: list[Message]) -> None:
        out = [self._answer(message) for message in messages]
        if self._answered:
            self._barriers.append(dict(self._answered))
            self._answered.clear()
            out.append(commands.fin(_NOBODYS_ID))
        link.send(b"".join(out))

    def _answer(self, message: Message) -> bytes:
        number = self._ledger.deliver(self.account, message.body)
        mood = 1.0 if self._kind else self._chance.random()
        if mood < 0.03:
            return b"REQ %b 0\n" % message.id
        if mood < 0.06:
            return b"REQ %b %d\n" % (message.id, self._chance.randrange(50, 1500))
        if mood < 0.065:
            return b""  # until its time-out
        self._answered.append((message.id, number))
        return commands.fin(message.id)

    def _hear_error(self, _link: Link, text: bytes) -> None:
        if text.startswith(_BARRIER_ANSWER):
            self.account.finish(list(self._barriers.pop(0).values()))
        elif text.startswith(b"E_FIN_FAILED FIN "):
            # It stands before the first barrier that is still to be answered, where two copies of a message may be.
            self._barriers[0].pop(text.split(b" ")[2], None)
        else:
            assert text.startswith(b"E_REQ_FAILED"), text


class Publisher:
    """Publishes one by one, in batches or deferred, for as long as the broker lives."""

    def __init__(self, ledger: Ledger, topic: str, chance: random.Random) -> None:
        self._ledger = ledger
        self._topic = topic
        self._chance = chance

    async def run(self, address: tuple[str, int]) -> None:
        link = await connect(address)
        turns = {"one": self._singles, "many": self._batch, "later": self._deferred}
        while True:
            await turns[self._topic](link)
            await asyncio.sleep(self._chance.random() * 0.01)

    async def _singles(self, link: Link) -> None:
        """A few PUBs that are answered one after the other."""
        numbers = self._take(self._chance.randrange(1, 20))
        data = b"".join(commands.pub(self._topic, body_of(number)) for number in numbers)
        sent_at = time.monotonic()
        for number, answer in zip(numbers, link.ask(data, len(numbers)), strict=True):
            self._acknowledge(await answer, [number], sent_at)

    async def _batch(self, link: Link) -> None:
        numbers = self._take(self._chance.randrange(1, 100))
        sent_at = time.monotonic()
        answer = await link.request(commands.mpub(self._topic, map(body_of, numbers)))
        self._acknowledge(answer, numbers, sent_at)

    async def _deferred(self, link: Link) -> None:
        delay_ms = self._chance.choice((0, 50, 400, 1500, 5000))
        (number,) = self._take(1, delay_ms / 1000)
        sent_at = time.monotonic()
        answer = await link.request(commands.dpub(self._topic, delay_ms, body_of(number)))
        self._acknowledge(answer, [number], sent_at)

    def _take(self, count: int, defer_s: float = 0.0) -> list[int]:
        return self._ledger.take(self._topic, count, defer_s)

    def _acknowledge(self, answer: bytes, numbers: list[int], sent_at: float) -> None:
        assert answer == b"OK", answer
        self._ledger.acknowledged[self._topic].update(numbers)
        self._ledger.answered_at = max(self._ledger.answered_at, sent_at)


@dataclass
class Ordeal:
    """What one broker goes through."""

    victim: Victim
    chance: random.Random
    kills: int
    left_bytes_max: int
    ledger: Ledger = field(default_factory=lambda: Ledger(_CHANNELS))
    _number: int = 0

    async def run(self) -> None:
        await self.victim.start()
        await self.victim.make_channels(_CHANNELS)
        self.victim.kill()
        try:
            while self._number < self.kills:
                await self._live_and_die()
                self._number += 1
            await self._drain()
            await self._check_peace()
        finally:
            self.victim.kill()

    async def _live_and_die(self) -> None:
        if self.chance.random() < _KILLED_AT_START:
            self.victim.launch()
            await asyncio.sleep(self.chance.random() * 0.6)
            self.victim.kill()
            return
        await self.victim.start()
        if self._number % _LATE_CHANNELS_EVERY == _LATE_CHANNELS_EVERY - 1:
            await self._make_late_channel(("one", "many")[self._number // _LATE_CHANNELS_EVERY % 2])
        clients = [asyncio.create_task(client.run(self.victim.tcp)) for client in self._clients()]
        await self._live(clients)
        ended = next((task for task in clients if task.done()), None)
        self.victim.kill()
        # What had arrived by then counts; then no connection is left.
        await asyncio.sleep(0.01)
        await _end(clients)
        for account in self.ledger.channels.values():
            account.killed(self.ledger.answered_at, SETTLED_AFTER_S)
        if ended is not None:
            raise AssertionError(f"a client ended before the kill: {ended.exception()!r}\n{self.victim.log[-3000:]}")

    async def _live(self, clients: "list[asyncio.Task[None]]") -> None:
        """Until a random moment: of the first bytes, when work is going on, or after FINs have become old."""
        kind, before = self.chance.random(), self.ledger.published

        def worked() -> bool:
            return kind < _KILLED_AT_FIRST_BYTES or self.ledger.published > before

        def aged() -> bool:
            return kind < 1 - _LONG_LIVES or self.ledger.has_old_fins(SETTLED_AFTER_S)

        deadline = time.monotonic() + _LIFE_S_MAX
        while not (worked() and aged()) and time.monotonic() < deadline:
            if (await asyncio.wait(clients, timeout=0.02, return_when=asyncio.FIRST_COMPLETED))[0]:
                return
        await asyncio.wait(clients, timeout=self.chance.random() * 0.3, return_when=asyncio.FIRST_COMPLETED)

    async def _make_late_channel(self, topic: str) -> None:
        """Channels that come while messages do are owed all that is published after them."""
        name = f"late{self._number}"
        await self.victim.post(f"/channel/create?topic={topic}&channel={name}")
        self.ledger.add_channel(topic, name)

    def _clients(self) -> list[Subscriber | Publisher]:
        topics = ("one", "one", "many", "later", "later", "later")
        publishers = [Publisher(self.ledger, topic, self._some_chance()) for topic in topics]
        # Two consumers of the first channel, none where messages are to pile up.
        read = [account for account in self.ledger.channels.values() if account.name in "ab"]
        subscribers = [Subscriber(self.ledger, account, self._some_chance()) for account in [read[0], *read]]
        return [*subscribers, *publishers]

    def _some_chance(self) -> random.Random:
        return random.Random(self.chance.random())

    async def _drain(self) -> None:
        """Read everything that is left, on every channel."""
        await self.victim.start()
        readers = [
            Subscriber(self.ledger, account, self.chance, kind=True) for account in self.ledger.channels.values()
        ]
        tasks = [asyncio.create_task(reader.run(self.victim.tcp)) for reader in readers]
        deadline = time.monotonic() + DRAIN_S_MAX
        while (owed := await self.victim.owed()) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            failed = [task.exception() for task in tasks if task.done()]
            assert not failed, f"a consumer ended: {failed}\n{self.victim.log[-3000:]}"
        assert not owed, f"{owed} messages are left after {DRAIN_S_MAX:.0f} s"
        await _end(tasks)

    async def _check_peace(self) -> None:
        """After an orderly end nothing comes again, and the files have gone with their messages."""
        await self.victim.stop()
        await self.victim.start()
        assert await self.victim.owed() == 0
        await self.victim.stop()
        size, limit = self.victim.message_bytes, self.left_bytes_max * len(self.ledger.acknowledged)
        assert size < limit, f"{size} bytes on disk for no message, more than {limit}"


async def _end(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, LostError, ConnectionError):
            await task


def suffer(
    impl: Implementation, folder: Path, seed: int, kills: int, variants: Sequence[Variant] = VARIANTS
) -> list[Row]:
    """Kill so many times in all; a row for each broker."""
    began = time.monotonic()
    variants = [variant for variant in variants for _ in range(_BROKERS_EACH)]
    ordeals = [
        Ordeal(
            Victim(impl, folder / f"victim{number}", [*variant.flags, "--msg-timeout=1500ms"]),
            random.Random(f"{seed}/{number}"),
            kills // len(variants),
            variant.left_bytes_max,
        )
        for number, variant in enumerate(variants)
    ]

    async def all_of_them() -> None:
        await asyncio.gather(*(ordeal.run() for ordeal in ordeals))

    asyncio.run(all_of_them())
    seconds = time.monotonic() - began
    return [_row(ordeal, variant, seed, seconds) for ordeal, variant in zip(ordeals, variants, strict=True)]


def _row(ordeal: Ordeal, variant: Variant, seed: int, seconds: float) -> Row:
    ledger = ordeal.ledger
    lost = sum(map(len, ledger.lost().values()))
    failure = ledger.complaint()
    if not ledger.settled:
        failure = failure or "no FIN became old enough to be checked"
    return Row(
        "kill -9 under load",
        f"nsqd ({variant.name})",
        "ours",
        ordeal.kills,
        ledger.published,
        lost,
        ledger.duplicated,
        duplicates_allowed=True,
        seconds=seconds,
        seed=seed,
        failure=failure,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill nsqd at random moments; 1 if anything was lost.")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = suffer(own_brokers(), Path(folder), asked.seed, asked.kills)
    for row in rows:
        append(row)
        print(row)
    return 0 if all(row.passed for row in rows) else 1


def _scenario(variant: Variant) -> Scenario:
    def run(context: Context) -> list[Row]:
        kills = 500 if context.is_long else 100
        return suffer(context.impl, context.folder, context.seed, kills, [variant])

    short = variant.name.split(" ", maxsplit=1)[0]
    return Scenario(f"broker-kills-{short}", run, "kill -9 under load", f"nsqd ({variant.name})", ("ours",))


SCENARIOS = [_scenario(variant) for variant in VARIANTS]


if __name__ == "__main__":
    sys.exit(main())
