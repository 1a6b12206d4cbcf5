"""The receiver's gRPC side: hands the coordinator's commands to the loop, and messages to Spark's tasks."""

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final

import grpc
import pyarrow as pa

from pyspark_nsq.connector.channels import Guard, listen, make_server
from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.lanes import FinishedError
from pyspark_nsq.connector.offsets import POSITION_MAX
from pyspark_nsq.connector.receiver_core import ReceiverCore
from pyspark_nsq.connector.receiver_loop import ReceiverLoop
from pyspark_nsq.connector.receiver_tls import ReceiverTls
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.connector.shared_memory import memory_domain, offered
from pyspark_nsq.connector.source_state import Counts, SourceState
from pyspark_nsq.connector.wire import from_source, to_source
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc
from pyspark_nsq.proto.columns import MESSAGE_SCHEMA

# Messages are put together to pieces of about so many bytes, or so many messages: each costs Spark a record batch.
_PIECE_BYTES: Final = 2 * 1024 * 1024
_PIECE_MESSAGES: Final = 20_000
# Counters of many sources cost something each time; positions do not.
_SOURCES_INTERVAL_S: Final = 0.5
_STATUS_PAUSE_S: Final = 0.02
_THREADS_MAX: Final = 256
# A task has so long to open the memory that it was told of.
_OPEN_S: Final = 60.0
GIVING_BACK: Final = "this receiver gives back what it holds"


