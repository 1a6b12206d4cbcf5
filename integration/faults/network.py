"""The network between any two parties misbehaves, one way after the other, while messages flow; then it heals.

Faults come from a proxy in user space, so that they need no rights; ``kernel.py`` has those of the kernel.
"""

import itertools
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from rig.receivers import NsqReceiver

from faults.cluster import Cluster
from faults.crash import shared_driver
from faults.driver import LOCAL, Driver
from faults.held_source import PROXY_NOTE, RECEIVER_NOTE
from faults.proxy import FORGOTTEN, IGNORED, LATE, REFUSED, RESET, STALLED, Proxy, Rules
from faults.queries import NSQ, TABLE
from faults.report import Row
from faults.scenario import Context, Scenario
from faults.subject import Subject, check_gone, finish_all
from pyspark_nsq.connector.settings import Address

COUNT = 200
PIECES = 10
# Longer than the messages' time-out, shorter than it takes to notice that nothing comes any more.
STALL_S = 4.0
# The receiver gives up a connection that was silent for two and a half of them.
HEARTBEAT = "2s"
# So does the sink, after this; nobody is killed, so that nsqd need not sync each message, which may take longer.
REQUEST_TIMEOUT = "1s"

# A fault lasts until somebody has come across it, on what is seldom used: nsqds ping their lookupd every 15 seconds.
MEET_S = 60.0
_STIR_S = 0.2

# A receiver elsewhere is given up, and gives up, when it was silent for so long: that is less than the stall.
LEASE = "2s"

RECEIVER_NSQD = "receiver - nsqd"
COORDINATOR_LOOKUPD = "coordinator - lookupd"
TASK_RECEIVER = "task - receiver"
SINK_NSQD = "sink - nsqd"
COORDINATOR_RECEIVER = "coordinator - receiver"
COORDINATOR_NSQD = "coordinator - nsqd (HTTP)"
NSQD_LOOKUPD = "nsqd - lookupd"
SINK_LOOKUPD = "sink - lookupd"
# Those that messages go through, or that tell where they are; the others say more of them.
LINKS = (RECEIVER_NSQD, COORDINATOR_LOOKUPD, TASK_RECEIVER, SINK_NSQD)
OTHER_LINKS = (COORDINATOR_RECEIVER, COORDINATOR_NSQD, NSQD_LOOKUPD, SINK_LOOKUPD)
_OF_SINK = (SINK_NSQD, SINK_LOOKUPD)
_OF_DATA = (RECEIVER_NSQD, TASK_RECEIVER, SINK_NSQD)


@dataclass(frozen=True)
class Fault:
    """``rules`` hold while messages are published for ``seconds``; ``act`` is done to the connections in between.

    ``meets`` is what a proxy has to count: nobody came across it otherwise.
    """

    name: str
    seconds: float
    meets: str
    rules: Callable[[], Rules] = Rules
    act: Callable[[Proxy], None] = lambda _proxy: None


FAULTS = (
    Fault("latency", 2, LATE, lambda: Rules(delay_s=0.05, jitter_s=0.1)),
    Fault("loss", 2, LATE, lambda: Rules(loss=0.2)),
    Fault("slow drip", 2, LATE, lambda: Rules(piece_size=64, delay_s=0.001)),
    Fault("resets", 2, RESET, act=Proxy.reset),
    Fault("refused", 2, REFUSED, lambda: Rules(refuse=True), Proxy.reset),
    Fault("accepted, never answered", 3, IGNORED, lambda: Rules(ignore=True), Proxy.reset),
    Fault("half-open", 1, FORGOTTEN, act=Proxy.forget),
    Fault("partition", STALL_S, STALLED, lambda: Rules(stall_up=True, stall_down=True)),
    Fault("one way only", STALL_S, STALLED, lambda: Rules(stall_up=True)),
)
PAUSED = "paused (SIGSTOP)"
QUICK = ("loss", "resets", "half-open", "partition")


def duplicates_allowed(link: str) -> bool:
    """What nsqd delivers again is recognised; what a sink sends again is not, nor what came of a receiver that was
    given up."""
    return link in (SINK_NSQD, COORDINATOR_RECEIVER)


def run_link(context: Context, link: str, faults: Sequence[Fault]) -> list[Row]:
    driver = shared_driver(context, LOCAL)
    with ExitStack() as ending:
        cluster = ending.enter_context(Cluster(context.impl, context.folder, context.seed, nsqds=1))
        subject = Subject(context.folder / "query", cluster, NSQ if link in _OF_SINK else TABLE)
        proxies = proxies_of(link, cluster, subject, ending)
        subject.order.source_options["heartbeatInterval"] = HEARTBEAT
        subject.order.sink_options["requestTimeout"] = REQUEST_TIMEOUT
        driver.start(subject.order)
        begin_to_flow(subject, driver)
        rows = [run_fault(link, fault, proxies, driver, subject) for fault in faults]
        left = check_gone(driver, cluster, [subject]) or beside(link, proxies, subject.published)
        return [*rows[:-1], replace(rows[-1], failure=rows[-1].failure or left)]


