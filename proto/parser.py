"""What nsqd receives: bytes as they come, to commands, runs of like commands as one value.

The parser checks what can be checked without the state of a connection. Where nsqd looks at that state first, the
session does so before it believes a ``Malformed``: that is why it tells the command's word.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from pyspark_nsq.proto.frames import MESSAGE_ID_SIZE
from pyspark_nsq.proto.names import NAME_LENGTH_MAX, decode_name, quote
from pyspark_nsq.proto.pieces import append_piece
from pyspark_nsq.proto.uniform import SIZE_FIELD_SIZE, UniformBodies, is_uniform

# A line with its line feed; nsqd reads commands through a buffer of this size.
LINE_SIZE_MAX: Final = 16 * 1024

_SIZE = Struct(">i")
_MPUB_HEAD = Struct(">iii")  # the size of the body, how many messages there are, the size of the first
# From so many bodies on, all of one size, taking them in one step is quicker.
_UNIFORM_COUNT_MIN = 8
# And so many bytes of them stay together. Less is better taken apart: the broker joins it with what comes next.
_TOGETHER_SIZE_MIN = 16 * 1024
_NS_PER_MS = 1_000_000
# A publisher repeats its line: looking it up is quicker than reading it. So many different ones are kept.
_LINES_KEPT = 16
_KEPT_LINE_SIZE_MAX = len(b"MPUB \r\n") + NAME_LENGTH_MAX


class Limits(NamedTuple):
    """What one nsqd allows; the defaults are nsqd's."""

    msg_size_max: int = 1024 * 1024
    body_size_max: int = 5 * 1024 * 1024
    rdy_count_max: int = 2500
    req_timeout_ms_max: int = 3_600_000


class Identify(NamedTuple):
    body: bytes


class Auth(NamedTuple):
    secret: bytes

    def __repr__(self) -> str:
        return f"Auth(<{len(self.secret)} bytes>)"


class Subscribe(NamedTuple):
    topic: str
    channel: str


class Publish(NamedTuple):
    """Bodies for one topic: an MPUB, a DPUB, or a run of PUBs, of which each is answered."""

    word: bytes
    topic: str
    bodies: list[bytes] | UniformBodies
    command_count: int
    defer_ms: int


class Ready(NamedTuple):
    ready_count: int


class Finish(NamedTuple):
    ids: bytes


class Touch(NamedTuple):
    ids: bytes


class Requeue(NamedTuple):
    ids: bytes
    delay_ms: int


class Close(NamedTuple):
    pass


class Nop(NamedTuple):
    pass


class Malformed(NamedTuple):
    """A command that breaks the protocol. Without a code nsqd closes the connection and says nothing."""

    word: bytes
    code: str
    text: str
    params: Sequence[bytes] = ()

    @property
    def error(self) -> bytes:
        """The data of the error frame: bytes that were no UTF-8 go back as they came."""
        return f"{self.code} {self.text}".encode("utf-8", "surrogateescape")


Command = Identify | Auth | Subscribe | Publish | Ready | Finish | Touch | Requeue | Close | Nop | Malformed


class Pending(NamedTuple):
    """A command whose line is here and whose body is not, or not all of it."""

    word: bytes
    params: list[bytes]


