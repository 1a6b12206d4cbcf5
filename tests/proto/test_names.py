"""Names: nsqd's rule, and how its error texts quote what breaks it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.proto.names import decode_name, is_ephemeral, is_valid_name, quote

ALLOWED = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_"


def plain_rule(name: str) -> bool:
    stem = name.removesuffix("#ephemeral")
    return 1 <= len(name) <= 64 and stem != "" and all(character in ALLOWED for character in stem)


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("a", True),
        (".", True),
        ("Orders_2024-01.eu", True),
        ("a#ephemeral", True),
        ("a" * 64, True),
        ("a" * 54 + "#ephemeral", True),
        ("", False),
        ("#ephemeral", False),
        ("a#ephemeral#ephemeral", False),
        ("a#other", False),
        ("a" * 65, False),
        ("a" * 55 + "#ephemeral", False),
        ("a b", False),
        ("a\n", False),
        ("größe", False),
        ("a*", False),
    ],
)
def test_known_names(name: str, valid: bool) -> None:
    assert is_valid_name(name) is valid
    assert plain_rule(name) is valid


@given(st.text(alphabet=ALLOWED + "#ephmral \nü", max_size=70) | st.from_regex(r"\A[.a-z]{1,66}(#ephemeral)?\Z"))
def test_agrees_with_the_plain_rule(name: str) -> None:
    assert is_valid_name(name) is plain_rule(name)
    assert decode_name(name.encode()) == (name if plain_rule(name) else None)


@given(st.binary(max_size=70))
def test_any_bytes_give_a_valid_name_or_none(name: bytes) -> None:
    decoded = decode_name(name)
    assert decoded is None or (plain_rule(decoded) and decoded.encode() == name)


def test_ephemeral_is_told_by_the_suffix() -> None:
    assert is_ephemeral("a#ephemeral")
    assert not is_ephemeral("ephemeral")


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        (b"", '""'),
        (b"a b", '"a b"'),
        (b'a"b\\c', '"a\\"b\\\\c"'),
        (b"\a\b\f\n\r\t\v", '"\\a\\b\\f\\n\\r\\t\\v"'),
        (b"\x00\x1f\x7f", '"\\x00\\x1f\\x7f"'),
        (b"\xff\x80a\xc3", '"\\xff\\x80a\\xc3"'),
        ("größe".encode(), '"größe"'),
        ("\u2028\u00ad".encode(), '"\\u2028\\u00ad"'),
        ("\U000e0001".encode(), '"\\U000e0001"'),
    ],
)
def test_quotes_like_nsqd(name: bytes, quoted: str) -> None:
    assert quote(name) == quoted
