"""nsqds that go, come back, or stand still while a DataFrame is published: duplicates at most, never a loss."""

import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from faults.proxy import Proxy, Rules
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rig.consumer import drain
from rig.daemons import Implementation, Nsqd, wait_until
from rig.frames import bodies, gated, numbered, write

from pyspark_nsq.connector.settings import Address

StartNsqd = Callable[..., Nsqd]
InBackground = Callable[..., "Future[None]"]

COUNT = 50_000
# So many rows a task gives before it waits for the test: more than Spark hands to the sink at once.
OPEN = 15_000


@pytest.fixture
def in_background(spark: SparkSession) -> Iterator[InBackground]:
    """Calls a function in a thread."""

    def make_active() -> None:
        # Spark looks for data sources in the session of the thread.
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)

    with ThreadPoolExecutor(1, initializer=make_active) as threads:
        yield threads.submit


def everything(topic: str, *nsqds: Nsqd) -> Counter[bytes]:
    return sum((drain(nsqd, topic, "c") for nsqd in nsqds), Counter())


def test_an_nsqd_that_dies_mid_batch_loses_nothing_that_a_quorum_of_two_has(
    spark: SparkSession, start_nsqd: StartNsqd, in_background: InBackground, topic: str, tmp_path: Path
) -> None:
    nsqds = [start_nsqd() for _ in range(3)]
    for nsqd in nsqds:
        nsqd.make_channel(topic, "c")
    rows = gated(numbered(spark, COUNT).select("body"), tmp_path / "gate", OPEN)
    writing = in_background(write, rows, *nsqds, topic=topic, publishQuorum="2")
    wait_until(lambda: all(nsqd.message_count(topic) for nsqd in nsqds), "messages on all nsqds")
    nsqds[0].kill()
    (tmp_path / "gate").touch()
    writing.result(120)
    assert everything(topic, *nsqds[1:]).keys() == bodies(COUNT).keys()


def test_an_nsqd_that_ends_mid_batch_is_replaced(
    spark: SparkSession,
    impl: Implementation,
    start_nsqd: StartNsqd,
    in_background: InBackground,
    topic: str,
    tmp_path: Path,
) -> None:
    nsqds = [start_nsqd() for _ in range(2)]
    for nsqd in nsqds:
        nsqd.make_channel(topic, "c")
    rows = gated(numbered(spark, COUNT).select("body"), tmp_path / "gate", OPEN)
    writing = in_background(write, rows, *nsqds, topic=topic)
    wait_until(lambda: all(nsqd.message_count(topic) for nsqd in nsqds), "messages on both nsqds")
    if impl.name == "ours":
        # It has written what it acknowledged, so that nothing is lost by its sudden end either.
        nsqds[1].kill()
    else:
        nsqds[1].stop()
    (tmp_path / "gate").touch()
    writing.result(120)
    nsqds[1].restart()
    assert everything(topic, *nsqds).keys() == bodies(COUNT).keys()


def test_all_nsqds_may_end_mid_batch_and_come_back(
    spark: SparkSession, start_nsqd: StartNsqd, in_background: InBackground, topic: str, tmp_path: Path
) -> None:
    nsqds = [start_nsqd() for _ in range(2)]
    for nsqd in nsqds:
        nsqd.make_channel(topic, "c")
    rows = gated(numbered(spark, COUNT).select("body"), tmp_path / "gate", OPEN)
    writing = in_background(write, rows, *nsqds, topic=topic, retryDelayMax="500ms", retries="200")
    wait_until(lambda: all(nsqd.message_count(topic) for nsqd in nsqds), "messages on both nsqds")
    for nsqd in nsqds:
        nsqd.stop()
    # In the place of one of them, to hear of the two tasks that find nobody: one of them for the second time.
    with socket.create_server(("127.0.0.1", nsqds[0].ports["TCP"])) as listener:
        listener.settimeout(60)
        (tmp_path / "gate").touch()
        for _ in range(3):
            listener.accept()[0].close()
    for nsqd in nsqds:
        nsqd.restart()
    writing.result(120)
    assert everything(topic, *nsqds).keys() == bodies(COUNT).keys()


def test_all_nsqds_may_be_down_for_a_while(
    spark: SparkSession, start_nsqd: StartNsqd, in_background: InBackground, topic: str
) -> None:
    nsqd = start_nsqd()
    nsqd.make_channel(topic, "c")
    nsqd.stop()
    writing = in_background(
        write, numbered(spark, 5_000).select("body"), nsqd, topic=topic, retryDelayMax="500ms", retries="200"
    )
    tracker = spark.sparkContext.statusTracker()
    wait_until(lambda: tracker.getActiveStageIds() or writing.done(), "the job to start")
    nsqd.restart()
    writing.result(120)
    assert drain(nsqd, topic, "c") == bodies(5_000)


def test_nsqds_that_stay_down_fail_the_task(spark: SparkSession, start_nsqd: StartNsqd, topic: str) -> None:
    nsqd = start_nsqd()
    nsqd.stop()
    with pytest.raises(PySparkException, match=f"tried 3 times .option retries.: nsqd {nsqd.tcp}: cannot be reached"):
        write(numbered(spark, 10).select("body"), nsqd, topic=topic, retries="2")


def test_an_nsqd_that_stands_still_is_passed_over(spark: SparkSession, start_nsqd: StartNsqd, topic: str) -> None:
    nsqds = [start_nsqd() for _ in range(2)]
    for nsqd in nsqds:
        nsqd.make_channel(topic, "c")
    options = {"topic": topic, "requestTimeout": "1s", "connectTimeout": "2s"}
    write(numbered(spark, 100).select("body"), *nsqds, **options)
    nsqds[0].process.send_signal(signal.SIGSTOP)
    try:
        write(numbered(spark, COUNT).select("body"), *nsqds, **options)
    finally:
        nsqds[0].process.send_signal(signal.SIGCONT)
    assert everything(topic, *nsqds).keys() == bodies(COUNT).keys()


def test_a_slow_nsqd_gets_its_part_once(spark: SparkSession, start_nsqd: StartNsqd, topic: str) -> None:
    """Every answer late, every message a drip; longer than a time-out in all, but never silent for as long."""
    nsqds = [start_nsqd() for _ in range(2)]
    for nsqd in nsqds:
        nsqd.make_channel(topic, "c")
    with closing(Proxy(lambda: Address("127.0.0.1", nsqds[0].ports["TCP"]))) as slow:
        slow.rules = Rules(delay_s=0.02, piece_size=4096)
        rows = numbered(spark, COUNT).select("body")
        write(rows, nsqds[1], topic=topic, requestTimeout="10s", nsqdTcpAddresses=f"{slow.address},{nsqds[1].tcp}")
    counts = [nsqd.message_count(topic) for nsqd in nsqds]
    assert all(counts)
    # No time-out took it for dead, so nothing was sent twice.
    assert everything(topic, *nsqds) == bodies(COUNT)


def test_messages_are_there_when_the_write_returns(spark: SparkSession, start_nsqd: StartNsqd, topic: str) -> None:
    nsqd = start_nsqd()
    write(numbered(spark, COUNT).select("body"), nsqd, topic=topic)
    assert nsqd.message_count(topic) == COUNT
