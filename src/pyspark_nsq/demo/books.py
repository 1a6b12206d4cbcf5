"""What became of the events: the query's results, added up, against what was published."""

import json
from dataclasses import dataclass
from typing import Any

from pyspark_nsq.demo.shop import checksum


@dataclass(frozen=True)
class Cell:
    """What the query says about one window and country."""

    events: int
    number_sum: int
    orders: int
    revenue: float


NOTHING = Cell(0, 0, 0, 0.0)


def add(cells: list[Cell]) -> Cell:
    return Cell(
        sum(cell.events for cell in cells),
        sum(cell.number_sum for cell in cells),
        sum(cell.orders for cell in cells),
        sum(cell.revenue for cell in cells),
    )


class Books:
    """The last word of the query on each window and country. Updates only grow, so their order does not matter."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, str], Cell] = {}

    def enter(self, body: bytes) -> None:
        """A result as the query published it."""
        row: dict[str, Any] = json.loads(body)
        place = (int(row["start"]), str(row["country"]))
        cell = Cell(row["events"], row["number_sum"], row["orders"], row.get("revenue") or 0.0)
        if cell.events >= self.cells.get(place, NOTHING).events:
            self.cells[place] = cell

    @property
    def total(self) -> Cell:
        return add(list(self.cells.values()))

    def windows(self, count_max: int) -> list[tuple[int, Cell]]:
        """The latest windows, all countries together, newest first."""
        starts = sorted({start for start, _ in self.cells}, reverse=True)[:count_max]
        return [(start, add([cell for place, cell in self.cells.items() if place[0] == start])) for start in starts]

    def countries(self) -> list[tuple[str, Cell]]:
        """All windows together, by revenue."""
        names = {country for _, country in self.cells}
        sums = [(name, add([cell for place, cell in self.cells.items() if place[1] == name])) for name in names]
        return sorted(sums, key=lambda each: each[1].revenue, reverse=True)

    def verdict(self, published: int) -> str | None:
        """None if every published event was counted exactly once, otherwise what is wrong."""
        total = self.total
        if total.events != published:
            what = "missing" if total.events < published else "too many"
            return f"{published} events were published, {total.events} counted: {abs(published - total.events)} {what}"
        if total.number_sum != checksum(published):
            return f"{published} events were published and counted, but not the same ones: their numbers add up wrong"
        return None if published else "Nothing was published, so nothing was counted."
