"""What a task tells the driver about what it has published, and what the log says of a batch."""

import logging
import pickle
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructType
from scripted_nsqd import Peer, ScriptedNsqd

from pyspark_nsq.connector.errors import OptionError
from pyspark_nsq.connector.producer import Producer
from pyspark_nsq.connector.publishing import PublishError, Request
from pyspark_nsq.connector.sink import NsqCommitMessage, batch_writer, refuse_batch_read, stream_writer, summary
from pyspark_nsq.connector.sink_columns import InvalidRowError

StartPeer = Callable[..., ScriptedNsqd]
BODY = StructType().add("body", BinaryType())
BODY_AND_TOPIC = StructType().add("body", BinaryType()).add("topic", StringType())
TWO_TOPICS = [(b"1", "a"), (b"2", "b"), (b"", "a"), (b"3", "a"), (None, "b")]


def answer_all(peer: Peer) -> None:
    peer.identify()
    while True:
        peer.read_mpub()
        peer.answer()


def write(rows: list[tuple[bytes | None, str]], *peers: ScriptedNsqd, **texts: str) -> NsqCommitMessage:
    """What a task answers that publishes these bodies to the topics beside them."""
    options = {"nsqdTcpAddresses": ",".join(str(peer.address) for peer in peers), "onInvalid": "skip"} | texts
    writer = stream_writer(options, BODY_AND_TOPIC, overwrite=False)
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    return writer.write(iter([pa.record_batch(columns, ["body", "topic"])]))


def test_a_task_counts_by_topic_and_nsqd_and_why_rows_were_invalid(start_peer: StartPeer) -> None:
    peer = start_peer(answer_all)
    told = write(TWO_TOPICS, peer)
    assert told.published == {("a", str(peer.address)): 2, ("b", str(peer.address)): 1}
    assert told.invalid == {"the body is empty": 1, "the body is null": 1}
    assert told.resent == 0
    assert pickle.loads(pickle.dumps(told)) == told


def test_with_a_quorum_each_copy_is_counted_where_it_is(start_peer: StartPeer) -> None:
    peers = [start_peer(answer_all) for _ in range(2)]
    told = write(TWO_TOPICS, *peers, topic="all", publishQuorum="2")
    assert told.published == {("all", str(peer.address)): 3 for peer in peers}


def test_with_an_invalid_row_nothing_of_its_batch_goes_out(start_peer: StartPeer) -> None:
    peer = start_peer(answer_all)
    with pytest.raises(InvalidRowError, match="2 of 5 rows cannot be published"):
        write(TWO_TOPICS, peer, onInvalid="fail")
    assert peer.connection_count == 0


class Command(NamedTuple):
    """What an nsqd got: the bytes behind the command's line, and how many messages they hold."""

    word: str
    size: int
    message_count: int


def record(commands: list[Command]) -> Callable[[Peer], None]:
    def answer_all(peer: Peer) -> None:
        peer.identify()
        while True:
            line, body = peer.read_mpub()
            word = line.partition(" ")[0]
            commands.append(Command(word, len(body), int.from_bytes(body[:4], "big") if word == "MPUB" else 1))
            peer.answer()

    return answer_all


