"""The parts of the demo that decide and show, without a broker and without Spark."""

import io
import json
import random
import signal
import sys
from typing import Any

import pytest
from rich.console import Console

from pyspark_nsq.cli.cluster import ChannelCounts, TopicCounts
from pyspark_nsq.demo import __main__ as demo
from pyspark_nsq.demo import view
from pyspark_nsq.demo.books import Books
from pyspark_nsq.demo.shop import ACTIONS, COUNTRIES, Shop, checksum
from pyspark_nsq.demo.view import Batch, Picture, Rates


def result(start: int, country: str, numbers: list[int]) -> bytes:
    """What the query says when a window of a country has these events."""
    row = {"start": start, "country": country, "events": len(numbers), "number_sum": sum(numbers), "orders": 1}
    return json.dumps(row | {"revenue": 10.5}).encode()


def test_the_shop_is_believable_and_numbers_its_events() -> None:
    shop = Shop(seed=1)
    events = [json.loads(text) for text in [*shop.events(3000, 1_700_000_000.0), *shop.events(7, 1_700_000_001.0)]]
    assert [event["number"] for event in events] == list(range(3007))
    assert sum(event["number"] for event in events) == checksum(shop.count)
    assert {event["country"] for event in events} == set(COUNTRIES)
    counts = {action: sum(event["action"] == action for event in events) for action in ACTIONS}
    assert counts["view"] > counts["cart"] > counts["order"] > 0


def test_the_last_word_counts_in_whatever_order_it_comes() -> None:
    updates = [
        result(0, "DE", [0]),
        result(0, "DE", [0, 2, 3]),
        result(0, "FR", [1]),
        result(5, "DE", [4, 5]),
    ]
    for seed in range(20):
        books = Books()
        for update in random.Random(seed).sample(updates, len(updates)):
            books.enter(update)
        assert books.verdict(6) is None
        assert [(start, cell.events) for start, cell in books.windows(10)] == [(5, 2), (0, 4)]
        assert [start for start, _ in books.windows(1)] == [5]
        assert {name: cell.events for name, cell in books.countries()} == {"DE": 5, "FR": 1}


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([0, 1, 2], "1 missing"),
        ([0, 1, 2, 3, 3], "1 too many"),
        ([0, 1, 2, 2], "not the same ones"),
        ([], "4 missing"),
    ],
)
def test_the_books_notice(numbers: list[int], said: str) -> None:
    books = Books()
    if numbers:
        books.enter(result(0, "DE", numbers))
    assert said in str(books.verdict(4))


def test_a_demo_without_events_shows_nothing() -> None:
    assert Books().verdict(0) == "Nothing was published, so nothing was counted."


@pytest.mark.parametrize(
    ("verdict", "code", "said"),
    [(None, 0, "Every published event was counted exactly once.\n"), ("1 missing", 1, "1 missing\n")],
)
def test_the_shell_is_told_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verdict: str | None, code: int, said: str
) -> None:
    monkeypatch.setattr(demo, "_run", lambda *_: verdict)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["demo"])
    assert demo.main() == code
    assert capsys.readouterr().out == said


def test_what_starts_is_not_interrupted_and_what_runs_is_by_the_second_signal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    taken: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", taken.__setitem__)
    stop = demo._Stop()
    stop.check()
    for number in (signal.SIGINT, signal.SIGTERM):
        taken[number](number, None)
    assert capfd.readouterr().out == "Ending as soon as this has started ...\n"
    with pytest.raises(KeyboardInterrupt):
        stop.check()
    stop = demo._Stop()
    stop.listen()
    taken[signal.SIGTERM](signal.SIGTERM, None)
    assert stop.is_set
    with pytest.raises(KeyboardInterrupt):
        taken[signal.SIGINT](signal.SIGINT, None)


def test_a_window_without_orders_has_no_revenue() -> None:
    books = Books()
    books.enter(b'{"start": 0, "country": "DE", "events": 1, "number_sum": 0, "orders": 0}')
    assert books.total.revenue == 0


def test_rates_are_of_the_last_seconds() -> None:
    rates = Rates()
    assert rates.add(100.0, 0, 0) == (0, 0)
    assert rates.add(101.0, 500, 100) == (500, 100)
    for second in range(102, 120):
        found = rates.add(float(second), 500 + 100 * (second - 101), 100)
    assert found == (100, 0)


@pytest.fixture
def picture() -> Picture:
    books = Books()
    books.enter(result(1_700_000_000, "PT", list(range(1234))))
    channel = ChannelCounts(messages=5000, depth=321, in_flight=54)
    nsqd = TopicCounts(5000, 0, False, 1, {"revenue": channel})
    batches = [Batch(number, 1000, duration) for number, duration in enumerate((100, 800, 450))]
    return Picture("running", 12.0, 5000, 2000.4, 1900.0, [("127.0.0.1:4150", nsqd)], channel, batches, books)


def test_the_screen_shows_all_of_it(picture: Picture) -> None:
    output = io.StringIO()
    Console(file=output, width=120, height=50).print(view.screen(picture))
    shown = output.getvalue()
    for text in ("2,000/s", "1,900/s", "127.0.0.1:4150", "321", "54", "450 ms", "▁█▄", "PT", "1,234"):
        assert text in shown, text


def test_there_is_a_screen_before_the_first_batch(picture: Picture) -> None:
    output = io.StringIO()
    empty = Picture("running", 0.0, 0, 0.0, 0.0, [], ChannelCounts(), [], Books())
    Console(file=output, width=120).print(view.screen(empty))
    assert "the first batch takes a few seconds" in output.getvalue()


def test_a_line_shows_the_same(picture: Picture) -> None:
    shown = view.line(picture)
    assert shown.startswith("   12 s  running: published 5,000 (2,000/s)")
    for text in ("depth 321", "in flight 54", "last batch 450 ms", "counted 1,234"):
        assert text in shown
