"""Print docs/options.md, which is made from the table that the connector itself reads.

python tools/option_tables.py > docs/options.md
"""

from collections.abc import Iterable

from pyspark_nsq.connector.option_table import Option, Side, options_of

HEAD = """# Options of the source and the sink

Names are case-insensitive, as everywhere in Spark. All options are checked when `load()` or `save()` is called, and
those of a streaming sink at `start()`: an unknown one is refused with the nearest name, a bad value with what is
allowed. With `.schema(...)` Spark asks a source for nothing at `load()`, so that its options are checked when the query
starts, and the error is the query's. Durations are written like `30s` or `500ms`, or as a number of milliseconds; sizes
like `64m`, or as a number of bytes. A secret appears in no error, log, offset or plan of the connector.

This page is made from the table in `connector/option_table.py`.
"""


def page() -> str:
    source, sink = options_of(Side.SOURCE), options_of(Side.SINK)
    return f"{HEAD}\n## Source\n\n{table(source)}\n## Sink\n\n{table(sink)}"


def table(options: Iterable[Option]) -> str:
    lines = ["| option | value | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*lines, *map(row, options)]) + "\n"


def row(option: Option) -> str:
    default = "" if option.default is None else f"`{option.default}`"
    return f"| `{option.name}` | {cell(option.kind.allowed)} | {default} | {cell(option.meaning)} |"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
