"""What lookupds and nsqds tell over HTTP, and what is made of it when they do not."""

import math
import random
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from fake_http import Answers, FakeLookupd
from scripted_nsqd import Certificates

from pyspark_nsq.connector import http_json
from pyspark_nsq.connector.discovery import (
    ChannelStats,
    Directory,
    Nsqd,
    PollPlan,
    TopicStats,
    fetch_stats,
)
from pyspark_nsq.connector.errors import DiscoveryError
from pyspark_nsq.connector.http_json import fetch_json
from pyspark_nsq.connector.options import DiscoveryOptions, parse_sink_options
from pyspark_nsq.connector.settings import Address, HttpAddress, Security

StartLookupd = Callable[[Answers], FakeLookupd]


def producer(host: str = "n", tcp_port: Any = 4150, http_port: Any = 4151, **more: Any) -> dict[str, Any]:
    return {"broadcast_address": host, "tcp_port": tcp_port, "http_port": http_port, **more}


def nsqd(host: str = "n") -> Nsqd:
    return Nsqd(Address(host, 4150), HttpAddress(Address(host, 4151)))


def options(*lookupds: FakeLookupd | HttpAddress, **texts: str) -> DiscoveryOptions:
    addresses = ",".join(str(each.address if isinstance(each, FakeLookupd) else each) for each in lookupds)
    return parse_sink_options({"topic": "t", "lookupdHttpAddresses": addresses} | texts).discovery


def test_all_lookupds_are_asked_and_their_answers_merged(start_lookupd: StartLookupd) -> None:
    first = start_lookupd({"/lookup?topic=t": {"producers": [producer("a"), producer("b")]}})
    second = start_lookupd({"/lookup?topic=t": {"producers": [producer("b"), producer("c")]}})
    assert Directory(options(first, second)).look_up(["t"]) == {"t": {nsqd("a"), nsqd("b"), nsqd("c")}}


def test_a_topic_that_nobody_knows_has_no_nsqds(start_lookupd: StartLookupd) -> None:
    directory = Directory(options(start_lookupd({})))
    assert directory.look_up(["t"]) == {"t": frozenset()}
    assert directory.reached


def test_nsqds_named_by_options_are_always_there(start_lookupd: StartLookupd) -> None:
    directory = Directory(options(start_lookupd({}), nsqdTcpAddresses="h:1"))
    assert directory.look_up(["t"]) == {"t": {Nsqd(Address("h", 1), None)}}


def test_what_a_failing_lookupd_said_is_kept(start_lookupd: StartLookupd, caplog: pytest.LogCaptureFixture) -> None:
    answers = {"/nodes": {"producers": [producer("a", topics=[])]}}
    first, second = start_lookupd(answers), start_lookupd({"/nodes": {"producers": [producer("b", topics=[])]}})
    directory = Directory(options(first, second))
    assert directory.nodes() == {nsqd("a"), nsqd("b")}
    answers["/nodes"] = b"out of order"
    second.answers["/nodes"] = {"producers": []}
    for _ in range(3):
        assert directory.nodes() == {nsqd("a")}
    assert [error.address for error in directory.failures] == [first.address]
    assert len(caplog.records) == 1
    assert directory.reached
    second.close()
    directory.nodes()
    assert not directory.reached


@pytest.mark.parametrize("others", [[], [f"other{number}" for number in range(20)]], ids=["a topic", "many topics"])
def test_a_silent_lookupd_does_not_count_for_nsqds_that_another_knows(
    start_lookupd: StartLookupd, others: list[str]
) -> None:
    both, lost = producer("both", topics=["t"]), producer("lost", topics=["t"])
    first = start_lookupd({"/lookup?topic=t": {"producers": [both, lost]}, "/nodes": {"producers": [both, lost]}})
    second = start_lookupd({"/lookup?topic=t": {"producers": [both]}, "/nodes": {"producers": [both]}})
    directory = Directory(options(first, second))
    assert directory.look_up(["t", *others])["t"] == {nsqd("both"), nsqd("lost")}
    first.close()
    assert directory.look_up(["t", *others])["t"] == {nsqd("both"), nsqd("lost")}
    # The topic is deleted there, and the second lookupd still knows the nsqd itself.
    second.answers["/lookup?topic=t"] = {"producers": []}
    second.answers["/nodes"] = {"producers": [both | {"topics": []}]}
    assert directory.look_up(["t", *others])["t"] == {nsqd("lost")}
    # Where nobody answers nothing contradicts what was said last.
    second.close()
    assert directory.look_up(["t", *others])["t"] >= {nsqd("lost")}


