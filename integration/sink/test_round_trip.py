"""Everything that a DataFrame holds arrives in NSQ, once where nothing fails."""

import json
from collections import Counter
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)
from rig.consumer import drain
from rig.daemons import Lookupd, Nsqd, wait_until
from rig.frames import bodies, numbered, write

StartNsqd = Callable[..., Nsqd]
StartLookupd = Callable[..., Lookupd]

MIB = 2**20


def test_each_row_becomes_a_message(spark: SparkSession, shared_nsqd: Nsqd, topic: str) -> None:
    shared_nsqd.make_channel(topic, "c")
    write(numbered(spark, 25_000).select("body"), shared_nsqd, topic=topic)
    assert drain(shared_nsqd, topic, "c") == bodies(25_000)


def test_bytes_arrive_as_they_are(spark: SparkSession, shared_nsqd: Nsqd, topic: str) -> None:
    values = [bytes([number]) for number in range(256)] + [b"\n\x00\xff" * 100, "grün".encode()]
    shared_nsqd.make_channel(topic, "c")
    write(spark.createDataFrame([(bytearray(value),) for value in values], "value BINARY"), shared_nsqd, topic=topic)
    assert drain(shared_nsqd, topic, "c") == Counter(values)


def test_a_column_of_a_thousand_topics(spark: SparkSession, shared_nsqd: Nsqd, topic: str) -> None:
    rows = numbered(spark, 20_000).select("body", F.format_string(f"{topic}-%d", F.col("id") % 1000).alias("topic"))
    write(rows, shared_nsqd)
    counts = {
        entry["topic_name"]: entry["message_count"]
        for entry in shared_nsqd.raw_stats()["topics"]
        if entry["topic_name"].startswith(f"{topic}-")
    }
    assert counts == {f"{topic}-{number}": 20 for number in range(1000)}
    shared_nsqd.make_channel(f"{topic}-7", "c")
    assert drain(shared_nsqd, f"{topic}-7", "c") == Counter({b"message %d" % n: 1 for n in range(7, 20_000, 1000)})


def test_the_option_topic_wins_over_the_column(spark: SparkSession, shared_nsqd: Nsqd, topic: str) -> None:
    write(numbered(spark, 10).select("body", F.lit(f"{topic}-not").alias("topic")), shared_nsqd, topic=topic)
    assert shared_nsqd.message_count(topic) == 10
    assert shared_nsqd.message_count(f"{topic}-not") == 0


def test_some_rows_are_deferred(spark: SparkSession, shared_nsqd: Nsqd, topic: str) -> None:
    shared_nsqd.make_channel(topic, "c")
    delays = F.when(F.col("id") % 2 == 0, F.lit(3_000_000)).when(F.col("id") % 3 == 0, F.lit(None)).otherwise(F.lit(0))
    write(numbered(spark, 6_000).select("body", delays.cast("int").alias("defer_ms")), shared_nsqd, topic=topic)

    def both() -> bool:
        counts = shared_nsqd.channel_stats(topic, "c")
        return counts is not None and (counts.deferred, counts.depth) == (3_000, 3_000)

    wait_until(both, "3,000 deferred messages and 3,000 others")


@pytest.mark.parametrize("size", [MIB - 1, MIB])
def test_large_bodies(spark: SparkSession, shared_nsqd: Nsqd, topic: str, size: int) -> None:
    shared_nsqd.make_channel(topic, "c")
    numbers = spark.range(0, 12, 1, 2).select(F.rpad(F.col("id").cast("string"), size, ".").alias("body"))
    write(numbers, shared_nsqd, topic=topic)
    assert drain(shared_nsqd, topic, "c") == Counter({str(n).encode().ljust(size, b"."): 1 for n in range(12)})


def test_nsqds_are_found_through_lookupd(
    spark: SparkSession, start_lookupd: StartLookupd, start_nsqd: StartNsqd, topic: str
) -> None:
    lookupd = start_lookupd()
    nsqds = [start_nsqd(lookupds=(lookupd,)) for _ in range(2)]
    for nsqd in nsqds:
        nsqd.make_channel(topic, "c")
    wait_until(lambda: len(lookupd.producers(topic)) == 2, "both nsqds at lookupd")
    rows = numbered(spark, 2_000).select("body")
    rows.write.format("nsq").mode("append").options(topic=topic, lookupdHttpAddresses=lookupd.http).save()
    found = [drain(nsqd, topic, "c") for nsqd in nsqds]
    assert found[0] + found[1] == bodies(2_000)
    assert [len(part) for part in found] == [1_000, 1_000]


def test_an_nsqd_that_comes_later_is_used_by_later_writes(
    spark: SparkSession, start_lookupd: StartLookupd, start_nsqd: StartNsqd, topic: str
) -> None:
    lookupd = start_lookupd()
    first = start_nsqd(lookupds=(lookupd,))
    rows = numbered(spark, 2).select("body").write.format("nsq").mode("append")
    rows = rows.options(topic=topic, lookupdHttpAddresses=lookupd.http, lookupdPollInterval="100ms")
    wait_until(lambda: json.loads(lookupd.get("/nodes"))["producers"], "the first nsqd at lookupd")
    rows.save()
    assert first.message_count(topic) == 2
    second = start_nsqd(lookupds=(lookupd,))

    def uses_both() -> bool:
        before = first.message_count(topic), second.message_count(topic)
        rows.save()
        return (first.message_count(topic), second.message_count(topic)) == (before[0] + 1, before[1] + 1)

    wait_until(uses_both, "a write to both nsqds")


def test_the_quorum_gets_a_copy_each(spark: SparkSession, start_nsqd: StartNsqd, topic: str) -> None:
    nsqds = [start_nsqd() for _ in range(3)]
    for nsqd in nsqds:
        nsqd.make_channel(topic, "c")
    write(numbered(spark, 5_000).select("body"), *nsqds, topic=topic, publishQuorum="2")
    copies = sum((drain(nsqd, topic, "c") for nsqd in nsqds), Counter())
    assert copies == bodies(5_000, copies=2)


def test_connections_are_kept_for_the_next_task_and_closed_when_idle(
    spark: SparkSession, start_nsqd: StartNsqd, topic: str
) -> None:
    nsqd = start_nsqd()
    for _ in range(3):
        write(numbered(spark, 100).select("body"), nsqd, topic=topic, connectionIdleTimeout="3s")
    assert 1 <= nsqd.connections() <= 2
    wait_until(lambda: nsqd.connections() == 0, "the end of idle connections")