class StatusBoard:
    """The newest state of the core: written in the loop's thread, waited for by another."""

    def __init__(self, sources_interval_s: float = _SOURCES_INTERVAL_S) -> None:
        self._changed = threading.Condition()
        self._sources_interval_s = sources_interval_s
        self._sources_at = 0.0
        self._version = 0
        # The first version with these sources: to tell of many of them costs something, and each time.
        self._sources_version = 0
        self._positions = pb.Status()
        self._sources: list[pb.SourceStatus] = []

    def changed(self, core: ReceiverCore, now: float) -> None:
        lane = core.lane
        positions = pb.Status(
            end=lane.end,
            finished=lane.finished,
            held_messages=lane.held,
            held_bytes=lane.size,
            lost=core.lost,
            suspects=len(core.suspects),
            refusal=core.refusal,
            failure=core.failure,
            full=core.full,
            due=core.due,
            busy=core.busy,
            share=core.share_number,
            charge=core.charge,
        )
        with_sources = now - self._sources_at >= self._sources_interval_s
        if positions == self._positions and not with_sources:
            return
        sources = self._sources
        if with_sources:
            self._sources_at = now
            sources = [_source_status(state, core.paused) for state in core.sources.values()]
            sources += [_past_status(nsqd, counts) for nsqd, counts in core.past.items()]
        are_new = sources is not self._sources and sources != self._sources
        if not are_new and positions == self._positions:
            return
        with self._changed:
            self._version += 1
            self._positions = positions
            if are_new:
                self._sources, self._sources_version = sources, self._version
            self._changed.notify_all()

    def wait(self, version: int, timeout_s: float) -> tuple[int, pb.Status]:
        """The state after this version, or the same one after the time; with the sources if they are newer too."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > version, timeout_s)
            status = pb.Status()
            status.CopyFrom(self._positions)
            if self._sources_version > version:
                status.sources.extend(self._sources)
                status.has_sources = True
            return self._version, status

    def wake(self) -> None:
        with self._changed:
            self._version += 1
            self._changed.notify_all()


def _parts(share: pb.Share) -> tuple[int, int, int]:
    return share.number, share.in_flight_max, share.bytes_max


def _source_status(state: SourceState, is_paused: bool) -> pb.SourceStatus:
    return pb.SourceStatus(
        source=from_source(state.source),
        connections=sum(connection.subscribed for connection in state.connections),
        in_flight=sum(connection.in_flight for connection in state.connections),
        counters=pb.Counters(**vars(state.counts)),
        received_until_mark=state.received_until_mark,
        full=is_paused or state.is_used_up,
    )


def _past_status(nsqd: Address, counts: Counts) -> pb.SourceStatus:
    return pb.SourceStatus(source=from_source(Source("", nsqd)), counters=pb.Counters(**vars(counts)))


class ReceiverService(receiver_pb2_grpc.ReceiverServicer):
    def __init__(self, core: ReceiverCore, loop: ReceiverLoop, board: StatusBoard, lane: int = 0) -> None:
        self._core = core
        self._loop = loop
        self._board = board
        self._lane = lane

    def Control(  # noqa: N802 (the contract's name)
        self, commands: Iterable[pb.Command], context: grpc.ServicerContext
    ) -> Iterator[pb.Status]:
        threading.Thread(target=self._take, args=(commands,), name="commands", daemon=True).start()
        context.add_callback(self._board.wake)
        version = -1
        while context.is_active():
            newer, status = self._board.wait(version, timeout_s=5.0)
            if newer != version:
                version = newer
                yield status
                # What comes one by one is told at once, what comes quickly is told together.
                time.sleep(_STATUS_PAUSE_S)

    def _take(self, commands: Iterable[pb.Command]) -> None:
        try:
            for command in commands:
                self.obey(command)
        except grpc.RpcError:
            pass  # The coordinator is gone, which the lifeline tells for certain.

    def obey(self, command: pb.Command) -> None:
        match command.WhichOneof("kind"):
            case "assignment":
                sources = list(map(to_source, command.assignment.sources))
                shared = list(map(to_source, command.assignment.shared))
                moved = set(map(to_source, command.assignment.moved))
                self._loop.call(lambda _now: self._core.assign(sources, shared, moved))
            case "finish":
                before = command.finish.before
                self._loop.call(lambda now: self._core.finish(before, now))
            case "share":
                share = command.share
                self._loop.call(lambda now: self._core.take_share(*_parts(share), now))
            case "stop":
                self._loop.stop()

    def Read(  # noqa: N802 (the contract's name)
        self, request: pb.ReadRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.Rows]:
        if problem := _problem(request):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        if request.lane != self._lane or request.first < self._core.lane.first_position:
            self._loop.call(lambda _now: self._count_lost(request))
            context.abort(grpc.StatusCode.NOT_FOUND, "the receiver that held these messages has died")
        try:
            parts = self._loop.call(lambda _now: self._core.read(request.first, request.end)).result()
        except FinishedError as error:
            if self._core.stopping:
                context.abort(grpc.StatusCode.UNAVAILABLE, GIVING_BACK)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except ValueError as error:
            context.abort(grpc.StatusCode.OUT_OF_RANGE, str(error))
        columns = list(request.columns)
        if columns and request.memory_domain and request.memory_domain == memory_domain():
            return _rows_in_memory(parts, columns, context)
        return _rows(parts, columns)

    def Settle(  # noqa: N802 (the contract's name)
        self, request: pb.Verdicts, _context: grpc.ServicerContext
    ) -> pb.Suspects:
        return self._loop.call(lambda now: self._settle(request, now)).result()

    def _settle(self, verdicts: pb.Verdicts, now: float) -> pb.Suspects:
        for each in verdicts.finished:
            self._core.settle(to_source(each.source), each.ids, b"", now)
        for each in verdicts.unknown:
            self._core.settle(to_source(each.source), b"", each.ids, now)
        return pb.Suspects(
            messages=[
                pb.SourceMessages(source=from_source(source), ids=ids)
                for source, ids in self._core.suspects.ids().items()
            ]
        )

    def Judge(  # noqa: N802 (the contract's name)
        self, request: pb.Suspects, _context: grpc.ServicerContext
    ) -> pb.Verdicts:
        return self._loop.call(lambda _now: self._judge(request)).result()

    def _judge(self, suspects: pb.Suspects) -> pb.Verdicts:
        verdicts = pb.Verdicts()
        for each in suspects.messages:
            held, finished = self._core.judge(to_source(each.source), each.ids)
            verdicts.held.add(source=each.source, ids=held)
            verdicts.finished.add(source=each.source, ids=finished)
        return verdicts

    def _count_lost(self, request: pb.ReadRequest) -> None:
        self._core.count_lost(request.lane, request.first, request.end)


def _problem(request: pb.ReadRequest) -> str:
    """Why no coordinator can have given out this range, or no task have asked for it so."""
    if not request.first <= request.end <= POSITION_MAX:
        return f"positions {request.first} to {request.end} are no range"
    if unknown := set(request.columns) - set(MESSAGE_SCHEMA.names):
        return f"messages have no columns {sorted(unknown)}, but {MESSAGE_SCHEMA.names}"
    return ""


def _rows_in_memory(
    parts: list[tuple[Source, pa.RecordBatch]], columns: list[str], context: grpc.ServicerContext
) -> Iterator[pb.Rows]:
    ended = threading.Event()
    if not context.add_callback(ended.set):
        return
    with offered() as path:
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, _sent_schema(columns)) as stream:
            pieces = []
            for source, messages in _joined(parts):
                stream.write_batch(messages.select(columns))
                pieces.append(
                    pb.Rows(topic=source.topic, nsqd=str(source.nsqd), message_count=len(messages), memory=path)
                )
        yield from pieces
        ended.wait(_OPEN_S)


def _sent_schema(columns: list[str]) -> pa.Schema:
    return pa.schema([MESSAGE_SCHEMA.field(name) for name in columns])


def _rows(parts: list[tuple[Source, pa.RecordBatch]], columns: list[str]) -> Iterator[pb.Rows]:
    for source, messages in _joined(parts):
        rows = pb.Rows(topic=source.topic, nsqd=str(source.nsqd), message_count=len(messages))
        if columns:
            rows.columns = messages.select(columns).serialize().to_pybytes()
        yield rows


def _joined(parts: list[tuple[Source, pa.RecordBatch]]) -> Iterator[tuple[Source, pa.RecordBatch]]:
    """The same messages in the same order, in fewer and larger pieces."""
    waiting: list[pa.RecordBatch] = []
    size = count = 0
    for index, (source, messages) in enumerate(parts):
        waiting.append(messages)
        size += messages.nbytes
        count += len(messages)
        is_last = index + 1 == len(parts) or parts[index + 1][0] != source
        if is_last or size >= _PIECE_BYTES or count >= _PIECE_MESSAGES:
            yield source, pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]
            waiting, size, count = [], 0, 0


def serve(
    service: ReceiverService, token: str, host: str, ports: Iterable[int], tls: ReceiverTls | None
) -> tuple[grpc.Server, int]:
    """A started server and the port it got."""
    server = make_server(_THREADS_MAX, [Guard(token)])
    receiver_pb2_grpc.add_ReceiverServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    bound = listen(server, host, ports, tls)
    server.start()
    return server, bound
