"""The coordinator's look-out: what ends it not, and whom it asks at once."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from fake_http import Answers, FakeLookupd

from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.options import SourceOptions, parse_source_options
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.connector.watcher import Watcher

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

STATS_PATH = "/stats?format=json&include_mem=false&topic=t&channel=c"
STATS = b'{"topics": [{"topic_name": "t", "depth": 7, "channels": []}]}'

StartServer = Callable[[Answers], FakeLookupd]


def options(**texts: str) -> SourceOptions:
    plain = {"topic": "t", "channel": "c", "nsqdTcpAddresses": "h:1", "lookupdPollInterval": "100ms"}
    return parse_source_options(plain | texts)


class Failing:
    """Fails when it is called first; the second time it ends the thread that has called."""

    def __init__(self) -> None:
        self.called: list[Any] = []
        self.has_gone_on = threading.Event()

    def __call__(self, *arguments: Any) -> None:
        self.called.append(arguments)
        if len(self.called) == 1:
            raise ZeroDivisionError("nobody has thought of that")
        self.has_gone_on.set()
        raise SystemExit


def nothing(*_: Any) -> None:
    pass


def test_sources_are_told_of_again_where_that_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    telling = Failing()
    watcher = Watcher(options(), 60.0, telling, nothing)
    threading.Thread(target=watcher._watch_sources, daemon=True).start()
    assert telling.has_gone_on.wait(20)
    assert telling.called == [([Source("t", Address("h", 1))],)] * 2
    assert "nobody has thought of that" in caplog.text


def test_statistics_go_on_whatever_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    telling = Failing()
    watcher = Watcher(options(), 0.01, nothing, telling)
    threading.Thread(target=watcher._watch_stats, daemon=True).start()
    assert telling.has_gone_on.wait(20)
    assert "nobody has thought of that" in caplog.text


def test_statistics_are_asked_of_a_new_source_at_once(start_lookupd: StartServer) -> None:
    asked: list[dict[Source, Any]] = []
    has_asked, has_found = threading.Event(), threading.Event()

    def told() -> None:
        asked.append(watcher.stats)
        (has_found if watcher.stats else has_asked).set()

    nsqd = start_lookupd({STATS_PATH: STATS})
    watcher = Watcher(options(nsqdHttpAddresses=str(nsqd.address)), 600.0, nothing, told)
    threading.Thread(target=watcher._watch_stats, daemon=True).start()
    assert has_asked.wait(20)
    watcher._look()
    assert has_found.wait(20)
    assert [found.keys() for found in asked] == [set(), {Source("t", Address("h", 1))}]


def test_statistics_are_asked_of_all_nsqds_at_once(
    start_lookupd: StartServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    all_asked = threading.Barrier(3)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        """Wait until the others are asked too."""
        all_asked.wait(20)
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(STATS)

    servers = [start_lookupd({STATS_PATH: answer}) for _ in range(3)]
    https = ",".join(str(server.address) for server in servers)
    watcher = Watcher(options(nsqdTcpAddresses="h:1,h:2,h:3", nsqdHttpAddresses=https), 60.0, nothing, nothing)
    watcher._look()
    stats = watcher._ask_all()
    assert [told and told.depth for told, _ in stats.values()] == [7, 7, 7]
    # One that fails as nobody has thought of does not keep the others from being told.
    monkeypatch.setattr(watcher, "_ask", lambda address, _: {"t": None} if address != servers[0].address else 1 / 0)
    assert [source.nsqd.port for source in sorted(watcher._ask_all())] == [2, 3]
    assert "ZeroDivisionError" in caplog.text
