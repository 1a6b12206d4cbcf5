"""The kinds of value an option can have: how a text becomes one, and what to say when it does not."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from pyspark_nsq.connector.settings import Address, HttpAddress, Secret
from pyspark_nsq.proto.names import NAME_LENGTH_MAX, is_valid_name

_Number = TypeVar("_Number", int, float)


class Kind(NamedTuple):
    """``parse`` raises ``ValueError`` or ``KeyError`` for what ``allowed`` does not describe."""

    allowed: str
    parse: Callable[[str], Any]
    is_secret: bool = False


_NAME_RULE: Final = (
    f"1 to {NAME_LENGTH_MAX} letters, digits, dots, underscores or hyphens (and #ephemeral at the end, where wanted)"
)


def _name(text: str) -> str:
    if not is_valid_name(text):
        raise ValueError
    return text


def _several(parse_one: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """A comma-separated list without repetitions, at least one."""

    def parse(text: str) -> tuple[Any, ...]:
        values = tuple(dict.fromkeys(parse_one(part.strip()) for part in text.split(",") if part.strip()))
        if not values:
            raise ValueError
        return values

    return parse


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError
    if not colon or not host or re.search(r"[\s/@?#]", host) or not re.fullmatch("[0-9]{1,5}", port):
        raise ValueError
    if not 1 <= int(port) <= 65535:
        raise ValueError
    return Address(host, int(port))


def _http_address(text: str) -> HttpAddress:
    scheme, mark, rest = text.rpartition("://")
    if (mark and scheme not in ("http", "https")) or not rest:
        raise ValueError
    return HttpAddress(_address(rest.removesuffix("/")), scheme == "https")


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _pattern(text: str) -> re.Pattern[str]:
    if not text:
        raise ValueError("it is empty")
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from error


def _text(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError
    return text


def _receivers(text: str) -> int | tuple[Address, ...] | None:
    """How many beside the driver, or where; None is on the executors."""
    if text.lower() == "executors":
        return None
    if ":" not in text:
        return _within(int(text) if re.fullmatch("[0-9]{1,3}", text) else 0, 1, RECEIVERS_MAX)
    addresses: tuple[Address, ...] = _several(_address)(text)
    return addresses


def _ports(text: str) -> range:
    match = re.fullmatch(r"([0-9]{1,5}) *(?:- *([0-9]{1,5}))?", text)
    if not match:
        raise ValueError
    low, high = int(match[1]), int(match[2] or match[1])
    if not 1 <= low <= high <= 65535:
        raise ValueError
    return range(low, high + 1)


def _host(text: str) -> str:
    if "/" in text:
        return str(ipaddress.ip_network(text))
    if not re.fullmatch(r"[0-9A-Za-z._:-]+", text):
        raise ValueError
    return text


RECEIVERS_MAX: Final = 64

NAME: Final = Kind(_NAME_RULE, _name)
NAMES: Final = Kind(f"names separated by commas, each {_NAME_RULE}", _several(_name))
ADDRESSES: Final = Kind("host:port, several separated by commas, IPv6 as [::1]:4150", _several(_address))
HTTP_ADDRESSES: Final = Kind(
    "host:port, http://host:port or https://host:port, several separated by commas", _several(_http_address)
)
RECEIVERS: Final = Kind(
    f"a whole number from 1 to {RECEIVERS_MAX}, executors, or host:port, several separated by commas", _receivers
)
PORTS: Final = Kind("a port, or a range of ports such as 7000-7099", _ports)
HOST: Final = Kind("an address, the name of a host, or a network such as 10.0.0.0/8", _host)
BOOLEAN: Final = Kind("true or false", _boolean)
PATTERN: Final = Kind("a regular expression, which has to match the whole name", _pattern)
TEXT: Final = Kind("a text without control characters, not empty", _text)
PATH: Final = Kind("the path of a file", _text)
SECRET: Final = Kind(TEXT.allowed, lambda text: Secret(_text(text)), is_secret=True)


def integer(low: int, high: int) -> Kind:
    """Whole numbers from ``low`` to ``high``."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
            raise ValueError
        return _within(int(text), low, high)

    return Kind(f"a whole number from {low} to {high}", parse)


def fraction(low: float, high: float) -> Kind:
    """Decimal numbers from ``low`` to ``high``."""

    def parse(text: str) -> float:
        if not re.fullmatch(r"[0-9]{0,9}\.?[0-9]{1,9}", text):
            raise ValueError
        return _within(float(text), low, high)

    return Kind(f"a number from {low} to {high}", parse)


def choice(*values: str) -> Kind:
    """One of these words, in whatever case."""
    by_lower_case = {value.lower(): value for value in values}
    return Kind(" or ".join(values), lambda text: by_lower_case[text.lower()])


_MILLISECONDS: Final[Mapping[str, int]] = {
    **dict.fromkeys(["", "ms", "millisecond", "milliseconds"], 1),
    **dict.fromkeys(["s", "second", "seconds"], 1000),
    **dict.fromkeys(["m", "min", "minute", "minutes"], 60_000),
    **dict.fromkeys(["h", "hour", "hours"], 3_600_000),
    **dict.fromkeys(["d", "day", "days"], 86_400_000),
}
_BYTES: Final[Mapping[str, int]] = {
    **dict.fromkeys(["", "b"], 1),
    **dict.fromkeys(["k", "kb"], 2**10),
    **dict.fromkeys(["m", "mb"], 2**20),
    **dict.fromkeys(["g", "gb"], 2**30),
}


def duration_ms(low_ms: int, high_ms: int) -> Kind:
    """Time spans with a unit, or in milliseconds without one."""
    allowed = f"a time span from {_with_unit(low_ms, _DURATION_UNITS)} to {_with_unit(high_ms, _DURATION_UNITS)}"
    return Kind(
        f"{allowed}, such as 500ms, 30s or 5m (a plain number counts milliseconds)",
        lambda text: _within(_scaled(text, _MILLISECONDS), low_ms, high_ms),
    )


def byte_size(low: int, high: int) -> Kind:
    """Sizes with a unit, or in bytes without one."""
    return Kind(
        f"a size from {_with_unit(low, _SIZE_UNITS)} to {_with_unit(high, _SIZE_UNITS)}, such as 64k or 512m",
        lambda text: _within(_scaled(text, _BYTES), low, high),
    )


_DURATION_UNITS: Final = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")]
_SIZE_UNITS: Final = [(2**30, "g"), (2**20, "m"), (2**10, "k"), (1, "")]


def _with_unit(number: int, units: list[tuple[int, str]]) -> str:
    """The number in the largest unit of which it is a multiple."""
    scale, unit = next((scale, unit) for scale, unit in units if (number % scale == 0 and number) or scale == 1)
    return f"{number // scale}{unit}"


def _scaled(text: str, scales: Mapping[str, int]) -> int:
    match = re.fullmatch(r"([0-9]{1,18}) *([a-z]*)", text.lower())
    if not match:
        raise ValueError
    return int(match[1]) * scales[match[2]]


def _within(number: _Number, low: _Number, high: _Number) -> _Number:
    if not low <= number <= high:
        raise ValueError
    return number
