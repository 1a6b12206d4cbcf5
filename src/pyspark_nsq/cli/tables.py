"""Tables for people, in plain text."""

from collections.abc import Sequence


def number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]], names: int) -> str:
    """Columns as wide as their widest cell. The first ``names`` of them hold names, the others numbers."""
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if position < names else cell.rjust(width)
            for position, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
