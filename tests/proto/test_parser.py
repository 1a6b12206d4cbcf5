"""The server's command parser, against a reader that takes one command at a time from whole bytes."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_nsq.proto import commands
from pyspark_nsq.proto.names import is_valid_name, quote
from pyspark_nsq.proto.parser import (
    LINE_SIZE_MAX,
    Auth,
    Close,
    Command,
    CommandParser,
    Finish,
    Identify,
    Limits,
    Malformed,
    Nop,
    Pending,
    Publish,
    Ready,
    Requeue,
    Subscribe,
    Touch,
)
from pyspark_nsq.proto.uniform import UniformBodies

LIMITS = Limits(msg_size_max=20, body_size_max=60, rdy_count_max=9, req_timeout_ms_max=5000)
ID = b"0123456789abcdef"


class BadError(Exception):
    pass


class PlainReader:
    """The specification: reads commands in nsqd's order of checks, all bytes at hand, no runs."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def read_all(self) -> list[Command]:
        commands: list[Command] = []
        while True:
            start = self.position
            line, found, _ = self.data[start:].partition(b"\n")
            if len(line) >= LINE_SIZE_MAX:
                return [*commands, Malformed(b"", "", f"a line of more than {LINE_SIZE_MAX} bytes")]
            if not found:
                return commands
            self.position += len(line) + 1
            words = line.removesuffix(b"\r").split(b" ")
            try:
                command = self.read(words)
            except EOFError:
                self.position = start
                return commands
            except BadError as bad:
                return [*commands, Malformed(words[0], *bad.args, words[1:])]
            commands.append(command)

    def take(self, size: int) -> bytes:
        if self.position + size > len(self.data):
            raise EOFError
        taken = self.data[self.position : self.position + size]
        self.position += size
        return taken

    def read(self, words: list[bytes]) -> Command:
        word = words[0].decode("utf-8", "surrogateescape")
        if word in ("NOP", "CLS"):
            return Nop() if word == "NOP" else Close()
        if word in ("PUB", "MPUB", "DPUB", "SUB"):
            return self.read_named(word, words)
        if word in ("FIN", "TOUCH", "REQ"):
            return self.read_id(word, words)
        if word == "RDY":
            count = signed(number(words[1], "RDY could not parse count")) if len(words) > 1 else 1
            if not 0 <= count <= LIMITS.rdy_count_max:
                raise BadError("E_INVALID", f"RDY count {count} out of range 0-{LIMITS.rdy_count_max}")
            return Ready(count)
        if word in ("IDENTIFY", "AUTH"):
            if word == "AUTH" and len(words) > 1:
                raise BadError("E_INVALID", "AUTH invalid number of parameters")
            (size,) = struct.unpack(">i", self.take(4))
            if size > LIMITS.body_size_max:
                raise BadError("E_BAD_BODY", f"{word} body too big {size} > {LIMITS.body_size_max}")
            if size <= 0:
                raise BadError("E_BAD_BODY", f"{word} invalid body size {size}")
            return Identify(self.take(size)) if word == "IDENTIFY" else Auth(self.take(size))
        raise BadError("E_INVALID", f"invalid command {word}")

    def read_named(self, word: str, words: list[bytes]) -> Command:
        if len(words) < (2 if word in ("PUB", "MPUB") else 3):
            raise BadError("E_INVALID", f"{word} insufficient number of parameters")
        topic = words[1].decode("latin-1")
        if not is_valid_name(topic):
            doubled = "E_BAD_TOPIC " if word == "MPUB" else ""
            raise BadError("E_BAD_TOPIC", f"{doubled}{word} topic name {quote(words[1])} is not valid")
        if word == "SUB":
            channel = words[2].decode("latin-1")
            if not is_valid_name(channel):
                raise BadError("E_BAD_CHANNEL", f"SUB channel name {quote(words[2])} is not valid")
            return Subscribe(topic, channel)
        defer_ms = 0
        if word == "DPUB":
            defer_ms = number(words[2], "DPUB could not parse timeout")
            if not 0 <= signed(defer_ms * 10**6) <= LIMITS.req_timeout_ms_max * 10**6:
                raise BadError("E_INVALID", f"DPUB timeout {defer_ms} out of range 0-{LIMITS.req_timeout_ms_max}")
            defer_ms = signed(defer_ms * 10**6) // 10**6
        (size,) = struct.unpack(">i", self.take(4))
        if word == "MPUB":
            return Publish(b"MPUB", topic, self.read_mpub(size), 1, 0)
        if size <= 0:
            raise BadError("E_BAD_MESSAGE", f"{word} invalid message body size {size}")
        if size > LIMITS.msg_size_max:
            raise BadError("E_BAD_MESSAGE", f"{word} message too big {size} > {LIMITS.msg_size_max}")
        return Publish(word.encode(), topic, [self.take(size)], 1, defer_ms)

    def read_mpub(self, size: int) -> list[bytes]:
        if size <= 0:
            raise BadError("E_BAD_BODY", f"MPUB invalid body size {size}")
        if size > LIMITS.body_size_max:
            raise BadError("E_BAD_BODY", f"MPUB body too big {size} > {LIMITS.body_size_max}")
        body = PlainReader(self.take(size))
        if size < 4:
            raise BadError("E_BAD_BODY", "MPUB failed to read message count")
        (count,) = struct.unpack(">i", body.take(4))
        if not 0 < count <= (LIMITS.body_size_max - 4) // 5:
            raise BadError("E_BAD_BODY", f"MPUB invalid message count {count}")
        bodies = [body.read_mpub_message(index) for index in range(count)]
        if body.position != size:
            raise BadError("E_BAD_BODY", f"MPUB body has {size - body.position} bytes more than its {count} messages")
        return bodies

    def read_mpub_message(self, index: int) -> bytes:
        try:
            (size,) = struct.unpack(">i", self.take(4))
        except EOFError:
            raise BadError("E_BAD_MESSAGE", f"MPUB failed to read message({index}) body size") from None
        if size <= 0:
            raise BadError("E_BAD_MESSAGE", f"MPUB invalid message({index}) body size {size}")
        if size > LIMITS.msg_size_max:
            raise BadError("E_BAD_MESSAGE", f"MPUB message too big {size} > {LIMITS.msg_size_max}")
        try:
            return self.take(size)
        except EOFError:
            raise BadError("E_BAD_MESSAGE", "MPUB failed to read message body") from None

    def read_id(self, word: str, words: list[bytes]) -> Command:
        if len(words) < (3 if word == "REQ" else 2):
            raise BadError("E_INVALID", f"{word} insufficient number of params")
        if len(words[1]) != 16:
            raise BadError("E_INVALID", "invalid message ID")
        if word == "REQ":
            delay_ms = signed(number(words[2], "REQ could not parse timeout") * 10**6) // 10**6
            return Requeue(words[1], min(max(delay_ms, 0), LIMITS.req_timeout_ms_max))
        return Finish(words[1]) if word == "FIN" else Touch(words[1])


