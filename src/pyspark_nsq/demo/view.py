"""What the demo shows: one picture of all numbers, as a live view for a terminal or as a line of text."""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark_nsq.cli.cluster import ChannelCounts, TopicCounts
from pyspark_nsq.demo.books import Books, Cell

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_RATE_SPAN_S: Final = 5.0
_WINDOWS_MAX: Final = 6
_BATCHES_MAX: Final = 60
_BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Batch:
    number: int
    rows: int
    duration_ms: int


@dataclass(frozen=True)
class Picture:
    """All that is shown. ``nsqds`` has each nsqd's address with what it holds of the events."""

    phase: str
    seconds: float
    published: int
    published_rate: float
    finished_rate: float
    nsqds: list[tuple[str, TopicCounts]]
    channel: ChannelCounts
    batches: list[Batch]
    books: Books


@dataclass
class Rates:
    """How fast two numbers have grown over the last seconds."""

    _samples: deque[tuple[float, int, int]] = field(default_factory=deque)

    def add(self, now_s: float, published: int, finished: int) -> tuple[float, float]:
        self._samples.append((now_s, published, finished))
        while now_s - self._samples[0][0] > _RATE_SPAN_S:
            self._samples.popleft()
        then_s, *then = self._samples[0]
        seconds = max(now_s - then_s, 0.001)
        return max(0, published - then[0]) / seconds, max(0, finished - then[1]) / seconds


def line(picture: Picture) -> str:
    """For a file or a script."""
    parts = [
        f"published {picture.published:,} ({picture.published_rate:,.0f}/s)",
        f"finished {picture.finished_rate:,.0f}/s",
        f"depth {picture.channel.depth:,}",
        f"in flight {picture.channel.in_flight:,}",
        f"last batch {picture.batches[-1].duration_ms:,} ms" if picture.batches else "no batch yet",
        f"counted {picture.books.total.events:,}",
    ]
    return f"{picture.seconds:5.0f} s  {picture.phase}: {', '.join(parts)}"


def screen(picture: Picture) -> "RenderableType":
    """For a terminal of 80 columns or more."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    head = Text.assemble(
        (" pyspark-nsq ", "bold reverse"),
        (f"  {picture.phase}, {picture.seconds:.0f} s", "bold"),
        ("   Ctrl-C ends it", "dim"),
    )
    results = Table.grid(expand=True)
    results.add_column(ratio=1)
    results.add_column(ratio=1)
    results.add_row(
        Panel(_windows(picture.books), title="results by window", title_align="left", border_style="magenta"),
        Panel(_countries(picture.books), title="results by country", title_align="left", border_style="magenta"),
    )
    return Group(
        head,
        Panel(_flow(picture), title="producer -> nsqd -> Spark", title_align="left", border_style="green"),
        Panel(_batches(picture.batches), title="batches", title_align="left", border_style="cyan"),
        results,
    )


def _flow(picture: Picture) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    nsqds = _table("nsqd", "messages", "depth", "in flight", "requeued", "timed out")
    for address, counts in picture.nsqds:
        total = sum(counts.channels.values(), ChannelCounts())
        numbers = (counts.messages, counts.depth + total.depth, total.in_flight, total.requeued, total.timed_out)
        nsqds.add_row(address, *(f"{number:,}" for number in numbers))
    rates = Text.assemble(
        "published ",
        (f"{picture.published:,}", "bold green"),
        f" ({picture.published_rate:,.0f}/s)   finished ",
        (f"{picture.finished_rate:,.0f}/s", "bold green"),
        "   counted ",
        (f"{picture.books.total.events:,}", "bold green"),
    )
    return Group(rates, nsqds)


def _batches(batches: list[Batch]) -> "RenderableType":
    from rich.text import Text

    if not batches:
        return Text("Spark starts; the first batch takes a few seconds", style="dim")
    shown, last = batches[-_BATCHES_MAX:], batches[-1]
    longest = max(batch.duration_ms for batch in shown)
    bars = "".join(_BARS[(len(_BARS) - 1) * batch.duration_ms // max(longest, 1)] for batch in shown)
    return Text.assemble(
        (bars, "cyan"),
        f"\nbatch {last.number}: {last.rows:,} rows in {last.duration_ms:,} ms; the longest of these {longest:,} ms",
    )


def _windows(books: Books) -> "Table":
    rows = [(time.strftime("%H:%M:%S", time.localtime(start)), cell) for start, cell in books.windows(_WINDOWS_MAX)]
    return _results("window", rows)


def _countries(books: Books) -> "Table":
    return _results("country", books.countries()[:_WINDOWS_MAX])


def _results(name: str, rows: list[tuple[str, Cell]]) -> "Table":
    table = _table(name, "events", "orders", "revenue")
    for first, cell in rows:
        table.add_row(first, f"{cell.events:,}", f"{cell.orders:,}", f"{cell.revenue:,.0f}")
    return table


def _table(name: str, *numbers: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, expand=True, header_style="dim")
    table.add_column(name, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
