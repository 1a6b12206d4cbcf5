"""Brokers to break: some nsqds behind proxies, found by lookupd, and one more for what the sink publishes."""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rig.consumer import drain
from rig.daemons import Daemon, Implementation, Lookupd, Nsqd, wait_until

from faults.proxy import Proxy
from pyspark_nsq.connector.settings import Address

CHANNEL = "c"
# Nothing in memory only, and quick redeliveries.
NSQD_FLAGS = ("-mem-queue-size=0", "-msg-timeout=3s")
# So Go's nsqd keeps what it has acknowledged when it is killed. It takes as long as the disk for each message.
SYNC_EACH = "-sync-every=1"


class Cluster:
    """Publishing goes straight to the nsqds, consuming through the proxies.

    ``flags`` are all nsqds', the sink's too.
    """

    def __init__(
        self, impl: Implementation, folder: Path, seed: int, nsqds: int = 2, flags: Sequence[str] = ()
    ) -> None:
        self.impl = impl
        self._seeds = itertools.count(seed)
        self.daemons: list[Daemon] = []
        self.nsqds: list[Nsqd] = []
        self.proxies: list[Proxy] = []
        self.sink_proxy = self.proxy(lambda: Address("127.0.0.1", self.sink.ports["TCP"]))
        try:
            self._start(folder, nsqds, flags)
        except BaseException:
            self.close()
            raise

    def _start(self, folder: Path, nsqds: int, flags: Sequence[str]) -> None:
        self.lookupd = Lookupd(self.impl)
        self.daemons.append(self.lookupd)
        for number in range(nsqds):
            proxy = self.proxy(lambda number=number: self._address(number))  # type: ignore[misc]
            self.proxies.append(proxy)
            place, own = folder / f"nsqd-{number}", (f"-broadcast-tcp-port={proxy.port}", f"-node-id={number}")
            self.nsqds.append(Nsqd(self.impl, place, [self.lookupd], [*NSQD_FLAGS, *own, *flags]))
            self.daemons.append(self.nsqds[-1])
        self.sink = Nsqd(self.impl, folder / "nsqd-sink", [], [*NSQD_FLAGS, "-node-id=99", *flags])
        self.daemons.append(self.sink)

    def proxy(self, target: Callable[[], Address], *, are_brief: bool = False) -> Proxy:
        """One more, whose chance is its own, and the same with each run."""
        return Proxy(target, next(self._seeds), are_brief=are_brief)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for proxy in [*self.proxies, self.sink_proxy]:
            proxy.close()
        for daemon in reversed(self.daemons):
            daemon.kill()

    def _address(self, number: int) -> Address:
        return Address("127.0.0.1", self.nsqds[number].ports["TCP"])

    @property
    def source_options(self) -> dict[str, str]:
        """Quick to see what has changed."""
        quick = {"lookupdPollInterval": "300ms", "retryDelayMax": "500ms", "connectTimeout": "2s"}
        return {"lookupdHttpAddresses": self.lookupd.http, "channel": CHANNEL, **quick}

    @property
    def sink_options(self) -> dict[str, str]:
        # With SYNC_EACH an answer takes seconds where the disk is busy.
        quick = {"retryDelayMax": "500ms", "retries": "60", "requestTimeout": "20s", "connectTimeout": "2s"}
        return {"nsqdTcpAddresses": self.sink_proxy.address, **quick}

    def add_lookupd_of_sink(self) -> Lookupd:
        """One that knows the sink's nsqd and no other."""
        lookupd = Lookupd(self.impl)
        self.daemons.append(lookupd)
        self.sink.register_at([lookupd.tcp])
        wait_until(lambda: json.loads(lookupd.get("/nodes"))["producers"], "the sink's nsqd is known")
        return lookupd

    def make_topic(self, topic: str) -> None:
        for nsqd in self.nsqds:
            nsqd.make_channel(topic, CHANNEL)

    def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """To every nsqd its part; all of it is acknowledged."""
        for number, nsqd in enumerate(self.nsqds):
            nsqd.publish(topic, bodies[number :: len(self.nsqds)])

    def unfinished(self, topic: str) -> int:
        return sum(nsqd.unfinished(topic, CHANNEL) for nsqd in self.nsqds)

    def wait_restarted(self, topics: Sequence[str]) -> None:
        """Until every nsqd is back with its topics, and lookupd knows that."""
        known = {f"127.0.0.1:{proxy.port}" for proxy in self.proxies}
        wait_until(lambda: all(set(self.lookupd.producers(topic)) == known for topic in topics), "lookupd knows all")

    def drain_sink(self, topic: str) -> Counter[bytes]:
        """What the sink has published since the last time."""
        if not self.sink.message_count(topic):
            return Counter()
        self.sink.make_channel(topic, "look")
        return drain(self.sink, topic, "look")
