"""Things that die under a query: nothing is lost, and what may come twice is known."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame
from rig.consumer import drain
from rig.daemons import Nsqd, wait_until
from rig.processes import is_alive
from rig.reading import PLANNER, HangingBatch, Reading, numbered, processes, wait_settled

if TYPE_CHECKING:
    import psutil

StartReading = Callable[..., Reading]


def test_a_batch_that_failed_yields_nothing_after_a_restart_and_its_messages_come_again(
    start_reading: StartReading, nsqd: Nsqd, topic: str
) -> None:
    nsqd.make_channel(topic, "c")
    published = Counter(numbered(0, 300))
    nsqd.publish(topic, list(published))

    def fail(rows: DataFrame, batch: int) -> None:
        assert rows.count() > 0
        raise RuntimeError(f"the sink failed in batch {batch}")

    failing = start_reading(nsqd, topic=topic, before_batch=fail)
    wait_until(failing.query.exception, "the failure")
    failing.find_receivers() if processes("connector.receiver") else None
    # Other messages than before must not take the place of those that batch 0 had.
    more = Counter(numbered(300, 50))
    nsqd.publish(topic, list(more))
    reading = start_reading(nsqd, topic=topic)
    reading.wait_for(published + more)
    wait_settled(nsqd, topic)
    assert reading.batches[0] == []
    assert reading.bodies() == published + more


def test_a_receiver_that_is_killed_is_replaced_and_nothing_is_lost(
    start_reading: StartReading, start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    nsqd = start_nsqd("-msg-timeout=3s")
    nsqd.make_channel(topic, "c")
    first, second = Counter(numbered(0, 500)), Counter(numbered(500, 500))
    killed: list[psutil.Process] = []

    def kill_receiver(_rows: DataFrame, batch: int) -> None:
        # Planned with the receiver, and read without it.
        if first.keys() & reading.bodies().keys() or killed:
            return
        for receiver in processes("connector.receiver"):
            killed.append(receiver)
            receiver.kill()

    nsqd.publish(topic, list(first))
    reading = start_reading(nsqd, topic=topic, before_batch=kill_receiver)
    wait_until(lambda: killed, "a killed receiver")
    nsqd.publish(topic, list(second))
    reading.wait_for(first + second)
    wait_settled(nsqd, topic)
    assert reading.batches[0] == []
    assert reading.bodies() == first + second
    assert not is_alive(killed[0])


@pytest.mark.leaves_messages
def test_the_death_of_the_planner_ends_its_receivers_and_gives_everything_back(
    start_reading: StartReading, nsqd: Nsqd, topic: str
) -> None:
    nsqd.make_channel(topic, "c")
    nsqd.publish(topic, numbered(0, 200))
    hanging = HangingBatch()
    reading = start_reading(nsqd, topic=topic, before_batch=hanging)
    hanging.wait_begun()
    receivers = reading.find_receivers()
    for planner in processes(PLANNER):
        os.kill(planner.pid, signal.SIGKILL)
    wait_until(lambda: not any(receiver.is_running() for receiver in receivers), "the receivers' end")

    def all_back() -> bool:
        stats = nsqd.channel_stats(topic, "c")
        return stats is not None and (stats.depth, stats.in_flight) == (200, 0)

    wait_until(all_back, "everything back in the channel")


@pytest.mark.parametrize("is_kill", [False, True], ids=["stopped", "killed"])
def test_an_nsqd_that_is_started_again_is_found_again(
    start_reading: StartReading, start_nsqd: Callable[..., Nsqd], topic: str, is_kill: bool
) -> None:
    # Nothing in memory, so that neither make loses anything when it is killed.
    nsqd = start_nsqd("-mem-queue-size=0", "-sync-every=1")
    nsqd.make_channel(topic, "c")
    first, second = Counter(numbered(0, 200)), Counter(numbered(200, 200))
    nsqd.publish(topic, list(first))
    reading = start_reading(nsqd, topic=topic)
    reading.wait_for(first)
    wait_settled(nsqd, topic)
    nsqd.kill() if is_kill else nsqd.stop()
    nsqd.restart()
    nsqd.publish(topic, list(second))
    reading.wait_for(first + second)
    wait_settled(nsqd, topic)
    # One that crashed may deliver again what it had forgotten to be finished: that is recognised.
    assert reading.bodies() == first + second


def test_several_receivers_emit_once_what_comes_again_after_a_restart_of_nsqd(
    start_reading: StartReading, start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    nsqd = start_nsqd()
    nsqd.make_channel(topic, "c")
    first, second = Counter(numbered(0, 2000)), Counter(numbered(2000, 500))
    nsqd.publish(topic, list(first))
    restarted: list[int] = []

    def restart(rows: DataFrame, batch: int) -> None:
        # The batch is being worked on while its messages come again, to whichever receiver is quicker.
        if rows.count() and not restarted:
            restarted.append(batch)
            nsqd.stop()
            nsqd.restart()
            nsqd.publish(topic, list(second))
            wait_until(lambda: nsqd.channel_stats(topic, "c").depth == 0, "all messages delivered again")  # type: ignore[union-attr]

    reading = start_reading(nsqd, topic=topic, receivers=2, before_batch=restart, retryDelayMax="500ms")
    reading.wait_for(first + second)
    wait_settled(nsqd, topic)
    assert restarted
    assert reading.bodies() == first + second


def test_an_nsqd_that_appears_later_is_waited_for(
    start_reading: StartReading, start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    nsqd = start_nsqd()
    nsqd.make_channel(topic, "c")
    nsqd.stop()
    reading = start_reading(nsqd, topic=topic, retryDelayMax="500ms")
    receivers = reading.find_receivers()
    time.sleep(2)
    reading.check()
    nsqd.restart()
    published = Counter(numbered(0, 10))
    nsqd.publish(topic, list(published))
    reading.wait_for(published)
    wait_settled(nsqd, topic)
    assert processes("connector.receiver") == receivers


def test_poison_ends_in_the_dead_letter_topic(
    start_reading: StartReading, start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    # No time-out of nsqd's here: each delivery but the last is to make the query fail.
    nsqd = start_nsqd()
    nsqd.make_channel(topic, "c")
    nsqd.make_channel(f"{topic}-dead", "look")
    nsqd.publish(topic, [b"poison"])
    failures: list[int] = []

    def fail_on_poison(rows: DataFrame, batch: int) -> None:
        if any(bytes(row.body) == b"poison" for row in rows.collect()):
            failures.append(batch)
            raise RuntimeError("cannot stand this message")

    def restart() -> bool:
        if len(failures) < 2 and (not readings or readings[-1].query.exception()):
            readings.append(
                start_reading(
                    nsqd, topic=topic, maxAttempts=2, deadLetterTopic=f"{topic}-dead", before_batch=fail_on_poison
                )
            )
        return len(failures) >= 2

    readings: list[Reading] = []
    wait_until(restart, "two failures", 120)
    healthy = start_reading(
        nsqd, topic=topic, maxAttempts=2, deadLetterTopic=f"{topic}-dead", before_batch=fail_on_poison
    )
    good = Counter(numbered(0, 3))
    nsqd.publish(topic, list(good))
    healthy.wait_for(good)
    wait_until(lambda: nsqd.unfinished(f"{topic}-dead", "look") == 1, "the poison in the dead letter topic")
    assert drain(nsqd, f"{topic}-dead", "look") == Counter([b"poison"])
    wait_settled(nsqd, topic)
    assert healthy.bodies() == good


@pytest.mark.timeout(280)
def test_a_cluster_of_two_executors(nsqd: Nsqd, topic: str, tmp_path: Path) -> None:
    """Executors are processes of their own, and a killed one's tasks are tried again elsewhere."""
    nsqd.make_channel(topic, "c")
    nsqd.publish(topic, numbered(0, 4000))
    script = Path(__file__).with_name("cluster_query.py")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, str(script), nsqd.tcp, nsqd.http, topic, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(script.parents[1]), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[:4000]
    assert sorted((tmp_path / "bodies").read_text().splitlines()) == sorted(f"message {n}" for n in range(4000))
    wait_settled(nsqd, topic)
    wait_until(lambda: nsqd.connections() == 0, "no connection left")
    # Each had its one FIN: nothing else takes a message out of a channel, and none came back.
    counts = nsqd.raw_counts(topic, "c")
    assert (counts["message_count"], counts["requeue_count"], counts["timeout_count"]) == (4000, 0, 0)
    assert not list(temporary.iterdir())