def test_many_topics_are_looked_up_at_once(start_lookupd: StartLookupd) -> None:
    nodes = [
        producer("a", topics=["t0", "t1", "bad name"], tombstones=[False, True, False]),
        producer("b", topics=["t1"]),
        producer("c", topics=None),
    ]
    lookupd = start_lookupd({"/nodes": {"producers": nodes}})
    found = Directory(options(lookupd)).look_up([f"t{number}" for number in range(1000)])
    assert lookupd.asked == ["/nodes"]
    assert (found["t0"], found["t1"], found["t2"]) == ({nsqd("a")}, {nsqd("b")}, frozenset())


def test_topics(start_lookupd: StartLookupd) -> None:
    first, second = start_lookupd({"/topics": {"topics": ["a", "b c"]}}), start_lookupd({"/topics": {"topics": ["d"]}})
    assert Directory(options(first, second)).topics() == {"a", "d"}


def test_topics_that_are_gone_are_forgotten(start_lookupd: StartLookupd) -> None:
    answers: Answers = {f"/lookup?topic=t{number}": {"producers": [producer("a")]} for number in range(20)}
    lookupd = start_lookupd(answers | {"/topics": {"topics": ["t"]}, "/nodes": {"producers": []}})
    directory = Directory(options(lookupd))
    directory.topics()
    directory.nodes()
    for number in range(20):
        assert directory.look_up([f"t{number}"]) == {f"t{number}": {nsqd("a")}}
    assert {path for _, path in directory._answers} == {"/topics", "/nodes", "/lookup?topic=t19"}
    # What is still asked for is remembered when nobody answers.
    lookupd.answers.clear()
    lookupd.answers["/lookup?topic=t19"] = b"out of order"
    assert directory.look_up(["t19"]) == {"t19": {nsqd("a")}}


def test_where_no_lookupd_tells_its_topics_there_is_no_answer(start_lookupd: StartLookupd) -> None:
    directory = Directory(options(start_lookupd({})))
    assert directory.look_up(directory.topics()) == {}
    assert not directory.reached


def test_names_are_escaped(start_lookupd: StartLookupd) -> None:
    lookupd = start_lookupd({})
    Directory(options(lookupd)).look_up(["t#ephemeral"])
    assert lookupd.asked == ["/lookup?topic=t%23ephemeral"]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[1",
        b"[" * 100_000,
        [],
        {},
        {"producers": {}} | {"producers": 7},
        {"producers": [None]},
        {"producers": [{"broadcast_address": "n"}]},
        {"producers": [producer(tcp_port="4150")]},
        {"producers": [producer(tcp_port=65536)]},
        {"producers": [producer(tcp_port=True)]},
        {"producers": [producer(host="")]},
        {"producers": [producer(host="a b")]},
        {"producers": [producer(host="a..b")]},
        {"producers": [producer(host="a" * 64)]},
        {"producers": [producer(http_port=-1)]},
    ],
    ids=lambda answer: repr(answer)[:40],
)
def test_answers_that_no_lookupd_gives(start_lookupd: StartLookupd, answer: object) -> None:
    directory = Directory(options(start_lookupd({"/lookup?topic=t": answer}), nsqdTcpAddresses="h:1"))
    assert directory.look_up(["t"]) == {"t": {Nsqd(Address("h", 1), None)}}
    assert len(directory.failures) == 1


def test_an_answer_without_end_is_cut_off(start_lookupd: StartLookupd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_json, "ANSWER_SIZE_MAX", 1_000_000)

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b" " * 100_000)
        except OSError:
            pass

    with pytest.raises(DiscoveryError, match="larger than 1000000 bytes"):
        fetch_json(start_lookupd({"/x": endless}).address, "/x", 10, Security())


@pytest.mark.parametrize("part", ["head", "body"])
def test_an_answer_that_drips_is_given_up(start_lookupd: StartLookupd, part: str) -> None:
    stop = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.0 200 OK\r\n" + (b"\r\n" if part == "body" else b"X: "))
        try:
            while not stop.wait(0.02):
                handler.wfile.write(b" ")
        except OSError:
            pass

    lookupd = start_lookupd({"/x": drip})
    with pytest.raises(DiscoveryError, match="takes too long"):
        fetch_json(lookupd.address, "/x", 0.2, Security())
    stop.set()