def number(word: bytes, error: str) -> int:
    value = 0
    for digit in word:
        if not ord("0") <= digit <= ord("9"):
            raise BadError("E_INVALID", f"{error} {word.decode('utf-8', 'surrogateescape')}")
        value = (value * 10 + digit - ord("0")) % 2**64
    return value


def signed(value: int) -> int:
    value %= 2**64
    return value - 2**64 if value >= 2**63 else value


def single(command: Command) -> list[Command]:
    """A run as the commands that it stands for."""
    if isinstance(command, Finish | Touch | Requeue):
        return [command._replace(ids=command.ids[i : i + 16]) for i in range(0, len(command.ids), 16)]
    if isinstance(command, Publish) and command.word == b"PUB":
        assert command.command_count == len(command.bodies)
        return [command._replace(bodies=[body], command_count=1) for body in command.bodies]
    return [command]


def parse(chunks: list[bytes]) -> list[Command]:
    parser = CommandParser(LIMITS)
    parsed: list[Command] = []
    for chunk in chunks:
        completed = parser.feed(chunk)
        while completed:
            parsed += [one for command in completed for one in single(command)]
            if isinstance(completed[-1], Malformed):
                return parsed
            completed = parser.feed(b"")
    return parsed


names = st.sampled_from(["t", "orders.eu", "a#ephemeral", "t"])
bodies = st.binary(min_size=1, max_size=20)
ids = st.sampled_from([ID, b"\xff" * 16, b"fedcba9876543210"])
well_formed = st.one_of(
    st.builds(commands.pub, names, bodies),
    st.builds(commands.pub, names, bodies).map(lambda command: command * 3),
    st.builds(commands.dpub, names, st.integers(0, 5000), bodies),
    st.builds(commands.mpub, names, st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=5)),
    st.builds(commands.fin, ids).flatmap(lambda command: st.integers(1, 40).map(lambda count: command * count)),
    st.builds(commands.touch, ids),
    st.builds(commands.req, ids, st.integers(0, 9000)),
    st.builds(commands.req, ids, st.just(7)).map(lambda command: command * 40),
    st.builds(commands.rdy, st.integers(0, 9)),
    st.builds(commands.sub, names, names),
    st.builds(commands.identify, st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=3)),
    st.builds(commands.auth, bodies),
    st.sampled_from([commands.NOP, commands.CLS, b"NOP\r\n", b"FIN " + ID + b"\r\n", b"RDY\n", b"RDY \n", b"NOP x\n"]),
)
malformed = st.sampled_from(
    [
        b"\n",
        b" NOP\n",
        b"nop\n",
        b"N\xff\n",
        b"PUB\n",
        b"PUB  \n",
        b"SUB t\n",
        b"SUB t c*\n",
        b"SUB  t c\n",
        b"MPUB b*d\n",
        b"RDY -1\n",
        b"RDY 10\n",
        b"RDY 18446744073709551617\n",
        b"FIN\n",
        b"FIN short\n",
        b"FIN 0123456789abcde \n",
        b"REQ " + ID + b"\n",
        b"REQ " + ID + b" -1\n",
        b"REQ " + ID + b" 9223372036854775807\n",
        b"REQ " + ID + b" 10000\n",
        b"AUTH now\n",
        b"DPUB t abc\n",
        b"DPUB t 5001\n",
        b"DPUB t \n\0\0\0\1a",
        b"PUB t\n\0\0\0\0",
        b"PUB t\n\xff\xff\xff\xff",
        b"PUB t\n\0\0\0\x15",
        b"PUB t\n\0\0\0\1aPUB t\n\0\0\0\x15" + bytes(21),
        b"IDENTIFY\n\0\0\1\0",
        b"AUTH\n\0\0\0\0",
        b"MPUB t\n\0\0\0\x3d",
        b"MPUB t\n\0\0\0\2\0\0",
        b"MPUB t\n\0\0\0\4\0\0\0\0",
        b"MPUB t\n\0\0\0\4\0\0\0\1",
        b"MPUB t\n\0\0\0\x0a\0\0\0\1\0\0\0\1ab",
        b"MPUB t\n\0\0\0\x0a\0\0\0\1\0\0\0\3ab",
        b"MPUB t\n\0\0\0\x08\0\0\0\1\0\0\0\x15",
        b"MPUB t\n\0\0\0\x08\0\0\0\1\0\0\0\0",
    ]
)
streams = st.lists(well_formed | well_formed | malformed, max_size=8).map(b"".join)


