"""nsqd where things are scarce: a full disk, a slow disk, consumers that do not read, crowds of clients and topics.

Every scenario ends with the whole account: all that was acknowledged has come on every channel.
"""

import asyncio
import math
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from struct import pack
from urllib.error import HTTPError

from rig.processes import peak_memory_bytes

from faults.broker_client import Link, Message, connect
from faults.broker_ledger import ChannelAccount, Ledger, body_of
from faults.broker_victim import Victim
from faults.report import Row
from faults.scenario import Context, Scenario, Skipped
from pyspark_nsq.broker.limits import raise_file_limit
from pyspark_nsq.proto import commands

MIB = 1024 * 1024
PATIENCE_S = 120.0
READY = 2500
_DEFER_MS = 50
# What a client may cost that is connected, and a topic with a channel, before and after a restart.
_CONNECTION_KIB = 12
_TOPIC_KIB = 24
# What a disk that is full again may cost.
_DISK_FULL_MIB = 10
# What nsqd keeps back of the open files that it may have, for logs, HTTP and others; of few it is half at most.
_FILES_KEPT_BACK = 2 * 2048 + 256


# --- readers and publishers ------------------------------------------------------------------------------------------


async def subscribe(
    victim: Victim, ledger: Ledger, account: ChannelAccount, ready: int = READY, source: str | None = None
) -> Link:
    """A consumer that finishes whatever comes."""

    def receive(link: Link, messages: list[Message]) -> None:
        for message in messages:
            ledger.deliver(account, message.body)
        link.send(b"".join(commands.fin(message.id) for message in messages))

    def ignore(_: Link, text: bytes) -> None:
        assert text.startswith(b"E_FIN_FAILED"), text  # its time-out was quicker

    link = await connect(victim.tcp, receive, ignore, source)
    await link.request(commands.identify({"feature_negotiation": True, "heartbeat_interval": 60_000}))
    answer = await link.request(commands.sub(account.topic, account.name))
    assert answer == b"OK", answer
    link.send(commands.rdy(ready))
    return link


async def drain(victim: Victim, ledger: Ledger) -> None:
    """Read every channel until nobody is owed anything."""
    links = [await subscribe(victim, ledger, account) for account in ledger.channels.values()]
    await until_all_came(victim, links)
    for link in links:
        link.close()