def begin_to_flow(subject: Subject, driver: Driver) -> None:
    """It takes a query longer to start than most faults last."""
    subject.publish(COUNT)
    subject.wait(subject.is_complete, "its first messages", driver)


def beside(link: str, proxies: Sequence[Proxy], published: Sequence[bytes]) -> str:
    """What has taken another way; empty where it all went through the proxies."""
    expected = sum(map(len, published)) if link in _OF_DATA else 1
    passed = sum(proxy.passed_bytes for proxy in proxies)
    return "" if passed >= expected else f"{passed} bytes went through the proxy, where {expected} should have"


def proxies_of(link: str, cluster: Cluster, subject: Subject, ending: ExitStack) -> list[Proxy]:
    """Put a proxy between the two, where there is none."""
    if link == RECEIVER_NSQD:
        return cluster.proxies
    if link == SINK_NSQD:
        return [cluster.sink_proxy]
    proxy = _NEW_PROXIES[link](cluster, subject, ending)
    ending.callback(proxy.close)
    return [proxy]


def _before_lookupd(cluster: Cluster, subject: Subject, _ending: ExitStack) -> Proxy:
    proxy = cluster.proxy(lambda: Address("127.0.0.1", cluster.lookupd.ports["HTTP"]), are_brief=True)
    subject.order.source_options["lookupdHttpAddresses"] = proxy.address
    return proxy


def _before_receiver(cluster: Cluster, subject: Subject, _ending: ExitStack) -> Proxy:
    """For tasks."""
    gates = subject.order.gates
    proxy = cluster.proxy(lambda: _address(gates.noted(RECEIVER_NOTE)))
    gates.note(PROXY_NOTE, proxy.address)
    return proxy


def _before_nsq_receiver(cluster: Cluster, subject: Subject, ending: ExitStack) -> Proxy:
    """For the coordinator: tasks have its unix socket."""
    receiver = NsqReceiver(Path(subject.order.folder) / "receiver")
    ending.callback(receiver.kill)
    proxy = cluster.proxy(lambda: _address(receiver.address))
    options = {"receivers": proxy.address, "receiverTokenFile": str(receiver.token_file), "receiverLease": LEASE}
    subject.order.source_options.update(options)
    return proxy


def _before_statistics(cluster: Cluster, subject: Subject, _ending: ExitStack) -> Proxy:
    """Where there is no lookupd to name another port."""
    proxy = cluster.proxy(lambda: Address("127.0.0.1", cluster.nsqds[0].ports["HTTP"]), are_brief=True)
    options = subject.order.source_options
    del options["lookupdHttpAddresses"]
    options.update(nsqdTcpAddresses=cluster.proxies[0].address, nsqdHttpAddresses=proxy.address)
    return proxy


def _before_registration(cluster: Cluster, _subject: Subject, _ending: ExitStack) -> Proxy:
    proxy = cluster.proxy(lambda: Address("127.0.0.1", cluster.lookupd.ports["TCP"]))
    cluster.nsqds[0].register_at([proxy.address])
    return proxy


def _before_lookupd_of_sink(cluster: Cluster, subject: Subject, _ending: ExitStack) -> Proxy:
    lookupd = cluster.add_lookupd_of_sink()
    proxy = cluster.proxy(lambda: Address("127.0.0.1", lookupd.ports["HTTP"]), are_brief=True)
    options = subject.order.sink_options
    del options["nsqdTcpAddresses"]
    options.update(lookupdHttpAddresses=proxy.address, lookupdPollInterval="300ms")
    return proxy


_NEW_PROXIES = {
    COORDINATOR_LOOKUPD: _before_lookupd,
    TASK_RECEIVER: _before_receiver,
    COORDINATOR_RECEIVER: _before_nsq_receiver,
    COORDINATOR_NSQD: _before_statistics,
    NSQD_LOOKUPD: _before_registration,
    SINK_LOOKUPD: _before_lookupd_of_sink,
}


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host, int(port))


def run_fault(link: str, fault: Fault, proxies: Sequence[Proxy], driver: Driver, subject: Subject) -> Row:
    trouble = ProxyTrouble(fault, proxies, _stirring(link, subject))
    row = go_through(trouble, f"network: {fault.name}", link, fault.seconds, driver, subject)
    return replace(row, name=f"network:{link}:{fault.name}")


def _stirring(link: str, subject: Subject) -> Callable[[], None]:
    """What makes parties talk who have nothing to say while messages are published."""
    if link != NSQD_LOOKUPD:
        return lambda: None
    numbers = itertools.count()
    return lambda: subject.cluster.nsqds[0].make_channel("stir", f"c{next(numbers)}")


