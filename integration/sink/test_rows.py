"""Columns and rows that NSQ cannot take."""

import json
from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from rig.consumer import drain
from rig.daemons import Nsqd
from rig.frames import numbered, write


def mixed(spark: SparkSession, topic: str) -> DataFrame:
    """Five good rows and one of each kind of bad ones, two with bad names, in one partition."""
    good = [(f"good {number}", topic, 0) for number in range(5)]
    bad = [
        (None, topic, 0),
        ("", topic, 0),
        ("x" * 2001, topic, 0),
        ("b", "bad name", 0),
        ("c", None, 0),
        ("d", topic, -1),
    ]
    rows = spark.createDataFrame(good + bad, "body STRING, topic STRING, defer_ms INT")
    return rows.union(spark.sql("SELECT 'e', CAST(x'74ff' AS STRING), 0")).coalesce(1)


def test_an_invalid_row_fails_the_task_before_anything_is_published(
    spark: SparkSession, shared_nsqd: Nsqd, topic: str
) -> None:
    with pytest.raises(PySparkException, match=r"7 of 12 rows cannot be published. The first: the body is null"):
        write(mixed(spark, topic), shared_nsqd, maxMsgSize="2000")
    assert shared_nsqd.message_count(topic) == 0


def test_invalid_rows_can_be_skipped(spark: SparkSession, shared_nsqd: Nsqd, topic: str) -> None:
    shared_nsqd.make_channel(topic, "c")
    write(mixed(spark, topic), shared_nsqd, maxMsgSize="2000", onInvalid="skip")
    assert drain(shared_nsqd, topic, "c") == {b"good %d" % number: 1 for number in range(5)}


def test_invalid_rows_can_be_kept_aside(spark: SparkSession, shared_nsqd: Nsqd, topic: str) -> None:
    shared_nsqd.make_channel(topic, "c")
    shared_nsqd.make_channel(f"{topic}-dead", "c")
    aside = {"onInvalid": "deadLetterTopic", "deadLetterTopic": f"{topic}-dead"}
    write(mixed(spark, topic), shared_nsqd, maxMsgSize="2000", **aside)
    assert drain(shared_nsqd, topic, "c") == {b"good %d" % number: 1 for number in range(5)}
    letters = [json.loads(letter) for letter in drain(shared_nsqd, f"{topic}-dead", "c")]
    assert {letter["topic"] for letter in letters} == {topic, None, "bad name", r"t\xff"}
    assert {letter["reason"] for letter in letters} == {
        "the body is null",
        "the body is empty",
        "the body is larger than option maxMsgSize",
        "the topic's name is not valid",
        "the topic is null",
        "defer_ms is not in 0..maxReqTimeout",
    }


def test_a_limit_that_nsqd_does_not_share_is_explained(
    spark: SparkSession, start_nsqd: Callable[..., Nsqd], topic: str
) -> None:
    nsqd = start_nsqd("-max-msg-size=100")
    rows = spark.createDataFrame([("x" * 101,)], "body STRING")
    with pytest.raises(PySparkException, match=r"E_BAD_MESSAGE.*Options maxMsgSize, .*must not exceed"):
        write(rows, nsqd, topic=topic)


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (["body", "id"], {"topic": "t"}, "column id: the sink takes body, value, topic, defer_ms"),
        (["id"], {"topic": "t", "ignoreUnknownColumns": "true"}, "columns body and value: neither is there"),
        (["body"], {"topic": "t", "topc": "t"}, "option topc is unknown to the sink: did you mean topic"),
        (["body"], {"topic": "t", "authSecretFile": "/nowhere"}, "option authSecretFile: '/nowhere' cannot be read"),
    ],
)
def test_what_is_wrong_is_told_before_a_task_runs(
    spark: SparkSession, shared_nsqd: Nsqd, columns: list[str], options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        write(numbered(spark, 1).select(*columns), shared_nsqd, **options)
    assert words in str(caught.value)
    assert "Failed to initialize Python data source writer" in str(caught.value)


def test_unknown_columns_can_be_ignored(spark: SparkSession, shared_nsqd: Nsqd, topic: str) -> None:
    write(numbered(spark, 10), shared_nsqd, topic=topic, ignoreUnknownColumns="true")
    assert shared_nsqd.message_count(topic) == 10


def test_what_was_published_cannot_be_overwritten(spark: SparkSession, shared_nsqd: Nsqd) -> None:
    writer = numbered(spark, 1).select("body").write.format("nsq").mode("overwrite")
    with pytest.raises(PySparkException, match="mode overwrite"):
        writer.options(topic="t", nsqdTcpAddresses=shared_nsqd.tcp).save()


def test_a_batch_read_is_refused_with_the_code_that_works(spark: SparkSession, shared_nsqd: Nsqd, topic: str) -> None:
    reader = spark.read.format("nsq").options(topic=topic, channel="c", nsqdTcpAddresses=shared_nsqd.tcp)
    with pytest.raises(PySparkException, match=r"writeStream\.trigger\(availableNow=True\)"):
        reader.load().count()


@pytest.mark.parametrize(
    "options", [{}, {"topic": "t", "nsqdTcpAddresses": "h:1"}, {"startingOffsets": "earliest"}], ids=str
)
def test_a_batch_read_is_refused_before_its_options_are_complete(spark: SparkSession, options: dict[str, str]) -> None:
    with pytest.raises(
        PySparkException, match=r"spark\.read cannot read NSQ.*readStream.*trigger\(availableNow=True\)"
    ):
        spark.read.format("nsq").options(**options).load()