def publish_sizes(peer: ScriptedNsqd, sizes: list[int], defer_ms: int | None = None, **texts: str) -> None:
    """Publish bodies of these sizes to topic t."""
    schema, columns = StructType().add("body", BinaryType()), [pa.array([b"x" * size for size in sizes])]
    if defer_ms is not None:
        schema, columns = schema.add("defer_ms", LongType()), [*columns, pa.array([defer_ms] * len(sizes))]
    options = {"nsqdTcpAddresses": str(peer.address), "topic": "t", "retryDelay": "1ms"} | texts
    writer = batch_writer(options, schema, overwrite=False)
    writer.write(iter([pa.record_batch(columns, schema.names)]))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({}, [(6, 4 + 4 * 9 + 2 * 34)]),
        ({"batchMessages": "2"}, [(2, 22), (2, 22), (2, 72)]),
        ({"batchBytes": "64"}, [(4, 40), (1, 38), (1, 38)]),
        ({"batchMessages": "3", "batchBytes": "64"}, [(3, 31), (2, 47), (1, 38)]),
        ({"maxBodySize": "73", "maxMsgSize": "40"}, [(4, 40), (2, 72)]),
        ({"maxBodySize": "71", "maxMsgSize": "40"}, [(4, 40), (1, 38), (1, 38)]),
    ],
)
def test_no_command_is_larger_than_the_options_allow(
    start_peer: StartPeer, texts: dict[str, str], expected: list[tuple[int, int]]
) -> None:
    commands: list[Command] = []
    publish_sizes(start_peer(record(commands)), [5, 5, 5, 5, 30, 30], **texts)
    assert commands == [("MPUB", size, count) for count, size in expected]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({}, [6]),
        ({"batchMessages": "3"}, [3, 3]),
        ({"batchBytes": "64"}, [3, 1, 1, 1]),
        ({"maxBodySize": "64", "maxMsgSize": "40"}, [3, 1, 1, 1]),
    ],
)
def test_no_more_deferred_rows_go_together_than_the_options_allow(
    start_peer: StartPeer, texts: dict[str, str], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they are outstanding: each is a command with an answer of its own."""
    runs: list[Request] = []
    publish = Producer.publish

    def note(producer: Producer, request: Request) -> None:
        runs.append(request)
        publish(producer, request)

    monkeypatch.setattr(Producer, "publish", note)
    commands: list[Command] = []
    publish_sizes(start_peer(record(commands)), [5, 5, 5, 30, 30, 30], defer_ms=7, **texts)
    assert [run.message_count for run in runs] == [run.answer_count for run in runs] == expected
    assert commands == [("DPUB", size, 1) for size in (5, 5, 5, 30, 30, 30)]


def test_the_longest_delay_is_the_option_s(start_peer: StartPeer) -> None:
    commands: list[Command] = []
    peer = start_peer(record(commands))
    publish_sizes(peer, [5], defer_ms=2000, maxReqTimeout="2s")
    with pytest.raises(InvalidRowError, match="its defer_ms is 2000, maxReqTimeout 1999"):
        publish_sizes(peer, [5], defer_ms=2000, maxReqTimeout="1999ms")
    assert len(commands) == 1


@pytest.mark.parametrize("retries", [0, 3])
def test_retries_are_as_many_as_the_option_says(start_peer: StartPeer, retries: int) -> None:
    peer = start_peer(lambda _: None)
    with pytest.raises(PublishError, match=f"tried {retries + 1} times"):
        publish_sizes(peer, [5], retries=str(retries))
    assert peer.connection_count == retries + 1


def test_an_answer_is_waited_for_as_long_as_the_option_says(start_peer: StartPeer) -> None:
    def never_answer(peer: Peer) -> None:
        peer.identify()
        peer.read(1000)

    with pytest.raises(PublishError, match=r"no answer within 0.05 s \(option requestTimeout\)"):
        publish_sizes(start_peer(never_answer), [5], requestTimeout="50ms", retries="0")


MESSAGES = [
    NsqCommitMessage({("a", "h:1"): 3, ("b", "h:1"): 1}, 2, {"the body is null": 4}),
    None,
    NsqCommitMessage({("a", "h:2"): 5}, 0, {"the body is null": 1, "the body is empty": 7}),
]


def test_the_summary_adds_up_what_tasks_have_published() -> None:
    assert summary(MESSAGES) == (
        "published 9 messages to 2 topics (a 8, b 1) on 2 nsqds (h:2 5, h:1 4); sent 2 of them again after a failure, "
        "which may be there twice; invalid: 7 rows as the body is empty, 5 rows as the body is null"
    )


def test_the_summary_of_many_topics_stays_a_line() -> None:
    many = NsqCommitMessage({(f"topic-{number}", "h:1"): number + 1 for number in range(1000)})
    assert summary([many]) == (
        "published 500500 messages to 1000 topics (topic-999 1000, topic-998 999, topic-997 998, topic-996 997, "
        "topic-995 996 and 995 more) on 1 nsqds (h:1 500500)"
    )
    assert summary([]) == "published 0 messages to 0 topics on 0 nsqds"


def test_a_batch_has_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    options = {"topic": "t", "nsqdTcpAddresses": "h:1"}
    stream, batch = stream_writer(options, BODY, overwrite=False), batch_writer(options, BODY, overwrite=False)
    with caplog.at_level(logging.INFO, "pyspark_nsq"):
        stream.commit(MESSAGES, 7)
        stream.abort(MESSAGES, 8)
        batch.commit(MESSAGES)
        batch.abort(MESSAGES)
    text = summary(MESSAGES)
    assert caplog.messages == [
        f"batch 7: {text}",
        f"batch 8 failed; {text}: these stay, and come again with the next try",
        f"write: {text}",
        f"write failed; {text}: these stay, and come again with the next try",
    ]
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO", "WARNING"]


def test_what_travels_to_the_tasks_can_be_pickled_and_shows_no_secret() -> None:
    options = {"topic": "t", "nsqdTcpAddresses": "h:1", "authSecret": "open sesame"}
    writer = stream_writer(options, BODY, overwrite=False)
    assert vars(pickle.loads(pickle.dumps(writer))) == vars(writer)
    assert "sesame" not in repr(vars(writer))


def test_what_was_published_cannot_be_overwritten() -> None:
    with pytest.raises(OptionError, match="mode overwrite"):
        batch_writer({"topic": "t", "nsqdTcpAddresses": "h:1"}, BODY, overwrite=True)


def test_the_code_shown_instead_of_a_batch_read_is_python() -> None:
    with pytest.raises(OptionError) as caught:
        refuse_batch_read()
    _, _, code = str(caught.value).partition("\n\n")
    compile(code.replace("\n    ", "\n").strip(), "shown", "eval")
    assert "availableNow=True" in code


def test_options_and_columns_are_checked_when_the_writer_is_made() -> None:
    schema = StructType().add("body", BinaryType()).add("id", LongType())
    with pytest.raises(OptionError, match="column id: the sink takes body, value, topic, defer_ms"):
        stream_writer({"topic": "t", "nsqdTcpAddresses": "h:1"}, schema, overwrite=False)
    with pytest.raises(OptionError, match="option topc is unknown to the sink: did you mean topic"):
        stream_writer({"topc": "t", "nsqdTcpAddresses": "h:1"}, schema, overwrite=False)
