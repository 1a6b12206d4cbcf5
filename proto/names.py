"""Names of topics and channels, and how error texts quote them."""

import re
from functools import lru_cache

NAME_LENGTH_MAX = 64
EPHEMERAL_SUFFIX = "#ephemeral"

_NAME = re.compile(rb"[.a-zA-Z0-9_-]+(?:#ephemeral)?")


@lru_cache(maxsize=4096)
def decode_name(name: bytes) -> str | None:
    """The topic or channel name that these bytes spell, or None where they spell none."""
    if len(name) <= NAME_LENGTH_MAX and _NAME.fullmatch(name):
        return name.decode("ascii")
    return None


def is_valid_name(name: str) -> bool:
    """Whether nsqd accepts this as the name of a topic or a channel."""
    try:
        return decode_name(name.encode("ascii")) is not None
    except UnicodeEncodeError:
        return False


def is_ephemeral(name: str) -> bool:
    """Whether the topic or channel of this name lives in memory only and ends with its last user."""
    return name.endswith(EPHEMERAL_SUFFIX)


_QUOTED = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def quote(name: bytes) -> str:
    """The name in double quotes, what cannot be printed escaped, as nsqd's error texts show it."""
    # Bytes that are no UTF-8 come out as lone surrogates U+DC80..U+DCFF, one for each byte.
    return '"' + "".join(map(_quote_character, name.decode("utf-8", "surrogateescape"))) + '"'


def _quote_character(character: str) -> str:
    if character in _QUOTED:
        return _QUOTED[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if character.isprintable():
        return character
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
