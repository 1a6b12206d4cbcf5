"""The coordinator's side of receivers on other hosts: who is there, what each is told, and what it says.

Receivers on executors register here when a task has started them; those of an operator are called at their addresses.
From then on both are the same: a thread for each keeps its Control stream, and the lease decides when it is lost.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import grpc

from pyspark_nsq.connector.beginning import Beginning, to_message
from pyspark_nsq.connector.channels import TOKEN_KEY, open_channel
from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.errors import NsqError
from pyspark_nsq.connector.offsets import first_position, incarnation_of
from pyspark_nsq.connector.placement import Member, Placement
from pyspark_nsq.connector.receiver_options import ReceiverOptions, read_token
from pyspark_nsq.connector.receiver_process import ReceiverError
from pyspark_nsq.connector.report import merge
from pyspark_nsq.connector.wire import failed_connections, from_source, with_all_sources
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
# So many times within a lease a receiver hears that the driver lives.
_BEATS: Final = 4
_RETRY_S: Final = 0.2
# A Status costs the driver about a millisecond of work; all together they get half a core.
STATUS_MS_PER_RECEIVER: Final = 2.0
STATUS_MS_MIN: Final = 20
_STOP_S: Final = 6.0
_STOP_LOOK_S: Final = 0.01
# A batch without rows, which starts receivers, ends when no new host has shown up for so long.
_GATHER_S: Final = 0.5
# How long it waits for a receiver that does not come, and how often in a row none may come at all.
_GATHER_S_MAX: Final = 20.0
_ROUNDS_MAX: Final = 5
_ROUND_PAUSE_S: Final = 1.0
# What is kept of hosts whose receivers do not start.
_FAILURES_MAX: Final = 8
_FAILURE_SIZE_MAX: Final = 500
_REFUSALS: Final = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED}


class RemoteReceiver:
    """A lane, whoever holds it at the moment; ``status`` is what that receiver said last, None without one."""

    def __init__(self, lane: int, placement: Placement) -> None:
        self.address = ""
        # Which process it is, of those that may follow each other at an address.
        self.instance = ""
        # A unix socket's path on its host.
        self.socket = ""
        self.status: pb.Status | None = None
        self.past: list[pb.Status] = []
        self.failure: ReceiverError | None = None
        self.call: Any = None
        self._lane = lane
        self._placement = placement
        self._assignment = pb.Command(assignment=pb.Assignment())
        self._share = pb.Command(beat=pb.Beat())
        self._finished = 0
        self._finish_command = pb.Command(finish=pb.Finish())
        self._commands: queue.SimpleQueue[pb.Command | None] = queue.SimpleQueue()

    @property
    def incarnation(self) -> int:
        return self._placement.incarnations[self._lane]

    # Commands. They never wait: SimpleQueue takes them even from a signal handler.

    def assign(self, sources: Sequence[Source], shared: Iterable[Source], moved: Iterable[Source]) -> None:
        self._assignment = pb.Command(
            assignment=pb.Assignment(
                sources=map(from_source, sources), shared=map(from_source, shared), moved=map(from_source, moved)
            )
        )
        self._commands.put(self._assignment)

    def share(self, share: pb.Share) -> None:
        self._share = pb.Command(share=share)
        self._commands.put(self._share)

    def finish(self, before: int) -> None:
        if before > self._finished:
            self._finished = before
            self._finish_command = pb.Command(finish=pb.Finish(before=before))
            self._commands.put(self._finish_command)

    def beat(self) -> None:
        self._commands.put(pb.Command(beat=pb.Beat()))

    def stop(self) -> None:
        self._commands.put(pb.Command(stop=pb.Stop()))

    def begin(self, beginning: Beginning, resume: bool) -> "queue.SimpleQueue[pb.Command | None]":
        """Commands for a stream that begins: all that holds, and then what comes."""
        commands: queue.SimpleQueue[pb.Command | None] = queue.SimpleQueue()
        message = to_message(beginning)
        message.resume = resume
        commands.put(pb.Command(begin=message))
        self._commands = commands
        for newest in (lambda: self._assignment, lambda: self._share, lambda: self._finish_command):
            _put_newest(commands, newest)
        return commands

    def leave(self) -> None:
        """Nobody holds the lane any more."""
        if self.status:
            self.past = [merge([*self.past, self.status])]
        self.status = None
        self._assignment = pb.Command(assignment=pb.Assignment())
        self._share = pb.Command(beat=pb.Beat())


def _put_newest(commands: "queue.SimpleQueue[pb.Command | None]", newest: Callable[[], pb.Command]) -> None:
    """Another thread may put a newer one in between, which then has to come last."""
    put = None
    while put is not newest():
        put = newest()
        commands.put(put)


class Fleet:
    """``receivers`` grows as receivers come; one that is gone leaves its lane to the next."""

    def __init__(
        self,
        options: ReceiverOptions,
        beginning: Beginning,
        in_flight_max: int,
        wake: Callable[[], None],
        members_changed: Callable[[], None],
        connection_lost: Callable[[], None],
    ) -> None:
        self.receivers: list[RemoteReceiver] = []
        self.failure: ReceiverError | None = None
        self._options = options
        self._beginning = beginning
        self._wake = wake
        self._members_changed = members_changed
        self._connection_lost = connection_lost
        self._token = beginning.token
        if options.token_file:
            self._token = read_token(options.token_file, "option receiverTokenFile")
        self._lock = threading.RLock()
        self._placement = Placement(in_flight_max, options.lease_s)
        self._threads: list[threading.Thread] = []
        self._stopping = False
        self._failed_connections = 0
        self._coordinator = ""
        # Why receivers on executors' hosts did not start.
        self._failures: list[str] = []
        # Batches without rows, in which receivers are started.
        self._rounds = 0
        self._had_round = False
        self._round_at = 0.0
        self._gathering: dict[str, float] = {}
        self._gathered_at = 0.0

    @property
    def live(self) -> list[int]:
        """The lanes that receive."""
        with self._lock:
            return [member.lane for member in self._placement.receiving]

    def start(self, coordinator: str) -> None:
        """``coordinator`` is where receivers on executors find the driver."""
        self._coordinator = coordinator
        self._run(self._watch)
        for address in self._options.addresses:
            self._run(self._keep, str(address))

    def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, name=work.__name__, daemon=True)
        if work != self._watch:
            with self._lock:
                self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def begin_stop(self) -> None:
        """Takes no lock: it is called in a signal handler."""
        self._stopping = True
        for receiver in list(self.receivers):
            receiver.stop()

    def end_stop(self) -> None:
        """Wait until all have given back what they held."""
        deadline = time.monotonic() + _STOP_S
        while any(thread.is_alive() for thread in list(self._threads)) and time.monotonic() < deadline:
            time.sleep(_STOP_LOOK_S)

    # Receivers that come, work and go.

    def register(self, host: str, address: str, instance: str) -> bool:
        """A receiver on an executor's host is ready; False when it is not needed any more."""
        with self._lock:
            former = self._placement.at(host)
        if former:
            if self.receivers[former.lane].instance == instance:
                return True
            self._lose(former, "another one has taken its place", certainly=True)
        member = None if self._stopping else self._join(host, address, instance)
        if member is None:
            return False
        self._rounds = 0
        self._run(self._attend, member)
        return True

    def note_failure(self, reason: str) -> None:
        """A receiver on an executor's host could not start, and will be tried again."""
        shown = reason[:_FAILURE_SIZE_MAX]
        with self._lock:
            if shown in self._failures or len(self._failures) == _FAILURES_MAX:
                return
            self._failures.append(shown)
        log.warning("a host has no receiver: %s", shown)

    def _join(self, host: str, address: str, instance: str = "") -> Member | None:
        with self._lock:
            if self._placement.at(host):
                return None
            member = self._placement.join(host, time.monotonic())
            self._list_lanes()
            if member is None:
                log.warning("there are too many receivers: the one at %s is left out", address)
            else:
                receiver = self.receivers[member.lane]
                receiver.address, receiver.instance = address, instance
            return member

    def _list_lanes(self) -> None:
        while len(self.receivers) < len(self._placement.incarnations):
            self.receivers.append(RemoteReceiver(len(self.receivers), self._placement))

    def _keep(self, address: str) -> None:
        """A receiver at a fixed address: call it again whenever it is lost."""
        while not self._stopping:
            if member := self._join(address, address):
                self._attend(member)
            time.sleep(_RETRY_S)

    def _attend(self, member: Member) -> None:
        """Keep a receiver's stream until it is lost."""
        receiver = self.receivers[member.lane]
        failures = 0
        while self._placement.holds(member):
            try:
                self._follow(member, receiver)
                self._lose(member, "it has stopped", certainly=True)
            except (grpc.RpcError, OSError) as error:
                code = error.code() if isinstance(error, grpc.Call) else None
                if code == grpc.StatusCode.NOT_FOUND:
                    self._lose(member, "it was started again", certainly=True)
                    return
                if code in _REFUSALS:
                    self.failure = ReceiverError(f"the receiver at {receiver.address} refuses to work: {_shown(error)}")
                failures += 1
                if failures.bit_count() == 1 and self._placement.holds(member):
                    # The first time, and ever more rarely.
                    log.warning("receiver %s: %s; calling it again", receiver.address, _shown(error))
                if self._stopping:
                    return
                time.sleep(_RETRY_S)

    def _follow(self, member: Member, receiver: RemoteReceiver) -> None:
        beginning = replace(self._beginning, lane=member.lane, first_position=first_position(member.incarnation))
        with self._lock:
            if not self._placement.holds(member):
                # The lane may be another receiver's, and with it the commands.
                return
            commands = receiver.begin(beginning, resume=member.live)
        with open_channel(receiver.address, self._options.tls) as channel:
            stub: Any = receiver_pb2_grpc.ReceiverStub(channel)  # type: ignore[no-untyped-call]
            receiver.call = stub.Control(iter(commands.get, None), metadata=[(TOKEN_KEY, self._token)])
            try:
                for status in receiver.call:
                    if not self._placement.holds(member):
                        return
                    self._take(member, receiver, status)
            finally:
                commands.put(None)

    def _take(self, member: Member, receiver: RemoteReceiver, status: pb.Status) -> None:
        with self._lock:
            if not self._placement.holds(member):
                return
            is_new = not member.live
            self._placement.heard(member, status.share, status.charge, time.monotonic(), status.busy)
            receiver.socket = status.socket
            receiver.status = with_all_sources(status, receiver.status)
        if is_new:
            log.info("receiver %s has lane %d", receiver.address, member.lane)
            self._members_changed()
        if status.has_sources:
            failed = failed_connections(status)
            if failed > self._failed_connections:
                self._connection_lost()
            self._failed_connections = max(self._failed_connections, failed)
        self._wake()

    def _lose(self, member: Member, reason: str, certainly: bool) -> None:
        with self._lock:
            if not self._placement.holds(member):
                return
            receiver = self.receivers[member.lane]
            receiver.leave()
            self._placement.leave(member, time.monotonic(), certainly)
            call = receiver.call
        if call:
            call.cancel()
        if not self._stopping:
            log.warning("receiver %s lost: %s; nsqds deliver again what it held", receiver.address, reason)
            self._members_changed()
        self._wake()

    def _watch(self) -> None:
        beat_s = self._options.lease_s / _BEATS
        beat_at = 0.0
        while True:
            now = time.monotonic()
            try:
                self._lose_silent(now)
                if now >= beat_at:
                    beat_at = now + beat_s
                    self._beat()
                self._share_out(now)
            except Exception:
                # Without this thread no receiver would ever get anything again.
                log.exception("looking after the receivers failed")
            time.sleep(min(_LOOK_S, beat_s))

    def _lose_silent(self, now: float) -> None:
        with self._lock:
            expired = self._placement.expired(now)
        for member in expired:
            # One at a fixed address may be there an hour later.
            if member.live or self._options.on_executors:
                self._lose(member, "nothing was heard of it for a lease", certainly=False)

    def _beat(self) -> None:
        with self._lock:
            for member in self._placement.members:
                self.receivers[member.lane].beat()

    def _share_out(self, now: float) -> None:
        with self._lock:
            count = max(1, len(self._placement.live))
            for member, share in self._placement.shares(now).items():
                self.receivers[member.lane].share(
                    pb.Share(
                        number=share.number,
                        in_flight_max=share.in_flight_max,
                        bytes_max=max(1, self._beginning.limits.bytes_max // count),
                        status_interval_ms=max(STATUS_MS_MIN, round(count * STATUS_MS_PER_RECEIVER)),
                    )
                )

    # What tasks ask.

    def is_lost(self, lane: int, first: int) -> bool:
        """Whether the receiver that held these positions is dead, or given up: nobody will finish them."""
        with suppress(IndexError):
            return incarnation_of(first) != self._placement.incarnations[lane]
        return True

    def gathered(self, host: str) -> bool:
        """Whether a task that was to start a receiver on its host may end: it also keeps others from its place."""
        now = time.monotonic()
        with self._lock:
            if host not in self._gathering:
                self._gathering[host] = self._gathered_at = now
            member = self._placement.at(host)
            is_there = member is not None and member.live
            has_waited = now - self._gathering[host] > _GATHER_S_MAX
            return self._stopping or ((is_there or has_waited) and now - self._gathered_at >= _GATHER_S)

    # Batches without rows.

    def new_round(self, is_waited_for: Callable[[], bool]) -> dict[int, int] | None:
        """What makes a batch whose tasks start receivers: ends of lanes. None where there is no need of one."""
        if not self._options.on_executors or self._placement.members:
            return None
        now = time.monotonic()
        if self._had_round and (now - self._round_at < _ROUND_PAUSE_S or not is_waited_for()):
            return None
        with self._lock:
            if self._rounds == _ROUNDS_MAX:
                self.failure = ReceiverError(self._why_nobody_comes())
            self._rounds += 1
            self._round_at = now
            self._gathering.clear()
            if not self._had_round:
                # It differs from the offset before by its session.
                self._had_round = True
                return {}
            lane = self._placement.skip()
            self._list_lanes()
            return None if lane is None else {lane: first_position(self._placement.incarnations[lane])}

    def _why_nobody_comes(self) -> str:
        reasons = "; ".join(self._failures) or (
            f"none that may have started has reached the driver at {self._coordinator}. Option receiverHost says at "
            "which address it can be reached; the executors' logs tell more"
        )
        return f"no receiver came from the executors {_ROUNDS_MAX} times: {reasons}"


def _shown(error: BaseException) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name} {error.details()}"
    return str(error) if isinstance(error, NsqError) else repr(error)