class _MalformedError(Exception):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class _IncompleteError(Exception):
    """The command's body is not all here; it may be where the buffer reaches ``end``."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.end = end


# A handler gets the buffer, the line's words, where the line starts and where what follows it does. It gives the
# command, and where the next one starts. A publisher is the same with the topic that the words name.
_Handler = Callable[[bytes, list[bytes], int, int], tuple[Command, int]]
_Publisher = Callable[[bytes, str, int, int], tuple[Command, int]]


class CommandParser:
    """Incremental: ``feed`` takes any bytes and gives the commands that they complete.

    It stops behind an IDENTIFY, an AUTH and a ``Malformed``, as what follows means something else after an upgrade
    or nothing at all: ``feed(b"")`` goes on, ``discard()`` forgets the rest.
    """

    def __init__(self, limits: Limits) -> None:
        self.pending: Pending | None = None
        self._limits = limits
        self._chunks: list[bytes] = []
        self._buffered_size = 0
        self._needed_size = 0
        self._known_lines: dict[bytes, tuple[_Publisher, str]] = {}
        self._handlers: dict[bytes, _Handler] = {
            b"PUB": self._pub,
            b"MPUB": self._mpub,
            b"DPUB": self._dpub,
            b"FIN": self._fin,
            b"TOUCH": self._touch,
            b"REQ": self._req,
            b"RDY": self._rdy,
            b"NOP": lambda _buffer, _words, _start, end: (Nop(), end),
            b"CLS": lambda _buffer, _words, _start, end: (Close(), end),
            b"SUB": self._sub,
            b"IDENTIFY": self._identify,
            b"AUTH": self._auth,
        }

    def feed(self, data: bytes) -> list[Command]:
        """The commands that ``data`` completes."""
        buffer = data
        if self._chunks:
            append_piece(self._chunks, data)
            self._buffered_size += len(data)
            # A large body that comes in small pieces is joined once, when it is whole.
            if self._buffered_size < self._needed_size:
                return []
            buffer = b"".join(self._chunks)
            self.discard()
        commands, consumed = self._parse(buffer)
        if consumed < len(buffer):
            self._chunks.append(buffer[consumed:])
            self._buffered_size = len(buffer) - consumed
        return commands

    def discard(self) -> None:
        """Forget what was fed and has not become a command."""
        self.pending = None
        self._chunks.clear()
        self._buffered_size = 0
        self._needed_size = 0

    def eof(self) -> Malformed | None:
        """What nsqd says of a command whose body the end of the stream, or a deadline, has cut off."""
        if self.pending is None:
            return None
        word, params = self.pending
        _, _, body = b"".join(self._chunks).partition(b"\n")
        code, what = _BODY_ERRORS[word]
        if len(body) < _SIZE.size:
            return Malformed(word, code, f"{word.decode()} failed to read {what} size", params)
        if word == b"MPUB":
            # nsqd reads message by message, and so names the one that is cut.
            try:
                _split_mpub(body, _SIZE.size, len(body), self._limits)
            except _MalformedError as error:
                return Malformed(word, error.code, error.text, params)
        return Malformed(word, code, f"{word.decode()} failed to read {what}", params)

    def _parse(self, buffer: bytes) -> tuple[list[Command], int]:
        """The commands of the buffer, and how much of it they take."""
        commands: list[Command] = []
        start = 0
        while (line_feed := buffer.find(b"\n", start, start + LINE_SIZE_MAX)) >= 0:
            end = line_feed + 1
            known = self._known_lines.get(buffer[start:end])
            if known is not None:
                publisher, topic = known
                try:
                    command, start = publisher(buffer, topic, start, end)
                except (_IncompleteError, _MalformedError):
                    pass  # to be told with the words
                else:
                    commands.append(command)
                    continue
            words = buffer[start : line_feed - buffer.startswith(b"\r", line_feed - 1, line_feed)].split(b" ")
            try:
                handler = self._handlers.get(words[0])
                if handler is None:
                    raise _MalformedError("E_INVALID", f"invalid command {_text(words[0])}")
                command, start = handler(buffer, words, start, end)
            except _IncompleteError as incomplete:
                self.pending = Pending(words[0], words[1:])
                self._needed_size = incomplete.end - start
                return commands, start
            except _MalformedError as error:
                commands.append(Malformed(words[0], error.code, error.text, words[1:]))
                return commands, end
            commands.append(command)
            if isinstance(command, Identify | Auth):
                return commands, start
        if len(buffer) - start >= LINE_SIZE_MAX:
            commands.append(Malformed(b"", "", f"a line of more than {LINE_SIZE_MAX} bytes"))
            start = len(buffer)
        return commands, start

    def _pub(self, buffer: bytes, words: list[bytes], start: int, body: int) -> tuple[Command, int]:
        topic = _topic("PUB", words, 2)
        self._keep_line(buffer[start:body], self._pub_to, topic)
        return self._pub_to(buffer, topic, start, body)

    def _pub_to(self, buffer: bytes, topic: str, start: int, body: int) -> tuple[Command, int]:
        end = self._message_end("PUB", buffer, body)
        bodies = [buffer[body + _SIZE.size : end]]
        if end == len(buffer):
            return Publish(b"PUB", topic, bodies, 1, 0), end
        line = buffer[start:body]
        while buffer.startswith(line, end):
            body = end + len(line) + _SIZE.size
            if body > len(buffer):
                break
            (size,) = _SIZE.unpack_from(buffer, body - _SIZE.size)
            if not 0 < size <= self._limits.msg_size_max or body + size > len(buffer):
                break  # wrong or not whole: it is read again as a command of its own
            end = body + size
            bodies.append(buffer[body:end])
        return Publish(b"PUB", topic, bodies, len(bodies), 0), end

    def _keep_line(self, line: bytes, publisher: _Publisher, topic: str) -> None:
        if len(line) <= _KEPT_LINE_SIZE_MAX:
            if len(self._known_lines) >= _LINES_KEPT:
                self._known_lines.clear()
            self._known_lines[line] = (publisher, topic)

    def _dpub(self, buffer: bytes, words: list[bytes], _start: int, body: int) -> tuple[Command, int]:
        topic = _topic("DPUB", words, 3)
        defer_ms = _number(words[2], "DPUB could not parse timeout")
        max_ms = self._limits.req_timeout_ms_max
        defer_ns = _as_int64(defer_ms * _NS_PER_MS)
        if not 0 <= defer_ns <= max_ms * _NS_PER_MS:
            raise _MalformedError("E_INVALID", f"DPUB timeout {defer_ms} out of range 0-{max_ms}")
        end = self._message_end("DPUB", buffer, body)
        return Publish(b"DPUB", topic, [buffer[body + _SIZE.size : end]], 1, defer_ns // _NS_PER_MS), end

    def _mpub(self, buffer: bytes, words: list[bytes], start: int, body: int) -> tuple[Command, int]:
        topic = _topic("MPUB", words, 2, "E_BAD_TOPIC ")
        self._keep_line(buffer[start:body], self._mpub_to, topic)
        return self._mpub_to(buffer, topic, start, body)

    def _mpub_to(self, buffer: bytes, topic: str, _start: int, body: int) -> tuple[Command, int]:
        bodies, end = self._uniform_messages(buffer, body)
        if not bodies:
            end = _body_end(buffer, body)
            size = end - body - _SIZE.size
            if size <= 0:
                raise _MalformedError("E_BAD_BODY", f"MPUB invalid body size {size}")
            if size > self._limits.body_size_max:
                raise _MalformedError("E_BAD_BODY", f"MPUB body too big {size} > {self._limits.body_size_max}")
            _check_whole(buffer, end)
            bodies = _split_mpub(buffer, body + _SIZE.size, end, self._limits)
        return Publish(b"MPUB", topic, bodies, 1, 0), end

    def _uniform_messages(self, buffer: bytes, body: int) -> tuple[list[bytes] | UniformBodies, int]:
        """The messages of an MPUB that has but one, or many of one size, and its end. Nothing where they are others,
        wrong, or not whole."""
        start = body + _MPUB_HEAD.size
        if start < len(buffer):
            size, count, message_size = _MPUB_HEAD.unpack_from(buffer, body)
            end = body + _SIZE.size + size
            limits = self._limits
            fits = end <= len(buffer) and size <= limits.body_size_max and 0 < message_size <= limits.msg_size_max
            if fits and size == _SIZE.size + count * (SIZE_FIELD_SIZE + message_size):
                if count == 1:
                    return [buffer[start:end]], end
                if count >= _UNIFORM_COUNT_MIN:
                    return _take_uniform(buffer, start - SIZE_FIELD_SIZE, end, count, message_size), end
        return [], body

    def _message_end(self, word: str, buffer: bytes, body: int) -> int:
        start = body + _SIZE.size
        if start > len(buffer):
            raise _IncompleteError(start)
        (size,) = _SIZE.unpack_from(buffer, body)
        if size <= 0:
            raise _MalformedError("E_BAD_MESSAGE", f"{word} invalid message body size {size}")
        if size > self._limits.msg_size_max:
            raise _MalformedError("E_BAD_MESSAGE", f"{word} message too big {size} > {self._limits.msg_size_max}")
        end = start + int(size)
        if end > len(buffer):
            raise _IncompleteError(end)
        return end

    def _identify(self, buffer: bytes, _words: list[bytes], _start: int, body: int) -> tuple[Command, int]:
        content, end = self._content("IDENTIFY", buffer, body)
        return Identify(content), end

    def _auth(self, buffer: bytes, words: list[bytes], _start: int, body: int) -> tuple[Command, int]:
        if len(words) != 1:
            raise _MalformedError("E_INVALID", "AUTH invalid number of parameters")
        content, end = self._content("AUTH", buffer, body)
        return Auth(content), end

    def _content(self, word: str, buffer: bytes, body: int) -> tuple[bytes, int]:
        end = _body_end(buffer, body)
        size = end - body - _SIZE.size
        if size > self._limits.body_size_max:
            raise _MalformedError("E_BAD_BODY", f"{word} body too big {size} > {self._limits.body_size_max}")
        if size <= 0:
            raise _MalformedError("E_BAD_BODY", f"{word} invalid body size {size}")
        _check_whole(buffer, end)
        return buffer[body + _SIZE.size : end], end

    def _fin(self, buffer: bytes, words: list[bytes], start: int, end: int) -> tuple[Command, int]:
        ids, end = _id_run("FIN", buffer, words, start, end)
        return Finish(ids), end

    def _touch(self, buffer: bytes, words: list[bytes], start: int, end: int) -> tuple[Command, int]:
        ids, end = _id_run("TOUCH", buffer, words, start, end)
        return Touch(ids), end

    def _req(self, buffer: bytes, words: list[bytes], start: int, end: int) -> tuple[Command, int]:
        _check_words("REQ", words, 3, "params")
        _check_id(words[1])
        delay_ns = _as_int64(_number(words[2], "REQ could not parse timeout") * _NS_PER_MS)
        delay_ms = min(max(delay_ns // _NS_PER_MS, 0), self._limits.req_timeout_ms_max)
        ids, end = _id_run("REQ", buffer, words, start, end)
        return Requeue(ids, delay_ms), end

    def _rdy(self, _buffer: bytes, words: list[bytes], _start: int, end: int) -> tuple[Command, int]:
        count = _as_int64(_number(words[1], "RDY could not parse count")) if len(words) > 1 else 1
        if not 0 <= count <= self._limits.rdy_count_max:
            raise _MalformedError("E_INVALID", f"RDY count {count} out of range 0-{self._limits.rdy_count_max}")
        return Ready(count), end

    def _sub(self, _buffer: bytes, words: list[bytes], _start: int, end: int) -> tuple[Command, int]:
        topic = _topic("SUB", words, 3)
        channel = decode_name(words[2])
        if channel is None:
            raise _MalformedError("E_BAD_CHANNEL", f"SUB channel name {quote(words[2])} is not valid")
        return Subscribe(topic, channel), end


# The code, and what the text calls the body, where a body is cut off.
_BODY_ERRORS: Final = {
    b"PUB": ("E_BAD_MESSAGE", "message body"),
    b"DPUB": ("E_BAD_MESSAGE", "message body"),
    b"MPUB": ("E_BAD_BODY", "body"),
    b"IDENTIFY": ("E_BAD_BODY", "body"),
    b"AUTH": ("E_BAD_BODY", "body"),
}


def _topic(word: str, words: list[bytes], count_min: int, text_prefix: str = "") -> str:
    _check_words(word, words, count_min, "parameters")
    topic = decode_name(words[1])
    if topic is None:
        raise _MalformedError("E_BAD_TOPIC", f"{text_prefix}{word} topic name {quote(words[1])} is not valid")
    return topic


def _check_words(word: str, words: list[bytes], count_min: int, what: str) -> None:
    if len(words) < count_min:
        raise _MalformedError("E_INVALID", f"{word} insufficient number of {what}")


def _body_end(buffer: bytes, body: int) -> int:
    """Where the body that starts with its size at ``body`` says that it ends."""
    start = body + _SIZE.size
    if start > len(buffer):
        raise _IncompleteError(start)
    (size,) = _SIZE.unpack_from(buffer, body)
    return start + int(size)


def _check_whole(buffer: bytes, end: int) -> None:
    if end > len(buffer):
        raise _IncompleteError(end)


def _split_mpub(buffer: bytes, start: int, end: int, limits: Limits) -> list[bytes]:
    """The bodies of the MPUB payload that stands in the buffer from ``start`` to ``end``."""
    if start + _SIZE.size > end:
        raise _MalformedError("E_BAD_BODY", "MPUB failed to read message count")
    (count,) = _SIZE.unpack_from(buffer, start)
    if not 0 < count <= (limits.body_size_max - 4) // 5:
        raise _MalformedError("E_BAD_BODY", f"MPUB invalid message count {count}")
    bodies: list[bytes] = []
    append, size_at, size_max = bodies.append, _SIZE.unpack_from, limits.msg_size_max
    start += _SIZE.size
    for index in range(count):
        body = start + 4
        if body > end:
            raise _MalformedError("E_BAD_MESSAGE", f"MPUB failed to read message({index}) body size")
        (size,) = size_at(buffer, start)
        start = body + size
        if not 0 < size <= size_max or start > end:
            raise _mpub_message_error(index, size, size_max)
        append(buffer[body:start])
    if start != end:
        raise _MalformedError("E_BAD_BODY", f"MPUB body has {end - start} bytes more than its {count} messages")
    return bodies


def _take_uniform(buffer: bytes, start: int, end: int, count: int, size: int) -> list[bytes] | UniformBodies:
    """So many messages, if each has this size; else nothing."""
    if end - start >= _TOGETHER_SIZE_MIN:
        return UniformBodies(buffer[start:end], count) if is_uniform(buffer, start, end, count) else []
    fields = _uniform_layout(count, size).unpack_from(buffer, start)
    return list(fields[1::2]) if fields[::2].count(size) == count else []


@lru_cache(maxsize=64)
def _uniform_layout(count: int, size: int) -> Struct:
    return Struct(">" + f"I{size}s" * count)


def _mpub_message_error(index: int, size: int, size_max: int) -> _MalformedError:
    if size <= 0:
        return _MalformedError("E_BAD_MESSAGE", f"MPUB invalid message({index}) body size {size}")
    if size > size_max:
        return _MalformedError("E_BAD_MESSAGE", f"MPUB message too big {size} > {size_max}")
    return _MalformedError("E_BAD_MESSAGE", "MPUB failed to read message body")


def _id_run(word: str, buffer: bytes, words: list[bytes], start: int, end: int) -> tuple[bytes, int]:
    """The id of this command and of all like it that follow at once, and where the run ends."""
    _check_words(word, words, 2, "params")
    _check_id(words[1])
    prefix_size = len(word) + 1
    prefix, suffix = buffer[start : start + prefix_size], buffer[start + prefix_size + MESSAGE_ID_SIZE : end]
    if not buffer.startswith(prefix, end):
        return words[1], end
    # Only with the first run: numpy takes longer to import than all the rest of a broker's start.
    from pyspark_nsq.proto.runs import decode_run

    more = decode_run(buffer, end, prefix, suffix)
    return words[1] + more, end + len(more) // MESSAGE_ID_SIZE * (end - start)


def _check_id(message_id: bytes) -> None:
    if len(message_id) != MESSAGE_ID_SIZE:
        raise _MalformedError("E_INVALID", "invalid message ID")


def _number(word: bytes, error: str) -> int:
    """A number as nsqd reads it: digits only, none of them is 0, and it wraps at 64 bits."""
    if word and not word.isdigit():
        raise _MalformedError("E_INVALID", f"{error} {_text(word)}")
    # Only the last 64 digits count: 10**64 is a multiple of 2**64. It bounds the work for a line full of digits.
    return int(word[-64:] or b"0") % 2**64


def _as_int64(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def _text(word: bytes) -> str:
    return word.decode("utf-8", "surrogateescape")
