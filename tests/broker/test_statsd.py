"""Names, growth of counters, and packets of the statsd reports."""

import socket

import pytest
from gevent import GreenletExit

from pyspark_nsq.broker import statsd_push
from pyspark_nsq.broker.logs import Logger
from pyspark_nsq.broker.stats import ChannelStats, LatencyStats, TopicStats, memory_stats
from pyspark_nsq.broker.statsd import StatsdReport, key_prefix, packets

NO_LATENCY: LatencyStats = {"count": 0, "percentiles": None}


def channel(name: str = "c", **fields: object) -> ChannelStats:
    return {  # type: ignore[return-value]
        "channel_name": name, "depth": 3, "backend_depth": 2, "in_flight_count": 4, "deferred_count": 5,
        "message_count": 10, "requeue_count": 6, "timeout_count": 7, "client_count": 8, "clients": None,
        "paused": False, "e2e_processing_latency": NO_LATENCY,
    } | fields  # fmt: skip


def topic(name: str = "t", *channels: ChannelStats, **fields: object) -> TopicStats:
    return {  # type: ignore[return-value]
        "topic_name": name, "channels": list(channels), "depth": 1, "backend_depth": 0, "message_count": 20,
        "message_bytes": 200, "paused": False, "e2e_processing_latency": NO_LATENCY,
    } | fields  # fmt: skip


@pytest.mark.parametrize(
    ("template", "prefix"),
    [("nsq.%s", "nsq.my_host_4151."), ("", ""), ("a.", "a."), ("%s", "my_host_4151.")],
)
def test_prefix(template: str, prefix: str):
    assert key_prefix(template, "my.host:4151") == prefix


def test_first_report_holds_everything():
    lines = StatsdReport("p.", exclude_ephemeral=False).lines([topic("t", channel())], None)
    assert lines == [
        "p.topic.t.message_count:20|c\n",
        "p.topic.t.message_bytes:200|c\n",
        "p.topic.t.depth:1|g\n",
        "p.topic.t.backend_depth:0|g\n",
        "p.topic.t.channel.c.message_count:10|c\n",
        "p.topic.t.channel.c.depth:3|g\n",
        "p.topic.t.channel.c.backend_depth:2|g\n",
        "p.topic.t.channel.c.in_flight_count:4|g\n",
        "p.topic.t.channel.c.deferred_count:5|g\n",
        "p.topic.t.channel.c.requeue_count:6|c\n",
        "p.topic.t.channel.c.timeout_count:7|c\n",
        "p.topic.t.channel.c.clients:8|g\n",
    ]


def test_counters_tell_their_growth_also_after_a_topic_began_again():
    report = StatsdReport("", exclude_ephemeral=False)
    counted = [report.lines([topic(message_count=count)], None)[0].rstrip() for count in (20, 25, 25, 3)]
    assert counted == [f"topic.t.message_count:{growth}|c" for growth in (20, 5, 0, 3)]


def test_ephemeral_ones_can_be_left_out():
    topics = [topic("t#ephemeral"), topic("t", channel("c#ephemeral"), channel("d"))]
    everything = "".join(StatsdReport("", exclude_ephemeral=False).lines(topics, None))
    assert "topic.t#ephemeral.depth" in everything
    assert "channel.c#ephemeral.depth" in everything
    lasting = "".join(StatsdReport("", exclude_ephemeral=True).lines(topics, None))
    assert "ephemeral" not in lasting
    assert "channel.d.depth" in lasting


def test_percentiles_have_names_of_their_own():
    percentiles = [{"quantile": quantile, "value": 5.0} for quantile in (1.0, 0.999, 0.99, 0.5)]
    latency: LatencyStats = {"count": 4, "percentiles": percentiles}
    lines = StatsdReport("", exclude_ephemeral=False).lines([topic(e2e_processing_latency=latency)], None)
    names = [line.partition(":")[0].rpartition("_latency_")[2] for line in lines if "_latency_" in line]
    assert names == ["100", "99_9", "99", "50"]


def test_memory():
    lines = StatsdReport("", exclude_ephemeral=False).lines([], memory_stats())
    assert any(line.startswith("mem.heap_in_use_bytes:") and line.endswith("|g\n") for line in lines)
    assert any(line.startswith("mem.gc_runs:") and line.endswith("|c\n") for line in lines)


def test_packets_are_full_but_never_larger():
    lines = [f"{'x' * 9}\n"] * 7
    assert [len(packet) for packet in packets(lines, 30)] == [30, 30, 10]
    assert list(packets(["y" * 50], 30)) == [b"y" * 50]
    assert list(packets([], 30)) == []


class Time:
    """A clock that only sleeping moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)


@pytest.mark.parametrize(
    ("interval", "due"), [(60.0, [60, 120, 180]), (1.0, [1, 2, 3]), (0.5, [0.5, 1, 1.5])], ids=["60", "1", "0.5"]
)
def test_reports_are_due_every_interval_however_long_they_are_spread(
    monkeypatch: pytest.MonkeyPatch, interval: float, due: list[float]
):
    clock, began, log = Time(), [], Logger("", write=lambda _: None)
    monkeypatch.setattr(statsd_push, "sleep", clock.sleep)
    monkeypatch.setattr(statsd_push, "monotonic", lambda: clock.now)

    def report() -> list[str]:
        began.append(clock.now - 1000)
        if len(began) > len(due):
            raise GreenletExit
        return [f"{'x' * 29}\n"] * 7

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd:
        statsd.bind(("127.0.0.1", 0))
        with pytest.raises(GreenletExit):
            statsd_push.push_for_ever(f"127.0.0.1:{statsd.getsockname()[1]}", interval, 30, report, log)
    assert began[:-1] == pytest.approx(due)


def test_a_report_that_took_too_long_is_not_made_up_for(monkeypatch: pytest.MonkeyPatch):
    clock, began = Time(), []
    monkeypatch.setattr(statsd_push, "sleep", clock.sleep)
    monkeypatch.setattr(statsd_push, "monotonic", lambda: clock.now)

    def report() -> list[str]:
        began.append(clock.now - 1000)
        if len(began) == 3:
            raise GreenletExit
        clock.sleep(25)
        return []

    with pytest.raises(GreenletExit):
        statsd_push.push_for_ever("127.0.0.1:9", 10, 30, report, Logger("", write=lambda _: None))
    assert began == [10, 35, 60]
