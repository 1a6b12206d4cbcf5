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

Which columns the source gives and the sink takes is told [below](#the-sources-columns).

This page is made by `tools/option_tables.py`, from the table in `connector/option_table.py`.
"""

COLUMNS = """
## The source's columns

| column | type | what it is |
|---|---|---|
| `body` | BINARY, or STRING where the schema says so | what was published |
| `id` | STRING | NSQ's id of the message, 16 characters. Every copy that a producer published has its own |
| `timestamp` | TIMESTAMP | when nsqd took it |
| `attempts` | INT | how often nsqd has delivered it, from 1 on |
| `topic` | STRING | where it was published |
| `nsqd` | STRING | host and port of the nsqd that held it |

All of them without `.schema(...)`; with it those that it names, in its order. Columns that are not asked for are not
fetched either. None is ever null but a `body` of type STRING with `invalidUtf8=null`.

```python
clicks = (
    spark.readStream.format("nsq")
    .schema("timestamp TIMESTAMP, body STRING")
    .options(lookupdHttpAddresses="127.0.0.1:4161", topic="clicks", channel="spark")
    .load()
)
assert clicks.dtypes == [("timestamp", "timestamp"), ("body", "string")]
```

What goes to the source's `deadLetterTopic` is the body as it was.

## The sink's columns

| column | type | what it is | null |
|---|---|---|---|
| `body` or `value` | BINARY or STRING | what is published, text as UTF-8: either, not both | is invalid, as is empty |
| `topic` | STRING | where to. Required without the option `topic`, and ignored with it | is invalid |
| `defer_ms` | TINYINT to BIGINT | nsqd delivers it so many ms later, at most `maxReqTimeout` | is 0 |

Names are case-insensitive. Another column is refused, if `ignoreUnknownColumns` is not set. A row that is invalid fails
the task, is left out, or is published as a letter to the `deadLetterTopic`, as `onInvalid` says.

```python
rows = spark.createDataFrame(
    [("at once", "clicks", None), ("in a minute", "clicks", 60_000), ("never", "clicks", -1)],
    "value STRING, topic STRING, defer_ms INT",
)
aside = {"onInvalid": "deadLetterTopic", "deadLetterTopic": "clicks-invalid"}
rows.write.format("nsq").options(lookupdHttpAddresses="127.0.0.1:4161", **aside).mode("append").save()
assert nsq.stats("clicks").messages == 2
```

```sh
nsq tail clicks-invalid --channel look -n 1 --timeout 30s | grep '"body": "bmV2ZXI="'
```

A letter is a JSON object:

```json
{"reason": "defer_ms is not in 0..maxReqTimeout", "size": 5, "topic": "clicks", "defer_ms": -1, "body": "bmV2ZXI="}
```

`reason` is meant for people. `size` counts the bytes of the body, and is null where the body is. `topic` is where the
row should have gone, cut to 64 characters, or null. `defer_ms` is 0 where the row had none. `body` is in base64; it is
not there where it is null, or where the letter would be larger than `maxMsgSize` with it.
"""


def page() -> str:
    source, sink = options_of(Side.SOURCE), options_of(Side.SINK)
    return f"{HEAD}\n## Source\n\n{table(source)}\n## Sink\n\n{table(sink)}{COLUMNS}"


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