@given(streams, st.binary(max_size=6))
def test_a_whole_stream(stream: bytes, trailing: bytes) -> None:
    assert parse([stream + trailing]) == PlainReader(stream + trailing).read_all()


@given(streams)
def test_byte_by_byte(stream: bytes) -> None:
    assert parse([stream[i : i + 1] for i in range(len(stream))]) == PlainReader(stream).read_all()


@given(streams, st.data())
def test_damaged_and_in_any_pieces(stream: bytes, data: st.DataObject) -> None:
    damaged = bytearray(stream or b"\n")
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(damaged)), max_size=5)))
    chunks = [bytes(damaged[a:b]) for a, b in zip([0, *cuts], [*cuts, len(damaged)], strict=True)]
    assert parse(chunks) == PlainReader(bytes(damaged)).read_all()


def test_runs_come_as_one_value() -> None:
    parser = CommandParser(LIMITS)
    other = b"fedcba9876543210"
    stream = (
        commands.pub("t", b"a") + commands.pub("t", b"bc") + commands.pub("u", b"d") + commands.fin(ID) * 2
        + commands.touch(ID) + commands.req(ID, 5) + commands.req(other, 5) + commands.req(other, 6)
    )  # fmt: skip
    assert parser.feed(stream) == [
        Publish(b"PUB", "t", [b"a", b"bc"], 2, 0),
        Publish(b"PUB", "u", [b"d"], 1, 0),
        Finish(ID * 2),
        Touch(ID),
        Requeue(ID + other, 5),
        Requeue(other, 6),
    ]


