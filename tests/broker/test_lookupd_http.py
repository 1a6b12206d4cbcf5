"""nsqlookupd's HTTP API, without a socket."""

import json
from typing import Any

import pytest

from pyspark_nsq.broker.durations import SECOND
from pyspark_nsq.broker.http_messages import HttpError, Request, answer
from pyspark_nsq.broker.http_router import Match, Router
from pyspark_nsq.broker.logs import Logger
from pyspark_nsq.broker.lookupd_http import LookupdApi
from pyspark_nsq.broker.lookupd_options import LookupdOptions
from pyspark_nsq.broker.lookupd_registry import Peer, Registry

START_NS = 1_000 * SECOND


class Api:
    """The API with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_ns = START_NS
        self.lines: list[str] = []
        self.registry = Registry()
        log = Logger("", write=self.lines.append)
        self.router = Router(LookupdApi(self.registry, LookupdOptions(), log, lambda: self.now_ns, lambda: 3).routes())

    def ask(self, method: str, target: str) -> bytes:
        """The body of a 200 answer; HttpError as the handler raised it."""
        path, _, query = target.partition("?")
        found = self.router.find(method, path)
        assert isinstance(found, Match), target
        response = answer(found.route.handler(Request(method, target, path, query, {})))
        assert response.status == 200
        return response.body

    def get(self, target: str) -> Any:
        return json.loads(self.ask("GET", target))

    def connect(self, peer_id: str, *names: tuple[str, str]) -> Peer:
        peer = Peer(peer_id, "host", "b-" + peer_id, 4150, 4151, "1.3.0", "zone", "region", self.now_ns)
        self.registry.connect(peer)
        for name in names:
            self.registry.register(peer, *name)
        return peer


@pytest.fixture
def api() -> Api:
    return Api()


A = (
    b'{"remote_address":"a","hostname":"host","broadcast_address":"b-a","tcp_port":4150,"http_port":4151,'
    b'"version":"1.3.0","topology_zone":"zone","topology_region":"region"'
)


def test_lookup_and_nodes_to_the_byte(api: Api) -> None:
    api.connect("a", ("t", "c"), ("u", ""))
    assert api.ask("GET", "/lookup?topic=t") == b'{"channels":["c"],"producers":[' + A + b"}]}"
    assert api.ask("GET", "/nodes") == b'{"producers":[' + A + b',"tombstones":[false,false],"topics":["t","u"]}]}'
    assert api.ask("GET", "/topics") == b'{"topics":["t","u"]}'
    assert api.ask("GET", "/channels?topic=t") == b'{"channels":["c"]}'
    assert api.ask("GET", "/channels?topic=unknown") == b'{"channels":[]}'


def test_ping_and_info(api: Api) -> None:
    assert api.ask("GET", "/ping") == b"OK"
    assert api.ask("GET", "/info") == b'{"version":"1.3.0"}'


def test_debug_lists_everything_sorted(api: Api) -> None:
    api.connect("a", ("t", "c"))
    api.registry.create("empty")
    api.now_ns += 5
    api.ask("POST", "/topic/tombstone?topic=t&node=b-a:4151")
    found = api.get("/debug")
    assert list(found) == ["channel:t:c", "client::", "topic:t:"]
    assert list(found["client::"][0]) == sorted(found["client::"][0])
    assert found["client::"][0]["last_update"] == START_NS
    assert found["client::"][0]["tombstoned_at"] == -6795364578871345152
    assert (found["topic:t:"][0]["tombstoned"], found["topic:t:"][0]["tombstoned_at"]) == (True, START_NS + 5)


def test_names_are_created_and_deleted(api: Api) -> None:
    assert api.ask("POST", "/topic/create?topic=t") == b""
    assert api.ask("POST", "/channel/create?topic=u&channel=c") == b""
    assert api.get("/topics") == {"topics": ["t", "u"]}
    assert api.ask("POST", "/channel/delete?topic=u&channel=c") == b""
    assert api.ask("POST", "/topic/delete?topic=u") == api.ask("POST", "/topic/delete?topic=unknown") == b""
    assert api.get("/topics") == {"topics": ["t"]}


def test_tombstones_and_silence_hide_producers(api: Api) -> None:
    api.connect("a", ("t", ""))
    api.connect("b", ("t", ""))
    api.ask("POST", "/topic/tombstone?topic=t&node=b-a:4151")

    def looked_up() -> list[str]:
        return [producer["remote_address"] for producer in api.get("/lookup?topic=t")["producers"]]

    assert looked_up() == ["b"]
    assert [node["tombstones"] for node in api.get("/nodes")["producers"]] == [[True], [False]]
    api.now_ns += 45 * SECOND
    assert looked_up() == ["a", "b"]
    api.now_ns = START_NS + 300 * SECOND
    assert looked_up() == ["a", "b"]
    api.now_ns += 1
    assert looked_up() == []
    assert api.get("/nodes") == {"producers": []}


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/lookup?topic=%zz", 400, "INVALID_REQUEST"),
        ("GET", "/lookup?topic=t", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/create?topic=%ff", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/create?channel=c", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/channel/create?topic=!&channel=c", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=t&channel=!", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=t&channel=!", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=t&channel=c", 404, "CHANNEL_NOT_FOUND"),
        ("POST", "/topic/tombstone", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
    ],
)
def test_errors(api: Api, method: str, target: str, status: int, code: str) -> None:
    with pytest.raises(HttpError) as caught:
        api.ask(method, target)
    assert (caught.value.status, caught.value.code) == (status, code)
    assert api.get("/topics") == {"topics": []}


def test_metrics(api: Api) -> None:
    api.connect("a", ("t", "c"), ("t", "d"))
    api.connect("b", ("t", ""))
    api.ask("POST", "/topic/tombstone?topic=t&node=b-a:4151")
    lines = api.ask("GET", "/metrics").decode().splitlines()
    assert {
        "nsqlookupd_topics 1",
        "nsqlookupd_channels 2",
        "nsqlookupd_connections 3",
        "nsqlookupd_producers 2",
        "nsqlookupd_producers_active 2",
        'nsqlookupd_topic_producers{topic="t"} 1',
    } <= set(lines)
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)