async def until_all_came(victim: Victim, links: Sequence[Link]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (owed := await victim.owed()) > 0:
        check(links)
        assert time.monotonic() < deadline, f"{owed} messages did not come\n{victim.log[-3000:]}"
        await asyncio.sleep(0.1)


async def wait_for(what: Callable[[], bool], name: str, links: Sequence[Link] = ()) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await asyncio.to_thread(what):
        check(links)
        assert time.monotonic() < deadline, f"waited in vain: {name}"
        await asyncio.sleep(0.05)


def check(links: Sequence[Link]) -> None:
    """Raise what was wrong with something that came."""
    for link in links:
        link.check()


async def publish(ledger: Ledger, link: Link, topic: str, count: int, padding: bytes = b"") -> bytes:
    """One MPUB; its answer."""
    numbers = ledger.take(topic, count)
    answer = await link.request(commands.mpub(topic, [body_of(number) + padding for number in numbers]))
    if answer == b"OK":
        ledger.acknowledged[topic].update(numbers)
    return answer


def need_connections(count: int) -> None:
    """That nsqd takes so many at once: more would wait at its door for ever."""
    files = raise_file_limit()
    if files - min(_FILES_KEPT_BACK, files // 2) < count:
        raise Skipped(f"{files} open files are too few for {count} connections: raise `ulimit -Hn`")


# --- a full disk -----------------------------------------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path | None]:
    """A file system of so many bytes, where this process may make one."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


async def _disk_full(context: Context, ledger: Ledger) -> int:
    """Fill, read, fill again; the last time it is killed while nothing more fits. How often it was full."""
    rounds = 30 if context.is_long else 3
    with small_disk(context.folder / "disk", 8 * MIB) as disk:
        flags = ["--mem-queue-size=100", "--msg-timeout=2s", "--max-bytes-per-file=1000000"]
        if disk is None:  # then no file may grow beyond some size: as good as full, until files go
            flags[-1] = "--max-bytes-per-file=100000000"
        victim = Victim(context.impl, context.folder, flags, disk)
        try:
            await victim.start()
            if disk is None:
                resource.prlimit(victim.process.pid, resource.RLIMIT_FSIZE, (4 * MIB, 4 * MIB))
            await victim.make_channels(list(ledger.channels))
            await _fill(victim, ledger)
            await _empty(victim, ledger, disk)
            growth, before = victim.growth, ledger.published_bytes
            for number in range(1, rounds):
                await _fill(victim, ledger)
                if number == rounds - 1:
                    growth.check(_DISK_FULL_MIB, ledger.published_bytes - before, "its disk was full")
                    victim.kill()
                    await victim.start()
                await _empty(victim, ledger, disk)
            await _publish_again(victim, ledger)
        finally:
            victim.kill()
    return rounds


async def _empty(victim: Victim, ledger: Ledger, disk: Path | None) -> None:
    """Read all. Files go a moment later, and nsqd is well again with the first of them."""
    await drain(victim, ledger)
    await wait_for(lambda: victim.ping() == 200, "/ping is 200 again")
    if disk is not None:
        await wait_for(lambda: victim.message_bytes < 2 * MIB, "the files that nobody needs are gone")


async def _fill(victim: Victim, ledger: Ledger) -> None:
    """Publish until that is refused, by every way to publish."""
    link = await connect(victim.tcp)
    while (answer := await publish(ledger, link, "full", 50)) == b"OK":
        pass
    assert answer.startswith(b"E_MPUB_FAILED MPUB failed"), answer
    await link.closed.wait()
    # What is still free is less than a batch: fill it one by one.
    await _fill_singly(victim, ledger, "PUB", lambda body: commands.pub("full", body))
    await _fill_singly(victim, ledger, "DPUB", lambda body: commands.dpub("full", _DEFER_MS, body))
    await _fill_over_http(victim, ledger, "/pub?topic=full", lambda body: body)
    await _fill_over_http(victim, ledger, "/mpub?topic=full&binary=true", lambda body: pack(">II", 1, len(body)) + body)
    assert await asyncio.to_thread(victim.ping) == 500


async def _fill_singly(victim: Victim, ledger: Ledger, word: str, command: Callable[[bytes], bytes]) -> None:
    link = await connect(victim.tcp)
    answer = b"OK"
    while answer == b"OK":
        (number,) = ledger.take("full", 1, _DEFER_MS / 1000 if word == "DPUB" else 0.0)
        answer = await link.request(command(body_of(number)))
        if answer == b"OK":
            ledger.acknowledged["full"].add(number)
    assert answer.startswith(f"E_{word}_FAILED {word} failed".encode()), answer
    await link.closed.wait()


async def _fill_over_http(victim: Victim, ledger: Ledger, target: str, packed: Callable[[bytes], bytes]) -> None:
    while True:
        (number,) = ledger.take("full", 1)
        try:
            await victim.post(target, packed(body_of(number)))
        except HTTPError as refused:
            code = refused.code
            break
        ledger.acknowledged["full"].add(number)
    assert code == 503, target


async def _publish_again(victim: Victim, ledger: Ledger) -> None:
    """As soon as the files of what was read are deleted, which is some time after the last FIN."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        link = await connect(victim.tcp)
        answer = await publish(ledger, link, "full", 100)
        link.close()
        if answer == b"OK":
            break
        assert time.monotonic() < deadline, f"nothing can be published although all is read: {answer!r}"
        await asyncio.sleep(0.05)
    assert await asyncio.to_thread(victim.ping) == 200
    await drain(victim, ledger)


# --- a slow disk -----------------------------------------------------------------------------------------------------


async def _slow_disk(context: Context, ledger: Ledger) -> int:
    """Publishers that do not wait for their answers, on a disk that cannot keep up: what waits must not fill memory."""
    publishers, batches, padding = (8, 400, 1000) if context.is_long else (4, 60, 1000)
    script = str(Path(__file__).with_name("broker_slow_disk.py"))
    program = [sys.executable, script, str(500 * MIB), "0.4"]
    victim = Victim(context.impl, context.folder, ["--sync-every=1", "--mem-queue-size=1000"], program=program)
    try:
        await victim.start()
        await victim.make_channels(list(ledger.channels))
        growth = victim.growth

        async def flood() -> None:
            link = await connect(victim.tcp)
            answers = [publish(ledger, link, "fast", 200, bytes(padding)) for _ in range(batches)]
            assert set(await asyncio.gather(*answers)) == {b"OK"}
            link.close()

        await asyncio.gather(*(flood() for _ in range(publishers)))
        sent_bytes = ledger.published_bytes + ledger.published * padding
        # 16 unanswered reads of 256 KiB for each publisher, as bytes and as frames; all else waits in the sockets.
        growth.check(20 + publishers * 6, sent_bytes, f"{publishers} publishers on a slow disk")
        await drain(victim, ledger)
    finally:
        victim.kill()
    return publishers


# --- consumers that do not read --------------------------------------------------------------------------------------


async def _slow_consumers(context: Context, ledger: Ledger) -> int:
    """Half the channel's consumers ask for messages and never read; the others, and another channel, get theirs."""
    count, ready, padding = (4000, 20, 4000) if context.is_long else (400, 20, 4000)
    need_connections(count)
    victim = Victim(context.impl, context.folder, ["--mem-queue-size=1000", "--msg-timeout=5s"])
    try:
        await victim.start()
        await victim.make_channels(list(ledger.channels))
        growth = victim.growth
        stuck = await _stuck_consumers(victim, count, ready)
        healthy = await subscribe(victim, ledger, ledger.channels["slow", "healthy"])
        link = await connect(victim.tcp)
        while ledger.published < count * ready * 4:
            answer = await publish(ledger, link, "slow", 1000, bytes(padding))
            assert answer == b"OK", f"after {ledger.published} messages a publish was answered {answer!r}"
        read = [ledger.channels["slow", "healthy"]]
        await wait_for(lambda: _all_came(ledger, read), "the healthy channel has everything", [healthy])
        # What each has in flight, and what lies ready for it to read.
        limit_mib = 50 + count * (ready * (padding + 400) + 64 * 1024) / MIB
        growth.check(limit_mib, ledger.published_bytes + ledger.published * padding, f"{count} consumers do not read")
        # Their connections end; what they held times out and goes to somebody who reads.
        for one in stuck:
            one.close()
        healthy.close()
        await drain(victim, ledger)
    finally:
        victim.kill()
    return count


async def _stuck_consumers(victim: Victim, count: int, ready: int) -> list[Link]:
    links = []
    for number in range(count):
        link = await connect(victim.tcp, source=f"127.0.0.{2 + number // 2000}")
        answer = await link.request(commands.sub("slow", "stuck"))
        assert answer == b"OK", f"SUB number {number} was answered {answer!r}"
        link.stop_reading()
        link.send(commands.rdy(ready))
        links.append(link)
    return links


# --- crowds ----------------------------------------------------------------------------------------------------------


async def _connections(context: Context, ledger: Ledger) -> int:
    """So many clients at once, each of which publishes and consumes."""
    count = 10_000 if context.is_long else 2_000
    need_connections(count)
    victim = Victim(context.impl, context.folder, ["--mem-queue-size=1000"])
    accounts = list(ledger.channels.values())
    try:
        await victim.start()
        await victim.make_channels(list(ledger.channels))
        growth = victim.growth
        # One loopback address has 28,000 ports; a few make sure that none is short of them.
        async with _crowd(victim, ledger, accounts, count) as links:
            for first in range(0, count, 500):
                answers = await asyncio.gather(
                    *(publish(ledger, link, "crowd", 1) for link in links[first : first + 500])
                )
                assert set(answers) == {b"OK"}
            await until_all_came(victim, links)
            # All are still there, and answered.
            assert sum(not link.closed.is_set() for link in links) == count
            growth.check(30 + count * _CONNECTION_KIB / 1024, math.inf, f"{count} clients")
    finally:
        victim.kill()
    return count


@asynccontextmanager
async def _crowd(
    victim: Victim, ledger: Ledger, accounts: Sequence[ChannelAccount], count: int
) -> AsyncIterator[list[Link]]:
    links: list[Link] = []
    for first in range(0, count, 200):
        links += await asyncio.gather(
            *(
                subscribe(victim, ledger, accounts[number % len(accounts)], 10, f"127.0.0.{2 + number // 4000}")
                for number in range(first, min(first + 200, count))
            )
        )
    yield links
    for link in links:
        link.close()


async def _topics(context: Context, ledger: Ledger) -> int:
    """Topics by the thousand, with few files allowed, through a kill and a restart, and gone without a trace."""
    names = [topic for topic, _ in ledger.channels]
    victim = Victim(context.impl, context.folder, ["--mem-queue-size=10"], program=_with_few_files(context))
    raise_file_limit()
    try:
        await victim.start()
        growth, limit_mib = victim.growth, 30 + len(names) * _TOPIC_KIB / 1024
        link = await connect(victim.tcp)
        await _publish_to_all(ledger, link, names)
        await _more_clients_than_files(victim, ledger, link, names[0])
        some = names[::2]  # these get their channels now, after the messages, the others not before somebody comes
        await asyncio.to_thread(victim.post_all, [f"/channel/create?topic={topic}&channel=c" for topic in some])
        growth.check(limit_mib, math.inf, f"{len(names)} topics")
        victim.kill()
        await victim.start()
        assert {topic["topic_name"] for topic in await victim.topics()} == set(names)
        for first in range(0, len(names), 50):  # the few files are for sockets, too
            part = [ledger.channels[name, "c"] for name in names[first : first + 50]]
            links = await asyncio.gather(*(subscribe(victim, ledger, account) for account in part))
            has_all = partial(_all_came, ledger, part)
            await wait_for(has_all, "a part has all", links)
            for link in links:
                link.close()
        size_mib = peak_memory_bytes(victim.process.pid) / MIB
        # It begins with 30 MiB, and with its topics.
        assert size_mib < 30 + limit_mib, f"nsqd takes {size_mib:.0f} MiB for {len(names)} topics after its restart"
        # Each deletion is fsynced before it is answered: that takes its time.
        doomed = names if context.is_long else names[:100]
        await asyncio.to_thread(victim.post_all, [f"/topic/delete?topic={name}" for name in doomed])
        left = {path.name for path in victim.data_path.iterdir()}
        assert left == {"nsqd.dat"} | {f"{name}.log" for name in set(names) - set(doomed)}
    finally:
        victim.kill()
    return len(names)


async def _more_clients_than_files(victim: Victim, ledger: Ledger, link: Link, topic: str) -> None:
    """Those that are there, HTTP, and the files are not hurt by a crowd at the door."""
    crowd = [await connect(victim.tcp) for _ in range(500)]
    await wait_for(lambda: "others wait" in victim.log, "nsqd says that it is crowded")
    assert await publish(ledger, link, topic, 2) == b"OK"
    assert await asyncio.to_thread(victim.ping) == 200
    for one in crowd:
        one.close()
    # Whoever waited is served now.
    late = await connect(victim.tcp)
    assert await publish(ledger, late, topic, 2) == b"OK"
    late.close()


def _with_few_files(context: Context) -> list[str]:
    """nsqd with far fewer open files than topics."""
    return ["sh", "-c", 'ulimit -n 400 && exec "$@"', "sh", str(context.impl.folder / "nsqd")]


async def _publish_to_all(ledger: Ledger, link: Link, names: Sequence[str]) -> None:
    for first in range(0, len(names), 100):
        part = [name for name in names[first : first + 100] for _ in range(2)]
        answers = await asyncio.gather(*(publish(ledger, link, name, 2) for name in part))
        assert set(answers) == {b"OK"}, answers


def _all_came(ledger: Ledger, accounts: Sequence[ChannelAccount]) -> bool:
    return all(ledger.acknowledged[account.topic] <= account.delivered for account in accounts)


# --- the scenarios ---------------------------------------------------------------------------------------------------


def _scenario(
    name: str,
    fault: str,
    work: Callable[[Context, Ledger], Coroutine[object, object, int]],
    channels: Callable[[Context], list[tuple[str, str]]],
) -> Scenario:
    def run(context: Context) -> Row:
        ledger = Ledger(channels(context))
        context.folder.mkdir(parents=True, exist_ok=True)
        runs = asyncio.run(work(context, ledger))
        lost = sum(map(len, ledger.lost().values()))
        return Row(
            fault,
            "nsqd",
            context.impl.name,
            runs,
            ledger.published,
            lost,
            ledger.duplicated,
            duplicates_allowed=True,
            seconds=0,
            seed=context.seed,
            failure=ledger.complaint(),
        )

    return Scenario(name, run, fault, "nsqd", ("ours",))


def _named(*channels: tuple[str, str]) -> Callable[[Context], list[tuple[str, str]]]:
    return lambda _: list(channels)


SCENARIOS = [
    _scenario("broker-disk-full", "disk full", _disk_full, _named(("full", "a"), ("full", "b"))),
    _scenario("broker-slow-disk", "publishers faster than the disk", _slow_disk, _named(("fast", "a"))),
    _scenario(
        "broker-slow-consumers",
        "consumers that do not read",
        _slow_consumers,
        _named(("slow", "stuck"), ("slow", "healthy")),
    ),
    _scenario(
        "broker-connections",
        "thousands of connections",
        _connections,
        lambda _: [("crowd", f"c{number}") for number in range(10)],
    ),
    _scenario(
        "broker-topics",
        "thousands of topics",
        _topics,
        lambda context: [(f"t{number}", "c") for number in range(10_000 if context.is_long else 1_000)],
    ),
]