def test_one_that_hangs_does_not_hold_up_the_others(start_lookupd: StartLookupd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = HttpAddress(Address("127.0.0.1", listener.getsockname()[1]))
        good = start_lookupd({"/lookup?topic=t": {"producers": [producer("a")]}})
        directory = Directory(options(silent, good, connectTimeout="500ms"))
        assert directory.look_up(["t"]) == {"t": {nsqd("a")}}
        assert [error.address for error in directory.failures] == [silent]


def test_errors_over_http_are_shown(start_lookupd: StartLookupd) -> None:
    def refuse(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(500)
        handler.end_headers()
        handler.wfile.write(b'{"message":"EXITING"}')

    lookupd = start_lookupd({"/x": refuse})
    with pytest.raises(DiscoveryError, match=r"status 500.*EXITING") as caught:
        fetch_json(lookupd.address, "/x", 10, Security())
    assert str(lookupd.address) in str(caught.value)


def test_https(start_lookupd: StartLookupd, certificates: Certificates) -> None:
    lookupd = start_lookupd({"/x": {"a": 1}})
    lookupd.server.socket = certificates.server_context().wrap_socket(lookupd.server.socket, server_side=True)
    address = HttpAddress(lookupd.address.address, tls=True)
    assert fetch_json(address, "/x", 10, Security(tls_ca_file=str(certificates.authority))) == {"a": 1}
    with pytest.raises(DiscoveryError, match="CERTIFICATE_VERIFY_FAILED"):
        fetch_json(address, "/x", 10, Security())


CHANNEL = {
    "channel_name": "c",
    "depth": 5,
    "in_flight_count": 4,
    "deferred_count": 3,
    "client_count": 2,
    "paused": False,
    "clients": [{"in_flight_count": 1}, {"in_flight_count": 2}],
}
STATS_PATH = "/stats?format=json&include_mem=false&topic=t&channel=c"


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        (
            [{"topic_name": "t", "depth": 9, "channels": [{"channel_name": "x"}, CHANNEL]}],
            TopicStats(9, ChannelStats(5, 4, 3, 3, 2, False)),
        ),
        ([{"topic_name": "t", "depth": 9, "channels": []}], TopicStats(9, None)),
        ([{"topic_name": "other"}], None),
        (None, None),
    ],
)
def test_stats(start_lookupd: StartLookupd, topics: object, expected: TopicStats | None) -> None:
    address = start_lookupd({STATS_PATH: {"topics": topics}}).address
    assert fetch_stats(address, "t", "c", 10, Security()) == expected


@pytest.mark.parametrize("answer", [None, [], {"topics": [{"topic_name": "t", "depth": "9", "channels": []}]}])
def test_stats_that_no_nsqd_gives(start_lookupd: StartLookupd, answer: object) -> None:
    with pytest.raises(DiscoveryError, match="not the form of nsqd"):
        fetch_stats(start_lookupd({STATS_PATH: answer}).address, "t", "c", 10, Security())


def plan(**texts: str) -> PollPlan:
    return PollPlan(options(HttpAddress(Address("h", 1)), **texts), 0.1, random.Random(7))


def test_polls_come_within_the_interval_and_not_all_at_the_same_time() -> None:
    poll_plan = plan(lookupdPollInterval="10s", lookupdPollJitter="0.3")
    assert poll_plan.due_s == -math.inf
    delays = set()
    for _ in range(100):
        poll_plan.polled(1000, ok=True)
        delays.add(round(poll_plan.due_s - 1000, 3))
    assert min(delays) >= 7
    assert max(delays) <= 10
    assert len(delays) > 50


def test_polls_that_fail_are_repeated_soon_then_later() -> None:
    poll_plan = plan(lookupdPollInterval="10s", lookupdPollJitter="0")
    delays = []
    for _ in range(9):
        poll_plan.polled(1000, ok=False)
        delays.append(round(poll_plan.due_s - 1000, 3))
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
    poll_plan.polled(1000, ok=True)
    poll_plan.polled(1000, ok=False)
    assert poll_plan.due_s == pytest.approx(1000.1)


def test_after_a_doubt_the_next_poll_comes_soon_but_not_at_once() -> None:
    poll_plan = plan(lookupdPollInterval="1h", lookupdPollJitter="0")
    poll_plan.doubted()
    assert poll_plan.due_s == -math.inf
    poll_plan.polled(1000, ok=True)
    poll_plan.doubted()
    assert poll_plan.due_s == pytest.approx(1000.1)
    poll_plan.polled(2000, ok=True)
    assert poll_plan.due_s == 5600
