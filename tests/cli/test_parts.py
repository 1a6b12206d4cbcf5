"""What the commands are made of, without a broker."""

import os
import threading
import time
from argparse import ArgumentTypeError, Namespace
from base64 import b64encode
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.cli import arguments, cluster, pub, stat, topics
from pyspark_nsq.cli.cluster import NOTHING, ChannelCounts, Cluster, TopicCounts, Topics, parse_stats
from pyspark_nsq.cli.main import DONE, FAILED, make_parser
from pyspark_nsq.cli.stat import Sample, _samples, rows
from pyspark_nsq.cli.tables import plain_table
from pyspark_nsq.connector import discovery
from pyspark_nsq.connector.errors import DiscoveryError
from pyspark_nsq.connector.http_json import Question
from pyspark_nsq.connector.options import SinkOptions, parse_sink_options, parse_source_options
from pyspark_nsq.connector.settings import Address, HttpAddress, Secret, Security

SECRET = "hush"
PLACE = HttpAddress(Address("host", 4151))


def split(data: bytes, end: bytes, sizes: int) -> list[bytes]:
    """What comes of the data when it arrives in portions."""
    ours, theirs = os.pipe()
    found: list[bytes] = []
    with os.fdopen(theirs, "wb", buffering=0) as source:
        source.write(data)
    original, pub._READ_SIZE = pub._READ_SIZE, sizes  # type: ignore[misc]
    try:
        for piece in pub.split_stream(ours, end):
            found += piece
    finally:
        pub._READ_SIZE = original  # type: ignore[misc]
        os.close(ours)
    return found


@given(st.binary(max_size=60).map(lambda data: data.replace(b"x", b"\n")), st.sampled_from([b"\n", b"\r\n", b"\0"]))
def test_messages_do_not_depend_on_how_bytes_arrive(data: bytes, end: bytes) -> None:
    whole = split(data, end, 4096)
    assert whole == [body for body in data.split(end) if body]
    assert split(data, end, 1) == whole
    assert split(data, end, 3) == whole


def test_input_without_a_separator_ends_somewhere() -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"x" * 1000)
    os.close(theirs)
    with pytest.raises(OSError, match="no separator"):
        list(pub.split_stream(ours, b"\n", size_max=100))
    os.close(ours)


@given(st.lists(st.binary(min_size=1, max_size=20)), st.integers(1, 5))
def test_batches_are_bounded(bodies: list[bytes], count_max: int) -> None:
    batches = list(pub._batches(bodies, count_max))
    assert [body for batch in batches for body in batch] == bodies
    assert all(1 <= len(batch) <= count_max for batch in batches)


def test_a_batch_has_a_size() -> None:
    half = b"x" * (pub._BATCH_SIZE_MAX // 2)
    assert [len(batch) for batch in pub._batches([half, half, half, half * 3, b"y"], 100)] == [2, 1, 1, 1]


@pytest.mark.parametrize(("rate", "count"), [(10.0, 50), (1000.0, 2000), (3.0, 9)])
def test_the_rate_is_kept(monkeypatch: pytest.MonkeyPatch, rate: float, count: int) -> None:
    """With a clock of its own: publishing takes no time, only sleeping does."""
    now = [100.0]
    published: list[tuple[float, int]] = []

    def publish(_: SinkOptions, bodies: list[bytes], *__: object) -> None:
        published.append((now[0] - 100.0, len(bodies)))

    monkeypatch.setattr(pub, "publish", publish)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    options = parse_sink_options({"topic": "t", "nsqdTcpAddresses": "host:1"})
    pub.publish_all(options, [[b"x"] * count], Namespace(batch=1000, rate=rate, defer=None), pub.Sum())
    sent = 0
    for at_s, size in published:
        assert at_s == pytest.approx(sent / rate)
        sent += size
    assert sent == count


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (arguments.positive, "12", 12),
        (arguments.rate, "0.5", 0.5),
        (arguments.duration_s, "1500ms", 1.5),
        (arguments.duration_ms_of, "2m", 120_000),
        (arguments.separator, r"\n", b"\n"),
        (arguments.separator, r"\0", b"\0"),
        (arguments.separator, "--", b"--"),
    ],
)
def test_arguments(kind: Callable[[str], object], text: str, value: object) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (arguments.positive, "0"),
        (arguments.positive, "-1"),
        (arguments.positive, "1.5"),
        (arguments.rate, "0"),
        (arguments.rate, "nan"),
        (arguments.rate, "quick"),
        (arguments.duration_s, "soon"),
        (arguments.duration_ms_of, "0"),
        (arguments.separator, ""),
    ],
)
def test_arguments_that_mean_nothing(kind: Callable[[str], object], text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        kind(text)


def stats(**changes: object) -> dict[str, object]:
    """An answer of nsqd to /stats with one topic and one channel."""
    names = ("depth", "in_flight_count", "deferred_count", "message_count", "requeue_count", "timeout_count")
    channel = {"channel_name": "c", **dict.fromkeys(names, 1), "client_count": 2, "paused": False} | changes
    return {"topics": [{"topic_name": "t", "depth": 5, "message_count": 9, "paused": False, "channels": [channel]}]}


def test_the_answers_of_nsqds_are_added_up() -> None:
    one, two = parse_stats(PLACE, stats(depth=10)), parse_stats(PLACE, stats(paused=True, channel_name="d"))
    other = HttpAddress(Address("other", 4151))
    total = Cluster({PLACE: one, other: two}, ()).topics["t"]
    assert (total.messages, total.depth, total.nsqds) == (18, 10, 2)
    assert total.channels["c"] == ChannelCounts(1, 10, 1, 1, 1, 1, 2, False)
    assert total.channels["d"].paused
    assert total.channels["c"].unfinished == 12
    assert (total + NOTHING) == total


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {},
        {"topics": 3},
        {"topics": [{}]},
        stats(depth="1"),
        stats(depth=None),
        stats(depth=True),
        DiscoveryError(PLACE, "gone"),
    ],
)
def test_an_answer_of_another_form_is_refused(answer: object) -> None:
    with pytest.raises(DiscoveryError):
        parse_stats(PLACE, answer)


