"""A receiver as its coordinator sees it: a process to start, to command, and to start again when it has died."""

import logging
import math
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import grpc

from pyspark_nsq.connector.channels import PORTS_S, TOKEN_KEY, ListenError, open_channel
from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.errors import NsqError
from pyspark_nsq.connector.offsets import INCARNATION_MAX, first_position
from pyspark_nsq.connector.receiver import Setup
from pyspark_nsq.connector.receiver_tls import ReceiverTls
from pyspark_nsq.connector.report import merge
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.connector.spawning import environment
from pyspark_nsq.connector.wire import failed_connections, from_source, with_all_sources
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc

log = logging.getLogger(__name__)

_COMMAND: Final = [sys.executable, "-P", "-m", "pyspark_nsq.connector.receiver"]
# Longer than a receiver needs to give everything back.
_STOP_S: Final = 6.0
_STOP_LOOK_S: Final = 0.01
_RESTART_S: Final = (0.1, 2.0)
# A receiver that lived so long did not die of its start.
_HEALTHY_S: Final = 30.0
_FAILED_STARTS_MAX: Final = 5

MakeSetup = Callable[[int, int], Setup]


class ReceiverError(NsqError):
    """Receivers do not start, or do not last."""


class ReceiverProcess:
    """``status`` is what the running receiver said last; None while there is none."""

    def __init__(
        self, make_setup: MakeSetup, token: str, changed: Callable[[], None], connection_lost: Callable[[], None]
    ) -> None:
        self.incarnation = 0
        self.address = ""
        self.status: pb.Status | None = None
        # What receivers before this one said last: their counts go on.
        self.past: list[pb.Status] = []
        self.failure: ReceiverError | None = None
        self._make_setup = make_setup
        self._token = token
        self._changed = changed
        self._connection_lost = connection_lost
        self._failed_connections = 0
        self._assignment = pb.Command()
        self._commands: queue.SimpleQueue[pb.Command | None] = queue.SimpleQueue()
        self._finished = 0
        self._port = 0
        self._failed_starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._supervise, name="receiver", daemon=True)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        self._thread.start()

    # Commands. They never wait: SimpleQueue takes them even from a signal handler.

    def assign(self, sources: Sequence[Source], shared: Iterable[Source], moved: Iterable[Source]) -> None:
        """It is to be connected to these; others hold messages of those that are shared, or have those that moved."""
        assignment = pb.Assignment(
            sources=map(from_source, sources), shared=map(from_source, shared), moved=map(from_source, moved)
        )
        self._assignment = pb.Command(assignment=assignment)
        self._commands.put(self._assignment)

    def finish(self, before: int) -> None:
        if before > self._finished:
            self._finished = before
            self._commands.put(pb.Command(finish=pb.Finish(before=before)))

    def begin_stop(self) -> None:
        self._stopping = True
        self._commands.put(pb.Command(stop=pb.Stop()))

    def end_stop(self) -> None:
        """Wait until the process has given back its messages and is gone; make it go if that takes too long.

        It runs in a signal handler, so perhaps in the middle of itself: locks could never be had again.
        """
        deadline = time.monotonic() + _STOP_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(_STOP_LOOK_S)
        if self._process and self._thread.is_alive():
            self._process.kill()

    # The process's life, in a thread of its own that lasts as long: its end would end the process.

    def _supervise(self) -> None:
        ports_deadline = math.inf
        while not self._stopping:
            started_at = time.monotonic()
            try:
                self._live()
                reason = "its process has ended"
            except ListenError as error:
                reason = str(error)
                # From the first refusal on: a process that starts slowly has not waited for the port meanwhile.
                ports_deadline = min(ports_deadline, time.monotonic() + PORTS_S)
                if not self._port and time.monotonic() >= ports_deadline:
                    self.failure = ReceiverError(reason)
            except (OSError, NsqError, grpc.RpcError) as error:
                reason = repr(error) if not isinstance(error, grpc.RpcError) else "its process has died"
            if self._stopping:
                return
            if self.status:
                self.past = [merge([*self.past, self.status])]
            self.status = None
            self.incarnation += 1
            self._count_failure(time.monotonic() - started_at, reason)
            log.warning("receiver lost: %s; starting another, nsqds deliver again what it held", reason)
            self._changed()
            time.sleep(min(_RESTART_S[0] * 2**self._failed_starts, _RESTART_S[1]))

    def _count_failure(self, lived_s: float, reason: str) -> None:
        self._failed_starts = 0 if lived_s > _HEALTHY_S else self._failed_starts + 1
        if self._failed_starts >= _FAILED_STARTS_MAX or self.incarnation > INCARNATION_MAX:
            self.failure = ReceiverError(f"receivers died {self.incarnation} times, the last one because {reason}")

    def _live(self) -> None:
        """One process from its start to its death."""
        # Its port may have been taken when it does not start there: ranges of the one before are out of reach then.
        port = self._port if self._failed_starts < 2 else 0
        setup = self._make_setup(first_position(self.incarnation), port)
        process = self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            start_new_session=True,
        )
        assert process.stdin
        assert process.stdout
        try:
            # Not in its arguments or environment: those can be read by others.
            pickle.dump(setup, process.stdin)
            process.stdin.flush()
            self._port = _port(process, process.stdout.readline().decode())
            self.address = str(Address(setup.host, self._port))
            self._follow(setup.tls)
        finally:
            _end(process, _STOP_S)
            process.stdout.close()

    def _take(self, status: pb.Status) -> None:
        self.status = with_all_sources(status, self.status)
        if status.has_sources:
            failed = failed_connections(status)
            if failed > self._failed_connections:
                self._connection_lost()
            self._failed_connections = failed
        self._changed()

    def _follow(self, tls: ReceiverTls | None) -> None:
        """Send commands and keep the newest state, until the receiver is gone."""
        commands = self._commands = queue.SimpleQueue()
        commands.put(self._assignment)
        if self._stopping:
            # Its command went to the queue before.
            commands.put(pb.Command(stop=pb.Stop()))
        with open_channel(self.address, tls) as channel:
            stub: Any = receiver_pb2_grpc.ReceiverStub(channel)  # type: ignore[no-untyped-call]
            try:
                for status in stub.Control(iter(commands.get, None), metadata=[(TOKEN_KEY, self._token)]):
                    self._take(status)
            finally:
                commands.put(None)


def _port(process: "subprocess.Popen[bytes]", line: str) -> int:
    """What a receiver has printed at its start, or its end."""
    if not line:
        raise ReceiverError(f"the receiver ended at its start with code {process.wait()}: see its log above")
    if not line.strip().isdecimal():
        raise ListenError(line.strip())
    return int(line)


def _end(process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
    """The end of its standard input ends a receiver; one that does not notice is killed."""
    try:
        if process.stdin:
            process.stdin.close()
    except BrokenPipeError:
        pass  # It has died before it read all that it was told.
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