class Trouble(Protocol):
    """Something between two parties that can be made worse, and well again."""

    def begin(self) -> None: ...

    def again(self) -> None:
        """Called before each piece that is published meanwhile."""

    def has_met(self) -> bool:
        """Whether anybody came across it since it began."""

    def heal(self) -> None: ...


class ProxyTrouble:
    def __init__(self, fault: Fault, proxies: Sequence[Proxy], stir: Callable[[], None]) -> None:
        self._fault = fault
        self._proxies = proxies
        self._stir = stir

    def begin(self) -> None:
        for proxy in self._proxies:
            proxy.met.clear()
            proxy.rules = self._fault.rules()

    def again(self) -> None:
        for proxy in self._proxies:
            self._fault.act(proxy)
        self._stir()

    def has_met(self) -> bool:
        return all(proxy.met[self._fault.meets] for proxy in self._proxies)

    def heal(self) -> None:
        for proxy in self._proxies:
            proxy.heal()


def go_through(trouble: Trouble, fault: str, link: str, seconds: float, driver: Driver, subject: Subject) -> Row:
    """Publish before, during and after it; then all has to be there."""
    began, before, twice = time.monotonic(), len(subject.published), subject.duplicated()
    subject.publish(COUNT)
    trouble.begin()
    for _ in range(PIECES):
        trouble.again()
        subject.publish(COUNT // PIECES)
        time.sleep(seconds / PIECES)
    has_met = _meet(trouble, subject)
    trouble.heal()
    subject.publish(COUNT)
    finish_all(driver, [subject])
    failure = subject.complaint or ("" if has_met else "nobody came across it")
    subject.failure, subject.failures = "", []
    counts = (1, len(subject.published) - before, subject.lost(), subject.duplicated() - twice)
    allowed, lasted = duplicates_allowed(link), time.monotonic() - began
    return Row(fault, link, subject.cluster.impl.name, *counts, allowed, lasted, 0, "", failure)


def _meet(trouble: Trouble, subject: Subject) -> bool:
    """Let it last until somebody has come across it, or should have long ago."""
    deadline = time.monotonic() + MEET_S
    while not (has_met := trouble.has_met()) and time.monotonic() < deadline:
        trouble.again()
        subject.publish(1)
        time.sleep(_STIR_S)
    return has_met


def run_pause(context: Context) -> Row:
    """An nsqd that hangs for longer than its messages' time-out, and then goes on as if nothing had been."""
    driver = shared_driver(context, LOCAL)
    with Cluster(context.impl, context.folder, context.seed) as cluster:
        subject = Subject(context.folder / "query", cluster, TABLE)
        driver.start(subject.order)
        began = time.monotonic()
        subject.publish(COUNT)
        subject.wait(lambda: cluster.unfinished(subject.topic) < COUNT, "its first batch", driver)
        # The receiver holds some, some are on their way; publishing waits until it goes on.
        cluster.nsqds[0].publish(subject.topic, subject.number(COUNT))
        cluster.nsqds[0].process.send_signal(signal.SIGSTOP)
        cluster.nsqds[1].publish(subject.topic, subject.number(COUNT))
        time.sleep(STALL_S)
        cluster.nsqds[0].process.send_signal(signal.SIGCONT)
        subject.publish(COUNT)
        finish_all(driver, [subject])
        failure = subject.complaint or check_gone(driver, cluster, [subject])
        counts = (1, len(subject.published), subject.lost(), subject.duplicated())
        return Row(PAUSED, "one nsqd", context.impl.name, *counts, False, time.monotonic() - began, 0, "", failure)


def scenario(link: str, faults: Sequence[Fault], name: str = "", is_long: bool = False) -> Scenario:
    name = name or f"network:{link}:{'+'.join(fault.name for fault in faults)}"
    return Scenario(name, lambda context: run_link(context, link, faults), "network", link, is_long=is_long)


_QUICK = [fault for fault in FAULTS if fault.name in QUICK]
_OTHERS = [fault for fault in FAULTS if fault.name not in QUICK]
SCENARIOS = [
    *(scenario(link, _QUICK, f"network:{link}") for link in LINKS),
    *(scenario(link, _OTHERS, f"network:{link}:others", is_long=True) for link in LINKS),
    *(scenario(link, FAULTS, f"network:{link}", is_long=True) for link in OTHER_LINKS),
    Scenario("network:paused nsqd", run_pause, PAUSED, "one nsqd"),
]


def named(name: str) -> Scenario | None:
    """Some faults by the name that their row bears, or the scenario that had them one after the other."""
    if match := re.fullmatch(r"network:([^:]+):(.+)", name):
        known = {fault.name: fault for fault in FAULTS}
        wanted = match[2].split("+")
        if match[1] in (*LINKS, *OTHER_LINKS) and known.keys() >= set(wanted):
            return scenario(match[1], [known[each] for each in wanted])
    return None
