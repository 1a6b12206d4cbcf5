"""Stop and restart anywhere: random steps with everything that can happen, then every message accounted for.

A failure prints its seed; NSQ_STRESS_SEED and NSQ_STRESS_STEPS repeat or prolong a run.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rig.daemons import Implementation, Lookupd, Nsqd, wait_until
from rig.reading import Reading, numbered, processes, wait_settled

SEED = int(os.environ.get("NSQ_STRESS_SEED", random.randrange(10**6)))
STEPS = int(os.environ.get("NSQ_STRESS_STEPS", "50"))
FLAGS = ("-msg-timeout=2s", "-mem-queue-size=0", "-sync-every=1")


class Stress:
    def __init__(
        self,
        chance: random.Random,
        lookupd: Lookupd,
        start_nsqd: Callable[..., Nsqd],
        start_reading: Callable[..., Reading],
        topic: str,
        checkpoint: Path,
        impl: Implementation,
    ) -> None:
        self.chance = chance
        self._is_go = impl.name == "go"
        self.topic = topic
        self.published: Counter[bytes] = Counter()
        self.readings: list[Reading] = []
        self.nsqds: list[Nsqd] = []
        self.is_paused = False
        self._lookupd = lookupd
        self._start_nsqd = start_nsqd
        self._start_reading = start_reading
        self._commits = checkpoint / "commits"

    # Steps.

    def publish(self) -> None:
        bodies = numbered(len(self.published), self.chance.randrange(1, 400))
        self.chance.choice(self.nsqds).publish(self.topic, bodies)
        self.published.update(bodies)

    def wait(self) -> None:
        time.sleep(self.chance.random())

    def stop_or_start(self) -> None:
        if self.readings and self.readings[-1].query.isActive:
            # Most of all with messages that are in no batch yet, or in one that is not committed.
            self.publish()
            if not self.is_paused:
                wait_until(self._is_held, "messages in flight")
            self.readings[-1].stop()
        else:
            self.start()

    def _is_held(self) -> bool:
        return any(stats and stats.in_flight for stats in (nsqd.channel_stats(self.topic, "c") for nsqd in self.nsqds))

    def start(self) -> None:
        self.readings.append(
            self._start_reading(
                topic=self.topic,
                lookupdHttpAddresses=self._lookupd.http,
                lookupdPollInterval="200ms",
                maxInFlight=2000,
                retryDelayMax="500ms",
            )
        )

    def kill_receiver(self) -> None:
        for receiver in processes("connector.receiver")[:1]:
            receiver.kill()

    def restart_nsqd(self) -> None:
        nsqd = self.chance.choice(self.nsqds)
        if self._is_go and self.readings and not self.readings[-1].query.isActive:
            # A REQ that comes while Go's nsqd ends takes the message out of what is in flight, and puts it nowhere.
            wait_until(lambda: nsqd.connections() == 0, "a receiver that has given everything back")
        nsqd.stop()
        nsqd.restart()

    def kill_nsqd(self) -> None:
        nsqd = self.chance.choice(self.nsqds)
        nsqd.kill()
        nsqd.restart()

    def pause(self) -> None:
        self.is_paused = not self.is_paused
        for nsqd in self.nsqds:
            nsqd.post(f"/channel/{'pause' if self.is_paused else 'unpause'}?topic={self.topic}&channel=c")

    def add_nsqd(self) -> None:
        """A query that runs finds it."""
        if len(self.nsqds) < 3:
            nsqd = self._start_nsqd(*FLAGS, lookupds=(self._lookupd,))
            nsqd.make_channel(self.topic, "c")
            self.nsqds.append(nsqd)

    def committed(self) -> Counter[bytes]:
        """What is in batches that Spark has committed: a batch that is repeated replaces what it was before."""
        last = max((int(path.name) for path in self._commits.glob("[0-9]*")), default=-1)
        batches = {number: rows for reading in self.readings for number, rows in reading.batches.items()}
        return Counter(bytes(row.body) for number, rows in batches.items() if number <= last for row in rows)

    def check(self) -> None:
        """What is in no batch that is committed is still owed by an nsqd."""

        def is_all_there() -> bool:
            # In this order: what is committed meanwhile counts twice.
            owed = sum(nsqd.unfinished(self.topic, "c") for nsqd in self.nsqds)
            return owed + len(self.committed()) >= len(self.published)

        try:
            wait_until(is_all_there, "every message, in a batch or in an nsqd", 30)
        except AssertionError:
            self._print_counts()
            raise

    def _print_counts(self) -> None:
        """What a failure is looked into with: whose messages are missing, and how many."""
        print(f"{len(self.published)} published, {len(self.committed())} in batches that are committed")
        for nsqd in self.nsqds:
            print(f"owed by {nsqd.tcp}: {nsqd.stats(self.topic, 'c')}")
        for reading in self.readings:
            print(f"a query's batches: { {number: len(rows) for number, rows in reading.batches.items()} }")
        print(f"committed: {sorted(int(path.name) for path in self._commits.glob('[0-9]*'))}")

    def settle(self) -> None:
        """With everything running again, all that was published has come, and nothing is left."""
        if self.is_paused:
            self.pause()
        if self.readings and self.readings[-1].query.isActive:
            self.readings[-1].stop()
        self.start()

        def all_here() -> bool:
            self.readings[-1].check()
            return self.committed().keys() == self.published.keys()

        wait_until(all_here, "all messages", 90)
        for nsqd in self.nsqds:
            wait_settled(nsqd, self.topic)


def test_nothing_is_lost_whatever_happens(
    impl: Implementation,
    start_lookupd: Callable[..., Lookupd],
    start_nsqd: Callable[..., Nsqd],
    start_reading: Callable[..., Reading],
    topic: str,
    checkpoint: Path,
) -> None:
    print(f"seed {SEED}, {STEPS} steps")
    stress = Stress(random.Random(SEED), start_lookupd(), start_nsqd, start_reading, topic, checkpoint, impl)
    stress.add_nsqd()
    steps = [
        *([stress.publish] * 8),
        *([stress.wait] * 8),
        *([stress.stop_or_start] * 3),
        *(stress.kill_receiver, stress.restart_nsqd, stress.pause, stress.add_nsqd, stress.check),
        # Go's has what is in flight in memory only, whatever its flags say, and loses it.
        stress.restart_nsqd if impl.name == "go" else stress.kill_nsqd,
    ]
    for number in range(STEPS):
        step = stress.chance.choice(steps)
        print(f"step {number}: {step.__name__}")
        step()
    stress.check()
    stress.settle()
    assert stress.committed().keys() == stress.published.keys()