@pytest.mark.parametrize(
    "line", [b"PUB %b\n", b"MPUB %b\n", b"PUB %b\r\n", b"PUB %b and more\n", b"PUB %b " + b"x" * 99 + b"\n"]
)
def test_lines_seen_before_mean_what_they_meant(line: bytes) -> None:
    """Also when there are more topics than the parser remembers."""
    parser, bodies = CommandParser(LIMITS), [b"a", b"bcd"]
    stream = [line % b"topic%d" % (number % 40) for number in range(100)]
    for number, command in enumerate(stream):
        body = bodies[number % 2]
        payload = body if command.startswith(b"PUB") else b"\0\0\0\1" + len(body).to_bytes(4, "big") + body
        word = command.split(b" ")[0]
        expected = [Publish(word, f"topic{number % 40}", [body], 1, 0)]
        assert parser.feed(command + len(payload).to_bytes(4, "big") + payload) == expected


def test_a_line_may_be_as_long_as_nsqds_buffer() -> None:
    longest = b"NOP " + b"x" * (LINE_SIZE_MAX - 5) + b"\n"
    assert CommandParser(LIMITS).feed(longest) == [Nop()]
    too_long = Malformed(b"", "", "a line of more than 16384 bytes")
    assert CommandParser(LIMITS).feed(longest[:-1] + b"x\n") == [too_long]
    assert CommandParser(LIMITS).feed(longest[:-1] + b"x") == [too_long]


def test_stops_where_an_upgrade_may_follow() -> None:
    parser = CommandParser(LIMITS)
    identify = commands.identify({})
    assert parser.feed(identify + commands.NOP) == [Identify(b"{}")]
    assert parser.feed(b"") == [Nop()]
    assert parser.feed(commands.auth(b"s") + commands.NOP) == [Auth(b"s")]
    parser.discard()
    assert parser.feed(commands.CLS) == [Close()]


def test_tells_which_command_waits_for_its_body() -> None:
    parser = CommandParser(LIMITS)
    assert parser.feed(commands.NOP + b"PUB t\n\0\0\0\3ab") == [Nop()]
    assert parser.pending == Pending(b"PUB", [b"t"])
    assert parser.feed(b"c") == [Publish(b"PUB", "t", [b"abc"], 1, 0)]
    assert parser.pending is None