def topic(messages: int, depth: int, *channels: ChannelCounts) -> TopicCounts:
    return TopicCounts(messages, depth, False, 1, {f"c{number}": counts for number, counts in enumerate(channels)})


@pytest.mark.parametrize("form", [[], ["--long"], ["--json"]], ids=" ".join)
def test_topics_are_added_up_once_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    sums: list[Topics] = []

    class Counted(Cluster):
        @property
        def topics(self) -> Topics:
            sums.append(super().topics)
            return sums[-1]

    found = Counted({PLACE: {f"t{number}": topic(1, 1) for number in range(100)}}, ())
    monkeypatch.setattr(topics, "read_cluster", lambda *_: found)
    assert topics.run(make_parser().parse_args(["topics", "-l", "host:4161", *form])) == DONE
    assert "t99" in capsys.readouterr().out
    assert len(sums) == 1


def test_rates_come_from_two_samples() -> None:
    before = Sample(10.0, Cluster({PLACE: {"t": topic(100, 0, ChannelCounts(100, 50, 10))}}, ()))
    after = Sample(12.0, Cluster({PLACE: {"t": topic(300, 0, ChannelCounts(300, 50, 30)), "u": topic(7, 7)}}, ()))
    first, second = rows(after, before, [])
    assert (first.in_rate, first.done_rate) == (100.0, 90.0)
    assert (second.channel, second.depth, second.in_rate) == (None, 7, None)
    assert [row.topic for row in rows(after, before, ["u"])] == ["u"]
    restarted = Sample(14.0, Cluster({PLACE: {"t": topic(1, 0, ChannelCounts(1, 1))}}, ()))
    assert rows(restarted, after, [])[0].in_rate == 0


def test_an_nsqd_that_misses_a_sample_makes_no_rate() -> None:
    other = HttpAddress(Address("other", 4151))
    held = {PLACE: {"t": topic(0, 0, ChannelCounts(1_000_000))}, other: {"t": topic(0, 0, ChannelCounts(40))}}
    more = {"t": topic(0, 0, ChannelCounts(60))}
    whole, partial = Sample(10.0, Cluster(held, ())), Sample(12.0, Cluster({other: more}, ()))
    whole_again = Sample(14.0, Cluster({PLACE: held[PLACE], other: more}, ()))
    assert rows(partial, whole, [])[0].in_rate == 10
    assert rows(whole_again, partial, [])[0].in_rate == 0
    restarted = Sample(12.0, Cluster({PLACE: {"t": topic(0, 0, ChannelCounts(5))}, other: more}, ()))
    assert rows(restarted, whole, [])[0].in_rate == 10


def test_once_seen_the_cluster_may_be_silent_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a lookupd said last still counts, and a live table goes on where it does not answer."""
    node = {"broadcast_address": "host", "tcp_port": 4150, "http_port": 4151, "topics": []}
    gone = DiscoveryError(PLACE, "gone")
    lookupd: list[object] = [{"producers": [node]}, gone, gone]
    nsqd: list[object] = [stats(), stats(), gone]

    def fetch(questions: Iterable[Question], *_: object, **__: object) -> dict[Question, object]:
        return {question: (lookupd if question[1] == "/nodes" else nsqd).pop(0) for question in questions}

    monkeypatch.setattr(discovery, "fetch_all", fetch)
    monkeypatch.setattr(cluster, "fetch_all", fetch)
    options = parse_source_options({"lookupdHttpAddresses": "lookupd:4161", "topic": "t", "channel": "c"}).discovery
    samples = [sample.cluster for sample in _samples(options, 0.001, 3)]
    assert [(len(each.nsqds), len(each.failures)) for each in samples] == [(1, 0), (1, 1), (0, 2)]
    lookupd.append(gone)
    with pytest.raises(DiscoveryError, match="gone"):
        next(_samples(options, 0.001, 1))


@pytest.mark.parametrize(("last", "code"), [((), DONE), ((DiscoveryError(PLACE, "gone"),), FAILED)])
def test_the_last_sample_of_stat_decides(
    monkeypatch: pytest.MonkeyPatch, last: tuple[DiscoveryError, ...], code: int
) -> None:
    """Only its table may be what a script goes by."""
    held = {PLACE: {"t": topic(1, 1)}}
    samples = [Cluster(held, (DiscoveryError(PLACE, "slow"),)), Cluster(held, last)]
    monkeypatch.setattr(stat, "read_cluster", lambda *_: samples.pop(0))
    arguments = make_parser().parse_args(["stat", "-l", "host:4161", "--count", "2", "--every", "1ms"])
    assert stat.run(arguments) == code


def test_columns_are_as_wide_as_they_need_to_be() -> None:
    table = plain_table(("name", "n"), [("a long name", "1"), ("b", "1,000")], names=1)
    assert table == "name             n\na long name      1\nb            1,000"


def test_nsqds_that_demand_the_secret_are_shown_it() -> None:
    """As ours does with ``--http-require-auth``."""
    shown = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"topics":[]}')

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        place = HttpAddress(Address("127.0.0.1", server.server_port))
        found = cluster.read_nsqds([place], 30.0, Security(auth_secret=Secret(SECRET)))
    assert found.nsqds == {place: {}}
    assert shown == [f"Basic {b64encode(f':{SECRET}'.encode()).decode()}"]
