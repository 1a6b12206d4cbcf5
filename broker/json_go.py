"""JSON as Go's encoding/json writes and reads it.

Writing: ``dumps({"version": "1.3.0", "topics": ["a", "b"]})`` gives the bytes Go's Marshal gives for a struct with
these fields in this order (a Go *map* has its keys sorted: sort them before). No spaces; ``<``, ``>``, ``&``, U+2028
and U+2029 escaped, all other text raw.

Reading: declare what is expected as a dataclass whose field names are the keys, and say which; absent keys keep the
field's default::

    @dataclass
    class Identify:
        client_id: str = ""
        sample_rate: Int32 = 0
        topics: list[str] = field(default_factory=list)

    identify = decode(Identify, body)       # DecodeError says what is wrong and where

The rules are those of Go's Unmarshal into a struct: keys match in any case, unknown keys are ignored, the last of
several equal keys wins, ``null`` leaves the default, any other wrong type is an error, a whole number may have neither
fraction nor exponent and must fit, nothing may follow the value. Fields may be str, bool, int (64 bits), Int32,
list[...] of these, or another such dataclass. ``decode(list[str], body)`` works too.
"""

import dataclasses
import json
import re
import typing
from typing import Annotated, Any, TypeVar

T = TypeVar("T")

Int32 = Annotated[int, 32]
"""A whole number of 32 bits; plain ``int`` has 64."""

_ESCAPED = re.compile("[<>&\u2028\u2029]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TOKEN_CHARS_MAX = 20  # the longest 64-bit number has 20 characters


class DecodeError(ValueError):
    """The bytes are no JSON, or not what was asked for."""


# Writing


def dumps(value: Any) -> bytes:
    """The JSON of dicts, lists, tuples, strings, numbers, booleans and None. Strings may hold what
    ``decode("utf-8", "surrogateescape")`` made of invalid bytes: it comes out as U+FFFD. Floats go through
    :func:`number` first where Go's form of them matters."""
    text = _ENCODER.encode(value)
    if _ESCAPED.search(text):
        text = _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub(r"\\ufffd", text).encode()


def number(value: float) -> int | float:
    """A float as Go writes it: ``1``, not ``1.0``."""
    return int(value) if value.is_integer() and abs(value) < 1e21 else value


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False)


# Reading


class _Object(list[tuple[str, Any]]):
    """An object's pairs in order, so that equal keys stay visible and arrays are told from objects."""


class _Fraction(str):
    """A number that is no whole one of 64 bits, as its text."""

    __slots__ = ()


def _whole_number(token: str) -> int | _Fraction:
    return int(token) if len(token) <= _TOKEN_CHARS_MAX else _Fraction(token)


def _no_constant(token: str) -> Any:
    raise DecodeError(f"{token} is no JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_Object,
    parse_int=_whole_number,
    parse_float=_Fraction,
    parse_constant=_no_constant,
)


def decode(expected: type[T], body: bytes | bytearray | memoryview) -> T:
    """The value of ``expected`` type that ``body`` holds; DecodeError if there is none."""
    text = str(body, "utf-8", "surrogateescape")
    try:
        parsed = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"no JSON: {error or 'nested too deep'}") from None
    converted: T = _convert(expected, parsed, "")
    return converted


def _convert(expected: Any, value: Any, where: str) -> Any:
    if value is None:
        return _zero(expected)
    if expected is str and type(value) is str:
        return _SURROGATE.sub("\ufffd", value)
    if expected is bool and isinstance(value, bool):
        return value
    if expected in _BITS and type(value) is int and _fits(value, _BITS[expected]):
        return value
    if dataclasses.is_dataclass(expected) and isinstance(value, _Object):
        return _convert_object(expected, value, where)
    if typing.get_origin(expected) is list and type(value) is list:
        (item_type,) = typing.get_args(expected)
        return [_convert(item_type, item, f"{where}[{at}]") for at, item in enumerate(value)]
    raise DecodeError(f"{where or 'the value'} is {_json_type(value)}, not {_type_name(expected)}")


def _fits(value: int, bits: int) -> bool:
    return -(1 << bits - 1) <= value < 1 << bits - 1


def _convert_object(expected: Any, pairs: _Object, where: str) -> Any:
    fields = _fields(expected)
    values: dict[str, Any] = {}
    for key, value in pairs:
        name = key if key in fields else _fold(key)
        if value is not None and name in fields:
            values[name] = _convert(fields[name], value, f"{where}.{name}" if where else name)
    return expected(**values)


def _zero(expected: Any) -> Any:
    if expected is Int32:
        return 0
    return [] if typing.get_origin(expected) is list else expected()


_fields_of: dict[Any, dict[str, Any]] = {}


def _fields(expected: Any) -> dict[str, Any]:
    """Key to type, worked out once a class."""
    if expected not in _fields_of:
        _fields_of[expected] = typing.get_type_hints(expected, include_extras=True)
    return _fields_of[expected]


def _fold(key: str) -> str:
    """Go's folding of case: beside A to Z it knows the Kelvin sign, which lower() does too, and the long s."""
    return key.lower().replace("\u017f", "s")


def _json_type(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"the number {value}"
    return _JSON_TYPES[type(value)]


def _type_name(expected: Any) -> str:
    return "an array" if typing.get_origin(expected) is list else _EXPECTED_NAMES.get(expected, "an object")


_BITS = {int: 64, Int32: 32}
_JSON_TYPES = {
    _Object: "an object",
    list: "an array",
    bool: "a boolean",
    str: "a string",
    _Fraction: "a fraction or too large a number",
}
_EXPECTED_NAMES = {str: "a string", bool: "a boolean", int: "a whole number", Int32: "a whole number of 32 bits"}
