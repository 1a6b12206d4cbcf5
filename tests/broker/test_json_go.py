"""JSON as Go writes and reads it."""

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.broker.json_go import DecodeError, Int32, decode, dumps, number


@dataclass
class Item:
    name: str = ""
    ports: list[int] = field(default_factory=list)


@dataclass
class Thing:
    text: str = "default"
    whole: int = 7
    small: Int32 = 7
    yes: bool = True
    words: list[str] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    item: Item = field(default_factory=Item)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": 1, "a": [True, None, ()]}, b'{"b":1,"a":[true,null,[]]}'),
        ("<&>", b'"\\u003c\\u0026\\u003e"'),
        ("\u2028\u2029", b'"\\u2028\\u2029"'),
        ("\u00e9\U0001f600", '"\u00e9\U0001f600"'.encode()),
        ('\x00\x1f\n"\\', b'"\\u0000\\u001f\\n\\"\\\\"'),
        ("\x7f", b'"\x7f"'),
        (b"a\xff\xe2\x82b".decode("utf-8", "surrogateescape"), b'"a\\ufffd\\ufffd\\ufffdb"'),
        (number(1.0), b"1"),
        (number(0.99), b"0.99"),
    ],
)
def test_writes(value: Any, expected: bytes) -> None:
    assert dumps(value) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{}", Thing()),
        (b" null ", Thing()),
        (b'{"TEXT":"a","Whole":1,"sMall":2,"yes":false}', Thing("a", 1, 2, False)),
        ('{"te\u0131t":"a"}'.encode(), Thing()),
        ('{"\u017fmall":3}'.encode(), Thing(small=3)),
        (b'{"whole":1,"WHOLE":2,"whole":3}', Thing(whole=3)),
        (b'{"whole":1,"whole":null}', Thing(whole=1)),
        (b'{"whole":null,"yes":null,"words":null,"items":null}', Thing()),
        (b'{"unknown":{"a":[1.5,1e999,{}]},"text":"a"}', Thing("a")),
        (b'{"whole":-9223372036854775808}', Thing(whole=-(2**63))),
        (b'{"whole":-0}', Thing(whole=0)),
        (b'{"small":2147483647}', Thing(small=2**31 - 1)),
        (b'{"text":"a\xffb\\ud800"}', Thing("a\ufffdb\ufffd")),
        (b'{"text":"\\ud83d\\ude00\\u0000"}', Thing("\U0001f600\0")),
        (b'{"words":["a",null]}', Thing(words=["a", ""])),
        (
            b'{"items":[{"Name":"a","ports":[1]},null],"item":{"name":"b"}}',
            Thing(items=[Item("a", [1]), Item()], item=Item("b")),
        ),
        (b'{"x":' + b"1" * 5000 + b"}", Thing()),
    ],
)
def test_reads(body: bytes, expected: Thing) -> None:
    assert decode(Thing, body) == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "no JSON"),
        (b"{} x", "no JSON"),
        (b"{}{}", "no JSON"),
        (b'{"a":1,}', "no JSON"),
        (b"{'a':1}", "no JSON"),
        (b'{"text":"\x01"}', "no JSON"),
        (b'{"whole":NaN}', "no JSON"),
        (b'{"whole":01}', "no JSON"),
        (b"\xef\xbb\xbf{}", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "the value is an array, not an object"),
        (b"5", "the value is the number 5, not an object"),
        (b'{"whole":1.0}', "whole is a fraction"),
        (b'{"whole":1e3}', "whole is a fraction"),
        (b'{"whole":"1"}', "whole is a string, not a whole number"),
        (b'{"whole":true}', "whole is a boolean, not a whole number"),
        (b'{"whole":9223372036854775808}', "whole is the number 9223372036854775808"),
        (b'{"small":2147483648}', "small is the number 2147483648, not a whole number of 32 bits"),
        (b'{"yes":1}', "yes is the number 1, not a boolean"),
        (b'{"text":5}', "text is the number 5, not a string"),
        (b'{"text":{}}', "text is an object, not a string"),
        (b'{"words":{}}', "words is an object, not an array"),
        (b'{"words":"a"}', "words is a string, not an array"),
        (b'{"items":[{"name":"a"},{"name":5}]}', r"items\[1\].name is the number 5, not a string"),
        (b'{"item":[]}', "item is an array, not an object"),
    ],
)
def test_refuses(body: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        decode(Thing, body)


def test_lists_at_the_top() -> None:
    assert decode(list[str], b'["a","b"]') == ["a", "b"]
    assert decode(list[str], b"null") == []
    with pytest.raises(DecodeError):
        decode(list[str], b'{"a":1}')


def plain_twin(pairs: list[tuple[str, Any]]) -> Thing | None:
    """What :func:`decode` does with an object of these pairs, said one step at a time; None for an error."""
    thing = Thing()
    for key, value in pairs:
        name = key.lower()
        if value is None or name not in ("text", "whole", "yes"):
            continue
        wanted = {"text": str, "whole": int, "yes": bool}[name]
        if type(value) is not wanted or (wanted is int and not -(2**63) <= value < 2**63):
            return None
        setattr(thing, name, value)
    return thing


KEYS = st.sampled_from(["text", "Text", "whole", "WHOLE", "yes", "yEs", "other"])
VALUES = st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False) | st.text()


@given(st.lists(st.tuples(KEYS, VALUES), max_size=6))
def test_agrees_with_a_plain_twin(pairs: list[tuple[str, Any]]) -> None:
    body = (
        "{"
        + ",".join(
            f"{json.dumps(key)}:{json.dumps(value, allow_nan=False)}"
            for key, value in pairs
            if value not in (float("inf"), float("-inf"))
        )
        + "}"
    )
    kept = [pair for pair in pairs if pair[1] not in (float("inf"), float("-inf"))]
    expected = plain_twin(kept)
    if expected is None:
        with pytest.raises(DecodeError):
            decode(Thing, body.encode())
    else:
        assert decode(Thing, body.encode()) == expected


@given(st.binary(max_size=40) | st.text(alphabet='{}[]",:ntrue0123.-e\\u ', max_size=40).map(str.encode))
def test_nothing_but_a_decode_error_escapes(body: bytes) -> None:
    with suppress(DecodeError):
        assert isinstance(decode(Thing, body), Thing)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_what_is_written_any_parser_reads(value: Any) -> None:
    assert json.loads(dumps(value)) == value