@pytest.mark.parametrize(
    ("cut", "code", "text"),
    [
        (b"PUB t\n", "E_BAD_MESSAGE", "PUB failed to read message body size"),
        (b"PUB t\n\0\0\0\2a", "E_BAD_MESSAGE", "PUB failed to read message body"),
        (b"DPUB t 5\n\0\0", "E_BAD_MESSAGE", "DPUB failed to read message body size"),
        (b"DPUB t 5\n\0\0\0\1", "E_BAD_MESSAGE", "DPUB failed to read message body"),
        (b"IDENTIFY\n", "E_BAD_BODY", "IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\0\0\0\2{", "E_BAD_BODY", "IDENTIFY failed to read body"),
        (b"AUTH\n\0\0\0\2a", "E_BAD_BODY", "AUTH failed to read body"),
        (b"MPUB t\n\0", "E_BAD_BODY", "MPUB failed to read body size"),
        (b"MPUB t\n\0\0\0\x20\0\0", "E_BAD_BODY", "MPUB failed to read message count"),
        (b"MPUB t\n\0\0\0\x20\0\0\0\2\0\0\0\1a\0", "E_BAD_MESSAGE", "MPUB failed to read message(1) body size"),
        (b"MPUB t\n\0\0\0\x20\0\0\0\1\0\0\0\5ab", "E_BAD_MESSAGE", "MPUB failed to read message body"),
        (b"MPUB t\n\0\0\0\x20\0\0\0\1\0\0\0\0", "E_BAD_MESSAGE", "MPUB invalid message(0) body size 0"),
    ],
)
def test_says_what_a_cut_off_body_was(cut: bytes, code: str, text: str) -> None:
    parser = CommandParser(LIMITS)
    for i in range(len(cut)):
        assert parser.feed(cut[i : i + 1]) == []
    word, *params = cut.partition(b"\n")[0].split(b" ")
    assert parser.eof() == Malformed(word, code, text, params)


def test_a_cut_off_line_says_nothing() -> None:
    parser = CommandParser(LIMITS)
    assert parser.feed(b"PUB t") == []
    assert parser.eof() is None


def test_error_frames_carry_the_peers_bytes_back() -> None:
    (bad,) = CommandParser(LIMITS).feed(b"N\xffP\n")
    assert isinstance(bad, Malformed)
    assert bad.error == b"E_INVALID invalid command N\xffP"


def test_a_secret_is_not_shown() -> None:
    (command,) = CommandParser(LIMITS).feed(commands.auth(b"s3cret"))
    assert command == Auth(b"s3cret")
    assert "s3cret" not in repr(command) + str(command) + f"{command}"


@given(
    count=st.integers(1, 12),
    size=st.integers(0, 24),
    wrong=st.none() | st.tuples(st.integers(0, 200), st.integers(0, 255)),
    cut=st.integers(0, 3),
)
def test_bodies_of_one_size_are_what_one_by_one_gives(
    count: int, size: int, wrong: tuple[int, int] | None, cut: int
) -> None:
    limits = Limits(msg_size_max=20, body_size_max=200)
    messages = b"".join(size.to_bytes(4, "big") + bytes([65 + index]) * size for index in range(count))
    data = bytearray(b"MPUB t\n" + bytes(4) + count.to_bytes(4, "big") + messages)
    data = data[: len(data) - cut]
    if wrong is not None and 15 <= wrong[0] < len(data):
        data[wrong[0]] = wrong[1]
    data[7:11] = (len(data) - 11).to_bytes(4, "big")
    quick = CommandParser(limits).feed(bytes(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspark_nsq.proto.parser._TOGETHER_SIZE_MIN", 1)
        together = CommandParser(limits).feed(bytes(data))
        patch.setattr("pyspark_nsq.proto.parser._UNIFORM_COUNT_MIN", 1 << 20)
        assert CommandParser(limits).feed(bytes(data)) == quick == [taken_apart(one) for one in together]


def taken_apart(command: Command) -> Command:
    """With a body for each message, also where they came together."""
    return command._replace(bodies=list(command.bodies)) if isinstance(command, Publish) else command


def test_only_large_bodies_of_one_size_stay_together() -> None:
    small, large, mixed = [b"x" * 80] * 100, [b"x" * 200] * 100, [b"x" * 200] * 99 + [b"y"]
    for bodies, together in ((small, False), (large, True), (mixed, False)):
        stream = commands.NOP + commands.mpub("t", bodies)
        for size in (len(stream), 1000):  # whole and in pieces, with something behind
            parser = CommandParser(Limits())
            stream_and_more = stream + commands.NOP
            pieces = [stream_and_more[at : at + size] for at in range(0, len(stream_and_more), size)]
            _, publish, _ = [command for piece in pieces for command in parser.feed(piece)]
            assert isinstance(publish, Publish)
            assert isinstance(publish.bodies, UniformBodies) == together
            assert list(publish.bodies) == bodies
