"""One client of nsqd, as a state machine: bytes and times in, bytes and one question at a time out, no sockets.

The way of a command. ``receive`` decodes bytes, the parser makes them commands, each is executed at once. Replies
collect in ``output``, in order, the OK of a publish before it is written. Whoever owns the session therefore commits
the engine between ``receive`` and ``settle``, and ``take_output`` only gives what is settled.

``client_states`` says what is allowed when; a command is checked for its state before its parameters, also when the
parser has already found those wrong.

While a question to an auth server is open (``auth.question``) nothing is executed; ``answer`` goes on where it stopped.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark_nsq.broker.auth import AuthState
from pyspark_nsq.broker.channel import Channel, Consumer
from pyspark_nsq.broker.client_auth import ClientAuth, FatalError, QuestionOpenError
from pyspark_nsq.broker.client_states import (
    STATE_CLOSING,
    STATE_INIT,
    STATE_SUBSCRIBED,
    check_state,
    tls_required,
    word_of,
)
from pyspark_nsq.broker.host import Host
from pyspark_nsq.broker.identify import IdentifyError, Identity, identify
from pyspark_nsq.broker.json_go import dumps
from pyspark_nsq.broker.logs import Level
from pyspark_nsq.broker.nsqd_options import TlsRequired
from pyspark_nsq.broker.os_errors import os_error_text
from pyspark_nsq.broker.output import OK_FRAME, Output
from pyspark_nsq.broker.segment import Buffer
from pyspark_nsq.broker.timers import NEVER
from pyspark_nsq.broker.topology import stranger
from pyspark_nsq.proto import frames, parser
from pyspark_nsq.proto.commands import MAGIC_V2
from pyspark_nsq.proto.errors import WireError

if TYPE_CHECKING:
    # Imported when a client asks for it: a start without is quicker.
    from pyspark_nsq.broker.wire import Wire

_NS_PER_MS: Final = 1_000_000
# A connection that never says which protocol it speaks is not kept for ever.
MAGIC_TIMEOUT_NS: Final = 60_000 * _NS_PER_MS
_TLS_HANDSHAKE_TIMEOUT_NS: Final = 5_000 * _NS_PER_MS
# What few compressed bytes expand to is executed in parts: as much as others say in one piece.
_EXECUTED_AT_ONCE: Final = 256 * 1024

_HEARTBEAT_FRAME: Final = frames.encode_frame(frames.RESPONSE, frames.HEARTBEAT)
_BAD_PROTOCOL_FRAME: Final = frames.encode_frame(frames.ERROR, b"E_BAD_PROTOCOL")


class Subscriber(Consumer):
    """The session as its channel sees it."""

    def __init__(self, session: "Session") -> None:
        super().__init__()
        self.session = session


class Session:
    def __init__(self, host: Host, remote_address: str, remote_ip: str, now: int) -> None:
        self.identity = Identity(
            remote_ip,
            remote_ip,
            output_buffer_timeout=host.options.output_buffer_timeout_ns,
            msg_timeout=host.options.msg_timeout_ns,
            nearness=stranger(host.options),
        )
        self.remote_address = remote_address
        self.state = STATE_INIT
        self.connected_at = host.engine.wall(now)
        self.channel: Channel | None = None
        self.consumer: Subscriber | None = None
        self.auth = ClientAuth(enabled=bool(host.options.auth_http_addresses), remote_ip=remote_ip)
        self.pub_counts: dict[str, int] = {}
        self.wire: Wire | None = None
        # Nothing more is read or executed; the connection ends when the output is sent.
        self.finished = False
        # More of what was received is to be executed: ``go_on`` does, and nothing is to be received until then.
        self.behind = False
        self.output = Output()
        # For whoever drives the session: itself, and whether ``deadline`` may have come nearer.
        self.owner: Any = None
        self.deadline_moved = False
        self._host = host
        self._engine = host.engine
        self._log = host.log
        self._now = now
        self._greeting: bytes | None = b""
        self._parser = parser.CommandParser(host.limits)
        self._tls_missing = host.options.tls_demanded != TlsRequired.NO
        self._held: Iterator[bytes] = iter(())
        self._backlog: list[parser.Command] = []
        self._handshake_deadline = NEVER
        self._patience = MAGIC_TIMEOUT_NS
        self._read_deadline = now + MAGIC_TIMEOUT_NS
        self._is_heard = True
        self._heartbeat_at = NEVER

    # Input

    def receive(self, data: bytes, now: int) -> None:
        """Execute what these bytes complete. Not to be called while a question is open or when finished."""
        self._now = now
        if self._greeting is not None:
            self._greet(data)
        elif self.wire is None:
            self._execute(self._parser.feed(data))
        else:
            self._receive_pieces(self.wire.decode(data))

    def go_on(self, now: int) -> None:
        """Execute more of what was received; only when ``behind``."""
        self._now = now
        self._receive_pieces(self._held)

    def answer(self, auth_state: AuthState | None, now: int) -> None:
        """The auth server's verdict on the question; None where none could be had."""
        self._now = now
        self.auth.answer(auth_state)
        backlog, self._backlog = self._backlog, []
        if not self.finished:
            self._execute(backlog)
        if not self._is_stopped():
            self._execute(self._parser.feed(b""))
        if not self._is_stopped() and self.wire is not None:
            self._receive_pieces(self._held)

    def end_of_input(self, now: int) -> None:
        """The peer will send nothing more: a body that was cut off is complained about, a line is not."""
        self._now = now
        if self.auth.question is None and (malformed := self._parser.eof()) is not None:
            self._execute([malformed])
        self.finished = True

    def _is_stopped(self) -> bool:
        return self.finished or self.auth.question is not None

    def _greet(self, data: bytes) -> None:
        """The first four bytes name the protocol; there is one."""
        assert self._greeting is not None
        self._greeting += data
        magic, rest = self._greeting[: len(MAGIC_V2)], self._greeting[len(MAGIC_V2) :]
        if len(magic) < len(MAGIC_V2):
            return
        if magic != MAGIC_V2:
            self._log.error("client(%s) bad protocol magic %r", self.remote_address, magic)
            self.output.say(_BAD_PROTOCOL_FRAME)
            self.finished = True
            return
        self._greeting = None
        self._restart_heartbeat()
        self._execute(self._parser.feed(rest))

    def _receive_pieces(self, pieces: Iterator[bytes]) -> None:
        """Piece by piece, so that a compressed command becomes large only as far as it is executed."""
        assert self.wire is not None
        self.behind = False
        size = 0
        try:
            for piece in pieces:
                self._check_handshake()
                self._execute(self._parser.feed(piece))
                size += len(piece)
                if self._is_stopped() or size >= _EXECUTED_AT_ONCE:
                    self._held = pieces
                    self.behind = not self._is_stopped()
                    return
            self._check_handshake()
        except WireError as error:
            self._fail_wire(str(error))
        if self.wire.ended:
            self.end_of_input(self._now)

    def _execute(self, commands: list[parser.Command]) -> None:
        while commands:
            self._read_deadline = self._now + self._patience
            if self._log.level <= Level.DEBUG:
                self._log_commands(commands)
            for index, command in enumerate(commands):
                try:
                    if self._tls_missing:
                        self._demand_tls(command)
                    _HANDLERS[type(command)](self, command)
                except FatalError as error:
                    self._fail(error.code, error.text)
                    return
                except QuestionOpenError:
                    self._backlog = commands[index:]
                    return
            # The parser stops where what follows may mean something else now.
            stopped = type(commands[-1]) in _PARSER_STOPS
            commands = self._parser.feed(b"") if stopped and not self._is_stopped() else []
        if self._parser.pending is not None and not self.finished:
            self._check_pending(self._parser.pending)

    def _log_commands(self, commands: list[parser.Command]) -> None:
        """Their words: what follows may be secret, and is long."""
        for command in commands:
            word = word_of(command).decode("utf-8", "backslashreplace")
            self._log.debug("PROTOCOL(V2): [%s] %s", self.remote_address, word)

    def _check_pending(self, pending: parser.Pending) -> None:
        """Refuse what cannot be allowed without waiting for its body."""
        try:
            if self._tls_missing and pending.word != b"IDENTIFY":
                raise tls_required(pending.word)
            check_state(pending.word, self.state)
            if pending.word == b"MPUB" and self.auth.enabled:
                self._check_auth("MPUB", pending.params[0].decode())
        except FatalError as error:
            self._fail(error.code, error.text)
        except QuestionOpenError:
            pass  # `answer` comes here again

    def _demand_tls(self, command: parser.Command) -> None:
        silent = isinstance(command, parser.Malformed) and not command.code
        word = word_of(command)
        if word != b"IDENTIFY" and not silent:
            raise tls_required(word)

    # Output

    def _fail(self, code: str, text: str) -> None:
        self._complain(code, text)
        self.finished = True

    def _complain(self, code: str, text: str) -> None:
        if code:
            message = f"{code} {text}"
            self.output.say(frames.encode_frame(frames.ERROR, message.encode("utf-8", "surrogateescape")))
            self._log.error("[%s] - %s", self.remote_address, message)

    def settle(self, now: int) -> bool:
        """Whether the outcome of all publishes is known: only then the output may leave."""
        if not self.output.unsettled:
            return True
        failure = self.output.settle()
        if failure is not None:
            word = failure[0].decode()
            self._fail(f"E_{word}_FAILED", f"{word} failed {os_error_text(failure[1])}")
        if self.output.unsettled:
            return False
        self.be_patient(now)
        return True

    @property
    def has_output(self) -> bool:
        """Whether something is to be sent now. Messages alone may wait where the client asked for that."""
        output, consumer = self.output, self.consumer
        if output.flush_due or self.finished or self.wire is not None:
            return True
        if consumer is None or self.identity.output_buffer_timeout > 0:
            return bool(output)
        return output.size >= self.identity.output_buffer_size or consumer.in_flight_count >= consumer.ready_count

    def take_output(self) -> list[Buffer]:
        """All output so far, for the socket. Only after ``settle``."""
        said = self.output.take()
        return said if self.wire is None else self.wire.encode(said)

    # Time

    @property
    def deadline(self) -> int:
        """When ``on_time`` is due next."""
        if self.finished:
            return NEVER
        if self._handshake_deadline != NEVER:
            return self._handshake_deadline
        return min(self._heartbeat_at, NEVER if self._is_waited_for else self._read_deadline)

    @property
    def _is_waited_for(self) -> bool:
        """Whether the peer may be silent because of us: an answer is missing, or nobody hears what it says."""
        return bool(self.output.unsettled) or self.auth.question is not None or not self._is_heard

    def is_overdue(self, now: int) -> bool:
        """Whether the peer should have said something, or the rest of it, by now."""
        return now >= self._read_deadline and not self._is_waited_for

    def be_patient(self, now: int) -> None:
        """From now on the peer has its time to say something."""
        self._read_deadline = now + self._patience

    def stop_hearing(self) -> None:
        """Its owner reads nothing for the time being."""
        self._is_heard = False

    def hear_again(self, now: int) -> None:
        self._is_heard = True
        self.be_patient(now)

    def on_time(self, now: int) -> None:
        self._now = now
        if self._handshake_deadline != NEVER:  # nothing can be said before it is over
            if now >= self._handshake_deadline:
                self._fail_wire("i/o timeout")
        elif self.is_overdue(now):
            self.end_of_input(now)
        elif now >= self._heartbeat_at:
            self._heartbeat_at = now + self.identity.heartbeat_interval
            self.output.say(_HEARTBEAT_FRAME)

    def _restart_heartbeat(self) -> None:
        interval = self.identity.heartbeat_interval
        self._heartbeat_at = self._now + interval if interval else NEVER
        self._patience = 2 * interval if interval else NEVER
        self.be_patient(self._now)
        self.deadline_moved = True

    def disconnected(self, now: int) -> None:
        """The connection is gone: what its consumer holds waits for its time-out."""
        if self.channel is not None and self.consumer is not None:
            self.channel.unsubscribe(self.consumer, now)

    # Upgrades

    def _start_upgrade(self) -> None:
        from pyspark_nsq.broker.wire import Wire

        # What the client sent ahead in plain text must not count as said within the new layer.
        self._parser.discard()
        self.wire = Wire(self.identity, self._host.tls_context, self.output.take())
        if self.wire.handshaking:
            self._handshake_deadline = self._now + _TLS_HANDSHAKE_TIMEOUT_NS
            self.deadline_moved = True

    def _check_handshake(self) -> None:
        if self._handshake_deadline != NEVER and self.wire is not None and not self.wire.handshaking:
            self._handshake_deadline = NEVER
            self._tls_missing = False
            self._restart_heartbeat()

    def _fail_wire(self, reason: str) -> None:
        """A failed handshake is told in clear text; TLS or compression that breaks later just ends."""
        if self._handshake_deadline == NEVER:
            self._log.error("[%s] - %s", self.remote_address, reason)
            self.finished = True
            return
        self._handshake_deadline = NEVER
        assert self.wire is not None
        self.wire.abandon_tls()
        self._fail("E_IDENTIFY_FAILED", f"IDENTIFY failed {reason}")

    # Commands

    def _do_identify(self, command: parser.Identify) -> None:
        check_state(b"IDENTIFY", self.state)
        tls_available = self._host.tls_context is not None
        try:
            granted, reply = identify(
                command.body,
                self.identity,
                self._host.options,
                tls_available=tls_available,
                upgradable=self.wire is None,
            )
        except IdentifyError as error:
            raise FatalError(error.code, error.text) from error
        self.identity = granted
        self._log.info("[%s] IDENTIFY: %s", self.remote_address, granted)
        self._restart_heartbeat()
        self.output.say(frames.encode_frame(frames.RESPONSE, reply))
        if granted.tls or granted.snappy or granted.deflate:
            self._start_upgrade()

    def _do_auth(self, command: parser.Auth) -> None:
        check_state(b"AUTH", self.state)
        state = self.auth.authenticate(command.secret, self._common_name())
        reply = {
            "identity": state.identity,
            "identity_url": state.identity_url,
            "permission_count": len(state.authorizations),
        }
        self.output.say(frames.encode_frame(frames.RESPONSE, dumps(reply)))

    def _common_name(self) -> str | None:
        """Of the client's certificate; None without TLS."""
        tls = self.wire.tls if self.wire is not None else None
        return tls.facts().common_name if tls is not None else None

    def _check_auth(self, word: str, topic: str, channel: str | None = None) -> None:
        self.auth.check(word, topic, channel, self._common_name(), self._now)

    def _do_publish(self, command: parser.Publish) -> None:
        if self.auth.enabled:
            self._check_auth(command.word.decode(), command.topic)
        word, name, bodies, command_count, defer_ms = command
        topic = self._engine.topics.get(name) or self._engine.topic(name, self._now)
        ticket = topic.publish(bodies, self._now, defer_ms * _NS_PER_MS)
        self.output.say_ok_if(ticket, topic, word, command_count)
        self.pub_counts[name] = self.pub_counts.get(name, 0) + len(bodies)

    def _do_subscribe(self, command: parser.Subscribe) -> None:
        check_state(b"SUB", self.state)
        if not self.identity.heartbeat_interval:
            raise FatalError("E_INVALID", "cannot SUB with heartbeats disabled")
        if self.auth.enabled:
            self._check_auth("SUB", command.topic, command.channel)
        if self._host.exiting:
            raise FatalError("E_SUB_FAILED", "SUB failed exiting")
        channel = self._engine.topic(command.topic, self._now).channel(command.channel, self._now)
        limit = self._host.options.max_channel_consumers
        if 0 < limit <= len(channel.consumers):
            name = f"{command.topic}:{command.channel}"
            raise FatalError("E_SUB_FAILED", f"SUB failed consumers for {name} exceeds limit of {limit}")
        consumer = Subscriber(self)
        consumer.msg_timeout_ns = self.identity.msg_timeout
        consumer.sample_rate = self.identity.sample_rate
        consumer.nearness = self.identity.nearness
        channel.subscribe(consumer)
        self.channel, self.consumer = channel, consumer
        self.state = STATE_SUBSCRIBED
        self.output.say(OK_FRAME)

    def _do_ready(self, command: parser.Ready) -> None:
        if self.state == STATE_CLOSING:
            return
        _channel, consumer = self._subscription(b"RDY")
        consumer.ready_count = command.ready_count
        self._wake()

    def _do_finish(self, command: parser.Finish) -> None:
        channel, consumer = self._subscription(b"FIN")
        for message_id, reason in channel.finish(consumer, command.ids, self._now):
            self._complain_of("FIN", message_id, reason)
        self._wake()

    def _do_requeue(self, command: parser.Requeue) -> None:
        channel, consumer = self._subscription(b"REQ")
        delay_ns = command.delay_ms * _NS_PER_MS
        for message_id, reason in channel.requeue(consumer, command.ids, delay_ns, self._now):
            self._complain_of("REQ", message_id, reason)
        self._wake()

    def _do_touch(self, command: parser.Touch) -> None:
        channel, consumer = self._subscription(b"TOUCH")
        for message_id, reason in channel.touch(consumer, command.ids, self._now):
            self._complain_of("TOUCH", message_id, reason)

    def _complain_of(self, word: str, message_id: bytes, reason: str) -> None:
        text = message_id.decode("utf-8", "surrogateescape")
        self._complain(f"E_{word}_FAILED", f"{word} {text} failed {reason}")

    def _subscription(self, word: bytes) -> tuple[Channel, Subscriber]:
        if self.channel is None or self.consumer is None:
            raise FatalError("E_INVALID", f"cannot {word.decode()} in current state")
        return self.channel, self.consumer

    def _wake(self) -> None:
        consumer = self.consumer
        if consumer is not None and consumer.ready_count > consumer.in_flight_count and self.channel is not None:
            self._host.wake(self.channel, consumer)

    def _do_close(self, _command: parser.Close) -> None:
        check_state(b"CLS", self.state)
        _channel, consumer = self._subscription(b"CLS")
        consumer.ready_count = 0
        self.state = STATE_CLOSING
        self.output.say(frames.encode_frame(frames.RESPONSE, frames.CLOSE_WAIT))

    def _do_nop(self, _command: parser.Nop) -> None:
        """It has renewed the read deadline, as every command does."""

    def _do_malformed(self, command: parser.Malformed) -> None:
        check_state(command.word, self.state)
        if command.word == b"RDY" and self.state == STATE_CLOSING:
            return
        if command.word == b"SUB" and not self.identity.heartbeat_interval:
            raise FatalError("E_INVALID", "cannot SUB with heartbeats disabled")
        if command.word == b"MPUB" and self.auth.enabled and command.code in ("E_BAD_BODY", "E_BAD_MESSAGE"):
            self._check_auth("MPUB", command.params[0].decode())
        raise FatalError(command.code, command.text)


_HANDLERS: Final[dict[type, Callable[[Session, Any], None]]] = {
    parser.Identify: Session._do_identify,
    parser.Auth: Session._do_auth,
    parser.Subscribe: Session._do_subscribe,
    parser.Publish: Session._do_publish,
    parser.Ready: Session._do_ready,
    parser.Finish: Session._do_finish,
    parser.Requeue: Session._do_requeue,
    parser.Touch: Session._do_touch,
    parser.Close: Session._do_close,
    parser.Nop: Session._do_nop,
    parser.Malformed: Session._do_malformed,
}

_PARSER_STOPS: Final = frozenset({parser.Identify, parser.Auth, parser.Malformed})
