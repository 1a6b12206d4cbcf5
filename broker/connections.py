"""Clients' sockets: callbacks of the event loop, no greenlet for a connection.

A readable socket is read once a turn, its session executes what came, and the turn sends the output in one go.
Nothing here blocks. What one client can cost is bounded: messages stop being handed out when ``turn.UNSENT_SIZE_MAX``
waits for it, reading stops when even replies pile up, and a client that reads nothing for two heartbeats is closed.
"""

import errno
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark_nsq.broker.auth import AuthQuestion, AuthState
from pyspark_nsq.broker.host import Host
from pyspark_nsq.broker.listener import set_up
from pyspark_nsq.broker.logs import Logger
from pyspark_nsq.broker.segment import Buffer
from pyspark_nsq.broker.session import Session
from pyspark_nsq.broker.timers import NEVER, Timers
from pyspark_nsq.broker.turn import OUTPUT_SIZE_MAX, Turn
from pyspark_nsq.broker.vigil import Vigil, spare_processor
from pyspark_nsq.proto.errors import WireError

_READ: Final = 1
_WRITE: Final = 2
_READ_SIZE: Final = 256 * 1024
# Replies that a client does not read, on top of messages; then it is not read either.
_UNREAD_SIZE_MAX: Final = 4 * OUTPUT_SIZE_MAX
# Publishes that wait for the disk, as runs of commands read at once; then their publisher is not read either.
_UNSETTLED_MAX: Final = 16
_BUFFERS_A_CALL: Final = 512
# Without heartbeats a client is still not allowed to stand still in the middle of what it is sent.
_STALL_WITHOUT_HEARTBEAT_NS: Final = 60_000_000_000
# An answer just sent must not be destroyed by the reset that unread input causes.
_LINGER_NS: Final = 1_000_000_000
_ACCEPTED_A_TURN: Final = 64
# So many publishers are answered at once, others that were heard in the same round of the loop together. A publisher
# that waits for its OK goes on while we serve the next; answered together, few would leave us nothing to do meanwhile.
_ANSWERED_AT_ONCE: Final = 3
_WAIT_WITHOUT_FDS_S: Final = 0.1
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

AskAuth = Callable[[AuthQuestion, Callable[[AuthState | None], None]], None]


