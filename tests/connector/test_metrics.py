"""Counters: summed over receivers, and read from a query's progress by the listener."""

import json
from types import SimpleNamespace
from typing import Any

from pyspark_nsq.connector.offsets import Offset
from pyspark_nsq.connector.report import Report, merge
from pyspark_nsq.metrics import NsqMetrics
from pyspark_nsq.proto import receiver_pb2 as pb


def status(port: int, lost: int = 0, **counts: int) -> pb.Status:
    source = pb.Source(topic="topic", host="127.0.0.1", port=port)
    return pb.Status(lost=lost, sources=[pb.SourceStatus(source=source, counters=pb.Counters(**counts))])


def report() -> Report:
    found = Report(backlog=7, lost=1)
    found.add([status(1, received=10, finished=4), status(2, lost=5, received=1)])
    found.add([status(1, received=100)])
    return found


def progress(offset: str | None, query: str = "q1") -> Any:
    sources = [SimpleNamespace(latestOffset='{"topic": {"0": 3}}'), SimpleNamespace(latestOffset=offset)]
    return SimpleNamespace(progress=SimpleNamespace(id=query, name="clicks\n", batchId=3, sources=sources))


def test_counts_of_receivers_add_up_also_of_those_that_died() -> None:
    fields = report().to_json(Offset("s", (5,)))
    assert (fields["backlog"], fields["lost"]) == (7, 6)
    assert fields["totals"]["received"] == 111
    assert fields["nsqds"]["127.0.0.1:1"]["received"] == 110
    assert list(fields)[:3] == ["version", "session", "ends"]
    assert "received 111" in str(report())


def test_what_died_is_kept_as_one_status_that_counts_as_much() -> None:
    died = [status(1, received=10, finished=4), status(2, lost=5, received=1), status(1, received=100)]
    merged = merge([merge(died[:2]), died[2]])
    assert len(merged.sources) == 2
    found = Report(backlog=7, lost=1)
    found.add([merged])
    assert (found.nsqds["127.0.0.1:1"]["received"], found.totals["finished"], found.lost) == (110, 4, 6)


def test_the_listener_keeps_the_newest_of_our_sources_only() -> None:
    metrics = NsqMetrics()
    for offset in (None, "", "no json", "[]", "3", '{"version": 1}'):
        metrics.onQueryProgress(progress(offset))
    assert metrics.latest() == []
    metrics.onQueryProgress(progress(json.dumps(report().to_json(Offset("s", (5,))))))
    (found,) = metrics.latest()
    assert (found.source, found.backlog, found.batch_id, found.totals["received"]) == (1, 7, 3, 111)


def test_prometheus_text() -> None:
    metrics = NsqMetrics()
    metrics.onQueryProgress(progress(json.dumps(report().to_json(Offset("s", (5,))))))
    text = metrics.prometheus()
    assert '# TYPE pyspark_nsq_backlog gauge\npyspark_nsq_backlog{query="clicks\\n",source="1"} 7\n' in text
    assert 'pyspark_nsq_received_total{query="clicks\\n",source="1",nsqd="127.0.0.1:1"} 110\n' in text
    assert text.count("# TYPE pyspark_nsq_received_total counter") == 1


def test_a_query_that_ends_is_forgotten() -> None:
    metrics = NsqMetrics()
    metrics.onQueryProgress(progress(json.dumps(report().to_json(Offset("s", (5,))))))
    metrics.onQueryTerminated(SimpleNamespace(id="q1"))  # type: ignore[arg-type]
    assert metrics.latest() == []
    assert metrics.prometheus() == ""
