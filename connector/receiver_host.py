"""A receiver process that is not the coordinator's child: it works for the queries whose coordinators call it.

A coordinator opens Control, begins a session, and is obeyed for as long as it is heard of within the session's lease.
After that, or when it says stop, what the session holds unfinished goes back to nsqd.
"""

import hashlib
import hmac
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import grpc

from pyspark_nsq.connector.beginning import Beginning, from_message
from pyspark_nsq.connector.channels import token_in
from pyspark_nsq.connector.receiver_core import ReceiverCore
from pyspark_nsq.connector.receiver_loop import ReceiverLoop
from pyspark_nsq.connector.receiver_service import GIVING_BACK, ReceiverService, StatusBoard
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc

log = logging.getLogger(__name__)

SESSIONS_MAX: Final = 64
_LOOK_S: Final = 0.1
# So many times within a lease a receiver says that it lives, whatever else it has to say.
_BEATS: Final = 4
_STATUS_INTERVAL_S: Final = 0.02
# Longer than a session needs to give everything back.
_END_S: Final = 6.0


class Session:
    """One query's run, with a thread that works for it."""

    def __init__(self, beginning: Beginning, socket: str) -> None:
        self.beginning = beginning
        self.core = ReceiverCore(beginning.limits, beginning.first_position)
        self.board = StatusBoard(beginning.sources_interval_s)
        self.loop = ReceiverLoop(self.core, beginning.connection, None, self.board)
        self.service = ReceiverService(self.core, self.loop, self.board, beginning.lane)
        self.ended = False
        self._socket = socket
        self._heard_at = time.monotonic()
        self._status_interval_s = _STATUS_INTERVAL_S
        self._thread = threading.Thread(target=self._run, name=f"session {beginning.session}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run()
        except Exception:
            log.exception("session %s failed", self.beginning.session)
        finally:
            self.loop.close()
            self.ended = True
            self.board.wake()

    def stop(self) -> None:
        """Begin to give back what is unfinished."""
        self.loop.stop()

    def join(self) -> None:
        self._thread.join(_END_S)

    def check_lease(self, now: float) -> None:
        if now - self._heard_at > self.beginning.lease_s and not self.core.stopping:
            log.warning("session %s: nothing heard of its driver for a lease", self.beginning.session)
            self.stop()

    def hear(self) -> None:
        self._heard_at = time.monotonic()

    def obey(self, commands: Iterable[pb.Command]) -> None:
        """Take commands until the stream of them ends."""
        try:
            for command in commands:
                self.hear()
                if command.HasField("share"):
                    self._status_interval_s = max(_STATUS_INTERVAL_S, command.share.status_interval_ms / 1000)
                self.service.obey(command)
        except grpc.RpcError:
            pass  # The coordinator is gone, or comes again: the lease tells.

    def statuses(self, context: grpc.ServicerContext) -> Iterator[pb.Status]:
        """The newest state, whenever it has changed, and as a sign of life."""
        version = -1
        while context.is_active() and not self.ended:
            version, status = self.board.wait(version, self.beginning.lease_s / _BEATS)
            status.socket = self._socket
            yield status
            time.sleep(self._status_interval_s)


class HostService(receiver_pb2_grpc.ReceiverServicer):
    """The host's token opens Control, that of a session what its tasks may do."""

    def __init__(self, token: str, socket: str) -> None:
        self._token = token.encode()
        self._socket = socket
        self._lock = threading.Lock()
        self._sessions: dict[bytes, Session] = {}
        self._stopping = False
        threading.Thread(target=self._watch, name="leases", daemon=True).start()

    @property
    def sessions(self) -> list[Session]:
        return list(self._sessions.values())

    def stop(self) -> None:
        """End every session, and take no more."""
        with self._lock:
            self._stopping = True
            sessions = self.sessions
        for session in sessions:
            session.stop()
        for session in sessions:
            session.join()

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            now = time.monotonic()
            for session in self.sessions:
                session.check_lease(now)
            with self._lock:
                self._sessions = {key: session for key, session in self._sessions.items() if not session.ended}

    # The contract.

    def Control(  # noqa: N802 (the contract's name, as those below)
        self, commands: Iterator[pb.Command], context: grpc.ServicerContext
    ) -> Iterator[pb.Status]:
        if not hmac.compare_digest(token_in(context.invocation_metadata()).encode(), self._token):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the receiver's token is missing or wrong")
        first = next(commands, None)
        if first is None or not first.HasField("begin"):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first command has to begin a session")
        assert first
        try:
            beginning = from_message(first.begin)
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        session = self._resumed(beginning, context) if first.begin.resume else self._begun(beginning, context)
        threading.Thread(target=session.obey, args=(commands,), name="commands", daemon=True).start()
        context.add_callback(session.board.wake)
        return session.statuses(context)

    def _same(self, beginning: Beginning) -> Session | None:
        """The session that has begun so, if it is at work."""
        for session in self.sessions:
            if session.beginning == beginning and not session.core.stopping:
                session.hear()
                return session
        return None

    def _resumed(self, beginning: Beginning, context: grpc.ServicerContext) -> Session:
        session = self._same(beginning)
        if session is None:
            if any(each.beginning == beginning and not each.ended for each in self.sessions):
                # What it has in flight is nobody else's part of the budget yet.
                context.abort(grpc.StatusCode.UNAVAILABLE, GIVING_BACK)
            context.abort(grpc.StatusCode.NOT_FOUND, "this receiver does not have the session any more")
        assert session
        return session

    def _begun(self, beginning: Beginning, context: grpc.ServicerContext) -> Session:
        """The session of this name: the one that there is, if it is the same."""
        if same := self._same(beginning):
            return same
        former = next((each for each in self.sessions if each.beginning.session == beginning.session), None)
        if former:
            # Its coordinator has given it up.
            former.stop()
            former.join()
        with self._lock:
            if self._stopping or len(self._sessions) >= SESSIONS_MAX:
                reason = "stops" if self._stopping else f"serves {SESSIONS_MAX} queries already"
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"this receiver {reason}")
            session = Session(beginning, self._socket)
            self._sessions[_digest(beginning.token)] = session
        session.start()
        log.info("session %s begins, channel %s", beginning.session, beginning.limits.channel)
        return session

    def Read(  # noqa: N802
        self, request: pb.ReadRequest, context: grpc.ServicerContext
    ) -> Any:
        return self._session(context).service.Read(request, context)

    def Settle(  # noqa: N802
        self, request: pb.Verdicts, context: grpc.ServicerContext
    ) -> pb.Suspects:
        return self._session(context).service.Settle(request, context)

    def Judge(  # noqa: N802
        self, request: pb.Suspects, context: grpc.ServicerContext
    ) -> pb.Verdicts:
        return self._session(context).service.Judge(request, context)

    def _session(self, context: grpc.ServicerContext) -> Session:
        session = self._sessions.get(_digest(token_in(context.invocation_metadata())))
        if session is None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token of this query is missing, wrong, or of the past")
        elif session.core.stopping:
            context.abort(grpc.StatusCode.UNAVAILABLE, GIVING_BACK)
        assert session
        return session


def _digest(token: str) -> bytes:
    """Found by this, a token tells nothing by the time that finding it takes."""
    return hashlib.sha256(token.encode()).digest()
