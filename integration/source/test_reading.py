"""What a query gets, and what nsqd sees of it: everything once, finished when it is committed, given back at a stop."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryException
from rig.daemons import Daemon, Lookupd, Nsqd, own_brokers, wait_until
from rig.reading import HangingBatch, Reading, numbered, wait_settled

from pyspark_nsq.metrics import NsqMetrics, SourceMetrics

StartReading = Callable[..., Reading]


def test_every_message_comes_once_with_all_columns_and_is_finished_when_idle(
    start_reading: StartReading, nsqd: Nsqd, topic: str
) -> None:
    nsqd.make_channel(topic, "c")
    sizes = [b"x" * size for size in (1, 100, 100_000, 1024 * 1024)]
    published = Counter(numbered(0, 3000) + sizes)
    nsqd.publish(topic, list(published), portion=1000)
    before = time.time()
    reading = start_reading(nsqd, topic=topic)
    reading.wait_for(published)
    # Nothing more comes, and yet the last batch is finished: within a poll, not at the next batch.
    wait_settled(nsqd, topic)
    assert reading.bodies() == published
    row = reading.rows[0]
    assert len(row.id) == 16
    assert int(row.id, 16)
    assert before - 60 < row.timestamp.timestamp() < time.time()
    assert (row.attempts, row.topic, row.nsqd) == (1, topic, nsqd.tcp)
    reading.stop()
    wait_until(lambda: nsqd.connections() == 0, "no connection left")
    assert nsqd.unfinished(topic, "c") == 0
    # A message leaves a channel by its FIN only: where none came back, each had one.
    counts = nsqd.raw_counts(topic, "c")
    assert (counts["message_count"], counts["requeue_count"], counts["timeout_count"]) == (len(published), 0, 0)


def test_messages_are_as_large_as_nsqd_allows(
    start_reading: StartReading, start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    nsqd = start_nsqd("-max-msg-size=8388608", "-max-body-size=9000000")
    nsqd.make_channel(topic, "c")
    published = Counter([b"a" * 8_388_608, b"b" * 3_000_000, b"c"])
    nsqd.publish(topic, list(published), portion=1)
    reading = start_reading(nsqd, topic=topic)
    reading.wait_for(published)
    wait_settled(nsqd, topic)
    assert reading.bodies() == published


def test_a_schema_chooses_columns_and_their_order(start_reading: StartReading, nsqd: Nsqd, topic: str) -> None:
    nsqd.publish(topic, ["größer".encode(), b"\xff no text"])
    schema = "nsqd STRING, attempts INT, body STRING"
    reading = start_reading(nsqd, topic=topic, schema=schema, invalidUtf8="null")
    wait_until(lambda: len(reading.rows) == 2, "two rows")
    wait_settled(nsqd, topic)
    assert sorted(map(tuple, reading.rows), key=str) == [(nsqd.tcp, 1, "größer"), (nsqd.tcp, 1, None)]


def test_progress_shows_backlog_and_counters(
    start_reading: StartReading, spark: SparkSession, nsqd: Nsqd, topic: str
) -> None:
    nsqd.make_channel(topic, "c")
    published = Counter(numbered(0, 500))
    nsqd.publish(topic, list(published))
    metrics = NsqMetrics()
    spark.streams.addListener(metrics)
    reading = start_reading(nsqd, topic=topic, maxInFlight=100, maxMessagesPerTrigger=50)

    def backlog_is_seen() -> bool:
        """With more to read, so that there is a batch to report of."""
        reports = [json.loads(progress.sources[0].latestOffset) for progress in reading.query.recentProgress]
        if any(report["backlog"] >= 100 for report in reports):
            return True
        bodies = numbered(len(published), 10)
        nsqd.publish(topic, bodies)
        published.update(bodies)
        return False

    wait_until(backlog_is_seen, "a report of a backlog")
    reading.wait_for(published)
    wait_settled(nsqd, topic)
    assert max(map(len, reading.batches.values())) <= 50

    more = Counter[bytes]()

    def finished() -> SourceMetrics | None:
        """With a batch after it: Spark reports of batches, and an idle query says nothing new."""
        body = b"one more, %d" % len(more)
        nsqd.publish(topic, [body])
        more[body] += 1
        reading.wait_for(more)
        wait_settled(nsqd, topic)
        (newest,) = wait_until(metrics.latest, "metrics")
        return newest if newest.totals["finished"] >= len(published) and not newest.backlog else None

    found = wait_until(finished, "the FINs of all but the last batches")
    # A batch that takes long is touched.
    counts = {name: count for name, count in found.totals.items() if count and name != "touched"}
    assert counts.keys() == {"received", "emitted", "finished"}
    assert all(len(published) <= count <= len(published) + len(more) for count in counts.values())
    assert found.nsqds == {nsqd.tcp: found.totals}
    assert (found.query_id, found.source, found.lost) == (reading.query.id, 0, 0)
    labels = f'{{query="{reading.query.id}",source="0",nsqd="{nsqd.tcp}"}}'
    assert f"pyspark_nsq_finished_total{labels} " in metrics.prometheus()
    reading.stop()
    wait_until(lambda: not metrics.latest(), "a query that is forgotten")
    spark.streams.removeListener(metrics)


def test_a_batch_that_is_read_twice_is_the_same_twice(start_reading: StartReading, nsqd: Nsqd, topic: str) -> None:
    nsqd.make_channel(topic, "c")
    published = Counter(numbered(0, 2000))
    seen = []

    def read_again(rows: DataFrame, batch: int) -> None:
        seen.append((rows.count(), [row.id for row in rows.unionAll(rows).collect()]))

    nsqd.publish(topic, list(published))
    reading = start_reading(nsqd, topic=topic, before_batch=read_again, numPartitions=3)
    reading.wait_for(published)
    wait_settled(nsqd, topic)
    for (count, twice), rows in zip(seen, (reading.batches[batch] for batch in sorted(reading.batches)), strict=True):
        ids = [row.id for row in rows]
        assert count == len(ids)
        assert twice == ids + ids


def test_a_slow_batch_is_touched(start_reading: StartReading, start_nsqd: Callable[..., Nsqd], topic: str) -> None:
    nsqd = start_nsqd("-msg-timeout=2s")
    nsqd.make_channel(topic, "c")
    published = Counter(numbered(0, 100))
    nsqd.publish(topic, list(published))

    def dawdle(_rows: DataFrame, batch: int) -> None:
        if batch == 0:
            time.sleep(6)

    reading = start_reading(nsqd, topic=topic, before_batch=dawdle)
    reading.wait_for(published)
    wait_settled(nsqd, topic)
    assert reading.bodies() == published
    assert {row.attempts for row in reading.rows} == {1}


@pytest.mark.leaves_messages
def test_a_stop_in_the_middle_of_a_batch_gives_everything_back_at_once(
    start_reading: StartReading, nsqd: Nsqd, topic: str
) -> None:
    nsqd.make_channel(topic, "c")
    nsqd.publish(topic, numbered(0, 300))
    hanging = HangingBatch()
    reading = start_reading(nsqd, topic=topic, before_batch=hanging)
    hanging.wait_begun()
    reading.find_receivers()
    reading.stop()

    def all_back() -> bool:
        stats = nsqd.channel_stats(topic, "c")
        return stats is not None and (stats.depth, stats.in_flight, stats.client_count) == (300, 0, 0)

    # Far below the message's time-out of a minute.
    wait_until(all_back, "everything back in the channel", 20)


@pytest.mark.leaves_messages
def test_a_stop_between_two_triggers_gives_the_last_batch_back_although_it_is_committed(
    start_reading: StartReading, daemons: list[Daemon], tmp_path: Path, checkpoint: Path, topic: str
) -> None:
    """With a trigger of processing time the source learns of a commit only at the next trigger."""
    # It is Spark's doing: one make of nsqd is enough.
    nsqd = Nsqd(own_brokers(), tmp_path / "nsqd")
    daemons.append(nsqd)
    nsqd.make_channel(topic, "c")
    published = Counter(numbered(0, 50))
    nsqd.publish(topic, list(published))
    reading = start_reading(nsqd, topic=topic, trigger={"processingTime": "15 seconds"})
    reading.wait_for(published)
    last = max(reading.batches)
    wait_until((checkpoint / "commits" / str(last)).exists, "a committed batch")
    reading.stop()
    wait_until(lambda: nsqd.connections() == 0, "no connection left")
    assert nsqd.unfinished(topic, "c") == len(reading.batches[last])


def test_trigger_once_is_refused(start_reading: StartReading, nsqd: Nsqd, topic: str) -> None:
    reading = start_reading(nsqd, topic=topic, trigger={"once": True})
    with pytest.raises(StreamingQueryException, match=r"Trigger\.Once is not supported"):
        reading.query.awaitTermination(60)


def test_options_are_checked_when_the_source_is_loaded(spark: SparkSession) -> None:
    reader = spark.readStream.format("nsq").option("topic", "t").option("nsqdTcpAddresses", "127.0.0.1:4150")
    with pytest.raises(Exception, match="option channel: it is not set"):
        reader.load()
    with pytest.raises(Exception, match="option path: the source has none, did you mean option topic"):
        spark.readStream.format("nsq").option("channel", "c").load("events")
    with pytest.raises(Exception, match="did you mean maxInFlight"):
        reader.option("channel", "c").option("maxInFlihgt", "3").load()


def test_with_a_schema_options_are_checked_when_the_query_starts(spark: SparkSession) -> None:
    """Spark makes no source at load() then: it asks for nothing but the schema, which it has."""
    reader = spark.readStream.format("nsq").option("topic", "t").option("nsqdTcpAddresses", "127.0.0.1:4150")
    rows = reader.option("channel", "c").option("maxInFlight", "0").schema("body BINARY").load()
    query = rows.writeStream.format("noop").start()
    with pytest.raises(StreamingQueryException, match="option maxInFlight: '0' is not a whole number"):
        query.awaitTermination(60)


def test_nsqds_and_topics_are_followed_as_they_come(
    start_reading: StartReading, start_nsqd: Callable[..., Nsqd], start_lookupd: Callable[..., object], topic: str
) -> None:
    lookupd = start_lookupd()
    first = start_nsqd(lookupds=(lookupd,))
    first.make_channel(topic, "c")
    reading = start_reading(
        topicPattern=f"{topic}.*",
        lookupdHttpAddresses=lookupd.http,  # type: ignore[attr-defined]
        lookupdPollInterval="200ms",
    )
    published = Counter(numbered(0, 100))
    first.publish(topic, list(published))
    reading.wait_for(published)
    second = start_nsqd(lookupds=(lookupd,))
    more = Counter(numbered(100, 100))
    second.publish(f"{topic}-late", list(more))
    reading.wait_for(published + more)
    wait_settled(first, topic)
    wait_settled(second, f"{topic}-late")
    assert reading.bodies() == published + more


def test_a_topic_that_does_not_exist_yet_is_found_when_it_does(
    start_reading: StartReading, start_nsqd: Callable[..., Nsqd], start_lookupd: Callable[..., Lookupd], topic: str
) -> None:
    lookupd = start_lookupd()
    nsqd = start_nsqd(lookupds=(lookupd,))
    reading = start_reading(topic=topic, lookupdHttpAddresses=lookupd.http, lookupdPollInterval="200ms")
    reading.find_receivers()
    # Looking for it does not make it.
    assert nsqd.raw_stats()["topics"] == []
    published = Counter(numbered(0, 100))
    nsqd.publish(topic, list(published))
    reading.wait_for(published)
    wait_settled(nsqd, topic)
    assert reading.bodies() == published


def test_a_thousand_topics_are_read_by_a_pattern(
    start_reading: StartReading, start_nsqd: Callable[..., Nsqd], start_lookupd: Callable[..., object], topic: str
) -> None:
    lookupd = start_lookupd()
    nsqd = start_nsqd(lookupds=(lookupd,))
    topics = [f"{topic}-{number}" for number in range(1000)]
    for name in topics:
        nsqd.publish(name, [name.encode()])
    reading = start_reading(
        topicPattern=rf"{topic}-\d+",
        lookupdHttpAddresses=lookupd.http,  # type: ignore[attr-defined]
        lookupdPollInterval="500ms",
    )
    published = Counter(name.encode() for name in topics)
    # A thousand handshakes take a busy machine a minute and more.
    reading.wait_for(published, 200)
    assert {(row.topic, bytes(row.body).decode()) for row in reading.rows} == {(name, name) for name in topics}
    wait_until(lambda: nsqd.unfinished_everywhere() == 0, "empty channels")


def test_another_topic_channel_and_partitions_on_the_same_checkpoint(
    start_reading: StartReading, nsqd: Nsqd, topic: str
) -> None:
    nsqd.make_channel(topic, "c")
    nsqd.make_channel(f"{topic}-2", "other")
    first, second = Counter(numbered(0, 300)), Counter(numbered(300, 300))
    nsqd.publish(topic, list(first))
    before = start_reading(nsqd, topic=topic, numPartitions=3, receivers=2)
    before.wait_for(first)
    wait_settled(nsqd, topic)
    before.stop()
    nsqd.publish(f"{topic}-2", list(second))
    after = start_reading(nsqd, topic=f"{topic}-2", channel="other", numPartitions=1)
    after.wait_for(second)
    wait_until(lambda: nsqd.unfinished(f"{topic}-2", "other") == 0, "an empty channel")
    assert before.bodies() == first
    assert after.bodies() == second
    # It went on, it did not begin again.
    assert min(after.batches) > max(before.batches)


def test_several_receivers_share_the_work(start_reading: StartReading, nsqd: Nsqd, topic: str) -> None:
    nsqd.make_channel(topic, "c")
    published = Counter(numbered(0, 600))
    # Less than half of it: neither of them can have all.
    reading = start_reading(nsqd, topic=topic, receivers=2, numPartitions=4, maxInFlight=200)
    receivers = wait_until(lambda: len(reading.find_receivers()) == 2 and reading.receivers, "two receivers")
    nsqd.publish(topic, list(published))
    reading.wait_for(published)
    wait_settled(nsqd, topic)
    assert reading.bodies() == published
    clients = {each["remote_address"]: each["message_count"] for each in nsqd.raw_counts(topic, "c")["clients"]}
    for receiver in receivers:
        own = {f"{each.laddr.ip}:{each.laddr.port}" for each in receiver.net_connections("tcp")}
        assert sum(count for address, count in clients.items() if address in own) > 0