class Connection:
    """One client's socket and session, from accept to close."""

    __slots__ = (
        "_closes_at",
        "_connections",
        "_goes_on",
        "_reading",
        "_socket",
        "_stalled_at",
        "_unsent",
        "_watch_read",
        "_watch_write",
        "session",
        "starved",
        "timer_at",
        "touched",
        "unsent_size",
    )

    def __init__(self, connections: "Connections", sock: socket.socket, session: Session) -> None:
        self.session = session
        self.touched = False
        self.starved = False
        self.unsent_size = 0
        self.timer_at = 0
        self._connections = connections
        self._socket = sock
        self._unsent: list[memoryview] = []
        self._stalled_at = 0
        self._closes_at = NEVER
        self._goes_on = False
        self._watch_write: Any = None
        self._watch_read = connections.loop.io(sock.fileno(), _READ)
        self._watch_read.start(self._readable)
        self._reading = True
        session.owner = self

    # Input

    def _readable(self) -> bool:
        """Whether there was something to read, be it the end."""
        buffer = self._connections.read_buffer
        try:
            size = self._socket.recv_into(buffer)
            data = bytes(buffer[:size])  # mypyc calls twice what is called within a slice
        except BlockingIOError:
            return False
        except OSError as error:
            self._connections.log.debug("[%s] read failed - %s", self.session.remote_address, error)
            self.close()
            return True
        if self._closes_at == NEVER:
            self._receive(data)
        elif not data:  # lingering: everything has been said, only the peer's end is waited for
            self.close()
        return True

    def _receive(self, data: bytes | None) -> None:
        """None: go on with what has been read before."""
        connections, session = self._connections, self.session
        try:
            if data:
                session.receive(data, connections.clock())
            elif data is None:
                session.go_on(connections.clock())
            else:
                session.end_of_input(connections.clock())
        except Exception:  # a fault of ours must not cost more than this client
            self._break()
            return
        if session.deadline_moved:
            session.deadline_moved = False
            connections.watch(self)
        if session.auth.question is not None:
            self._ask(session.auth.question)
        elif session.finished or session.behind:
            self._stop_reading()
        if session.output.unsettled and connections.answers_at_once():
            connections.turn.answer(self)
        elif not self.touched:
            connections.turn.touch(self)

    def _break(self) -> None:
        import traceback

        self._connections.log.error("[%s] - panic, closing: %s", self.session.remote_address, traceback.format_exc())
        self.close()

    def _ask(self, question: AuthQuestion) -> None:
        self._stop_reading()
        self._connections.ask_auth(question, self._answered)

    def _answered(self, auth_state: AuthState | None) -> None:
        session = self.session
        if self._watch_read is None:
            return  # closed meanwhile
        try:
            session.answer(auth_state, self._connections.clock())
        except Exception:  # as above
            self._break()
            return
        if session.auth.question is not None:
            self._ask(session.auth.question)
        else:
            self._read_on()
        self._connections.turn.touch(self)

    def _start_reading(self) -> None:
        if not self._reading and self._watch_read is not None:
            self._reading = True
            self._watch_read.start(self._readable)
            self.session.hear_again(self._connections.clock())

    def _read_on(self) -> None:
        """Unless there is still a reason not to."""
        session = self.session
        if self._unsent or session.finished or session.auth.question is not None:
            return
        if not session.behind:
            self._start_reading()
        elif not self._goes_on:
            self._goes_on = True
            # Once the others of this round have been heard: what the loop calls back may all be called before.
            self._connections.loop.timer(0).start(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        session = self.session
        if session.behind and not session.finished:
            self._receive(None)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._watch_read.stop()
            self.session.stop_hearing()

    # Output

    def flush(self, now: int) -> None:
        """Send what the session has to say, as far as the peer takes it."""
        if self._watch_read is None:
            return
        try:
            self._flush(now)
        except (OSError, WireError) as error:
            self._connections.log.debug("[%s] write failed - %s", self.session.remote_address, error)
            self.close()
        except Exception:  # the turn goes on for all others
            self._break()

    def _flush(self, now: int) -> None:
        session = self.session
        if not session.settle(now):
            self._connections.turn.hold(self)
            if len(session.output.unsettled) >= _UNSETTLED_MAX:
                self._stop_reading()
            return
        if not self._reading:
            self._read_on()
        if self._unsent:
            self._put_behind(session.take_output())
            if self.unsent_size > _UNREAD_SIZE_MAX:
                self._stop_reading()
            return
        if session.has_output:
            self._send(session.take_output(), now)
        if not self._unsent and (session.finished or self.starved):
            self._after_sending(now)

    def _send(self, buffers: list[Buffer], now: int) -> None:
        """One system call in the usual case."""
        if len(buffers) == 1:
            sent = self._try_send(buffers)
            if sent < len(buffers[0]):
                self._keep(buffers, sent, now)
            return
        sent = size_so_far = 0
        for start in range(0, len(buffers), _BUFFERS_A_CALL):
            part = buffers[start : start + _BUFFERS_A_CALL]
            size_so_far += sum(map(len, part))
            sent += self._try_send(part)
            if sent < size_so_far:
                self._keep(buffers, sent, now)
                return

    def _try_send(self, buffers: list[Buffer]) -> int:
        try:
            return self._socket.send(buffers[0]) if len(buffers) == 1 else self._socket.sendmsg(buffers)
        except BlockingIOError:
            return 0

    def _keep(self, buffers: list[Buffer], sent: int, now: int) -> None:
        """What the peer has not taken waits for the socket to be writable."""
        for buffer in buffers:
            if sent < len(buffer):
                self._unsent.append(_alone(memoryview(buffer)[sent:]))
                self.unsent_size += len(buffer) - max(sent, 0)
            sent = max(0, sent - len(buffer))
        self._stalled_at = now
        if self._watch_write is None:
            self._watch_write = self._connections.loop.io(self._socket.fileno(), _WRITE)
        self._watch_write.start(self._writable)
        self._connections.watch(self)

    def _put_behind(self, buffers: list[Buffer]) -> None:
        """Send it after what waits: a copy, as parts of segments would keep all of them in memory."""
        if buffers:
            waiting = b"".join(buffers)
            self._unsent.append(memoryview(waiting))
            self.unsent_size += len(waiting)

    def _writable(self) -> None:
        now = self._connections.clock()
        self._watch_write.stop()
        unsent, self._unsent = self._unsent, []
        size, self.unsent_size = self.unsent_size, 0
        stalled_at = self._stalled_at
        try:
            self._send(list(unsent), now)
        except OSError as error:
            self._connections.log.debug("[%s] write failed - %s", self.session.remote_address, error)
            self.close()
            return
        if self.unsent_size == size:
            self._stalled_at = stalled_at  # nothing was taken: the stall goes on
        self._read_on()
        self._connections.turn.touch(self)

    def _after_sending(self, now: int) -> None:
        """All is sent: end what has finished, and go on handing out to whom the limit had stopped."""
        session = self.session
        if session.finished:
            self._linger(now)
        elif self.starved:
            self.starved = False
            if session.channel is not None and session.consumer is not None:
                self._connections.turn.wake(session.channel, session.consumer)

    # Time: a client is late that has said or taken nothing when it is looked at, not one whom we were late to look at.

    @property
    def deadline(self) -> int:
        if self._watch_read is None:
            return NEVER
        if self._closes_at != NEVER:
            return self._closes_at
        return min(self.session.deadline, self._stall_deadline)

    @property
    def _stall_deadline(self) -> int:
        if not self._unsent:
            return NEVER
        return self._stalled_at + (2 * self.session.identity.heartbeat_interval or _STALL_WITHOUT_HEARTBEAT_NS)

    def on_time(self, now: int) -> None:
        if now >= self._closes_at:
            self.close()
            return
        if now >= self._stall_deadline:
            self._writable()
        if now >= self._stall_deadline:
            self._connections.log.error("[%s] - the client reads nothing, closing", self.session.remote_address)
            self.close()
        elif self.session.is_overdue(now) and self._reading and self._readable():
            self.session.be_patient(now)
        else:
            self.session.on_time(now)
            self._connections.turn.touch(self)

    # End

    def _linger(self, now: int) -> None:
        """Say that nothing more comes, and wait a moment for the peer to have read it."""
        self._leave()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
            return
        self._closes_at = now + _LINGER_NS
        self._start_reading()
        self._connections.watch(self)

    def _leave(self) -> None:
        self._connections.forget(self)

    def close(self) -> None:
        """End the connection now. May be called again."""
        if self._watch_read is None:
            return
        self.session.finished = True  # it may still be among those whom the turn is going to hand out messages
        self._leave()
        self._connections.unwatch(self)
        for watcher in (self._watch_read, self._watch_write):
            if watcher is not None:
                watcher.stop()
                watcher.close()
        self._watch_read = self._watch_write = None
        self._unsent.clear()
        self._socket.close()


class Connections:
    """All clients of one nsqd, and the sockets that they come in by."""

    def __init__(
        self,
        host: Host,
        turn: Turn,
        timers: Timers,
        loop: Any,
        clock: Callable[[], int],
        ask_auth: AskAuth,
        timers_changed: Callable[[int], None],
        clients_max: int,
    ) -> None:
        """``clients_max``: more wait to be accepted, so that files can still be opened and HTTP still be answered."""
        self.turn = turn
        self.loop = loop
        self.clock = clock
        self.ask_auth = ask_auth
        self.log: Logger = host.log
        # One for all: a new one of this size for each read would be mapped and unmapped by the system every time.
        self.read_buffer = memoryview(bytearray(_READ_SIZE))
        self._host = host
        self._timers = timers
        self._timers_changed = timers_changed
        self._clients_max = clients_max
        self._is_crowded = False
        self._open: set[Connection] = set()
        self._round_at = 0.0  # when the loop's present round began
        self._answered = 0  # publishers in it
        self._vigil = Vigil(loop, clock) if spare_processor() else None
        self._listeners: list[tuple[socket.socket, Any]] = []

    def answers_at_once(self) -> bool:
        """Whether somebody who has published is to have its answer before the others of this round are heard."""
        now = self.loop.now()
        if now != self._round_at:
            self._round_at, self._answered = now, 0
            if self._vigil is not None:
                self._vigil.answered()
        self._answered += 1
        return self._answered <= _ANSWERED_AT_ONCE

    def sessions(self) -> list[Session]:
        return [connection.session for connection in self._open]

    def listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        watcher = self.loop.io(listener.fileno(), _READ)
        watcher.start(self._acceptable, listener, watcher)
        self._listeners.append((listener, watcher))

    def _acceptable(self, listener: socket.socket, watcher: Any) -> None:
        for _ in range(_ACCEPTED_A_TURN):
            if self._crowded():
                self._pause(listener, watcher)
                return
            try:
                sock, name = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self.log.warning("temporary Accept() failure - %s", error)
                if error.errno in _OUT_OF_RESOURCES:
                    self._pause(listener, watcher)
                return
            self._serve(sock, name)

    def _crowded(self) -> bool:
        crowded = len(self._open) >= self._clients_max
        if crowded and not self._is_crowded:
            self.log.warning("%d clients are all that the limit of open files allows: others wait", len(self._open))
        self._is_crowded = crowded
        return crowded

    def _pause(self, listener: socket.socket, watcher: Any) -> None:
        """Accept nobody for a moment."""
        watcher.stop()
        self.loop.timer(_WAIT_WITHOUT_FDS_S).start(self._accept_again, listener, watcher)

    def _accept_again(self, listener: socket.socket, watcher: Any) -> None:
        if (listener, watcher) in self._listeners:  # not closed meanwhile
            watcher.start(self._acceptable, listener, watcher)

    def _serve(self, sock: socket.socket, name: object) -> None:
        sock.setblocking(False)
        address, ip = _peer_address(name)
        set_up(sock)
        self.log.info("TCP: new client(%s)", address)
        connection = Connection(self, sock, Session(self._host, address, ip, self.clock()))
        self._open.add(connection)
        self.watch(connection)

    def watch(self, connection: Connection) -> None:
        """The connection may be due earlier than was thought."""
        self._timers.watch(connection)
        self._timers_changed(self._timers.next_deadline)

    def unwatch(self, connection: Connection) -> None:
        self._timers.forget(connection)

    def forget(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.remove(connection)
            self.log.info("PROTOCOL(V2): [%s] exiting ioloop", connection.session.remote_address)
            connection.session.disconnected(self.clock())
            self.turn.request()

    def stop_accepting(self) -> None:
        for listener, watcher in self._listeners:
            watcher.stop()
            watcher.close()
            path = listener.getsockname() if listener.family == socket.AF_UNIX else ""
            listener.close()
            if path:
                Path(path).unlink(missing_ok=True)
        self._listeners.clear()

    def close_all(self) -> None:
        for connection in list(self._open):
            connection.close()


def _alone(view: memoryview) -> memoryview:
    """The same bytes; a copy where they would keep more than twice as much in memory."""
    return view if 2 * len(view) >= len(view.obj) else memoryview(bytes(view))  # type: ignore[arg-type]


def _peer_address(name: object) -> tuple[str, str]:
    """The peer as ``host:port`` and its host; of a unix socket ``@`` and nothing, as Go names it."""
    if not isinstance(name, tuple):
        return "@", ""
    ip = name[0].removeprefix("::ffff:") if "." in name[0] else name[0]
    return (f"[{ip}]:{name[1]}" if ":" in ip else f"{ip}:{name[1]}"), ip
