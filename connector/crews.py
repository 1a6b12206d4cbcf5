"""The receivers of a query: processes beside the driver, or on other hosts. To the coordinator both are the same."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, Protocol

import grpc

from pyspark_nsq.connector.beginning import Beginning
from pyspark_nsq.connector.channels import PORTS_S, Guard, listen, make_server
from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.errors import NsqError
from pyspark_nsq.connector.fleet import Fleet
from pyspark_nsq.connector.hosts import driver_address, is_network
from pyspark_nsq.connector.options import SourceOptions
from pyspark_nsq.connector.receiver import Setup
from pyspark_nsq.connector.receiver_process import ReceiverProcess
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.connector.ways import Starting, Way
from pyspark_nsq.connector.windows import split_evenly
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc

_LOOPBACK: Final = "127.0.0.1"
_THREADS_MAX: Final = 32
# Ranges that tasks have asked about are counted once; of so many.
_RANGES_MAX: Final = 10_000


class Receiver(Protocol):
    """A lane, with the receiver that holds it; ``status`` is None without one."""

    @property
    def address(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def status(self) -> pb.Status | None: ...
    @property
    def past(self) -> list[pb.Status]: ...
    def assign(self, sources: Sequence[Source], shared: Iterable[Source], moved: Iterable[Source]) -> None: ...
    def finish(self, before: int) -> None: ...


class Crew(Protocol):
    @property
    def receivers(self) -> Sequence[Receiver]:
        """One for each lane; with receivers on other hosts it grows."""
        ...

    @property
    def way(self) -> Way | None:
        """How tasks get to them, where an address is not all."""
        ...

    @property
    def lost(self) -> int:
        """Messages of ranges that tasks asked for in vain, where receivers do not count them."""
        ...

    @property
    def live(self) -> Sequence[int]:
        """The lanes that sources can be dealt to."""
        ...

    @property
    def failure(self) -> NsqError | None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def new_round(self, is_waited_for: Callable[[], bool]) -> dict[int, int] | None: ...
    def socket_of(self, lane: int) -> str: ...


class LocalCrew:
    """A fixed number of processes, each with its share of the budget."""

    def __init__(
        self, options: SourceOptions, query: Beginning, wake: Callable[[], None], connection_lost: Callable[[], None]
    ) -> None:
        self._options = options
        self._query = query
        count = options.receivers.count
        self.receivers = [
            ReceiverProcess(self._setup_of(index), query.token, wake, connection_lost) for index in range(count)
        ]
        self.live = range(count)
        self.way = Way(options.receivers.tls, query.token) if options.receivers.tls else None
        self.lost = 0

    @property
    def failure(self) -> NsqError | None:
        return next((receiver.failure for receiver in self.receivers if receiver.failure), None)

    def start(self) -> None:
        for receiver in self.receivers:
            receiver.start()

    def stop(self) -> None:
        for receiver in self.receivers:
            receiver.begin_stop()
        for receiver in self.receivers:
            receiver.end_stop()

    def new_round(self, is_waited_for: Callable[[], bool]) -> None:
        """They are started here, not in a batch."""

    def socket_of(self, lane: int) -> str:  # noqa: ARG002 (the protocol's name)
        return ""

    def _setup_of(self, index: int) -> Callable[[int, int], Setup]:
        query, place = self._query, self._options.receivers
        limits = replace(
            query.limits,
            in_flight_max=split_evenly(self._options.in_flight_max, place.count)[index],
            bytes_max=self._options.in_flight_bytes_max // place.count,
        )
        host = driver_address(place.host) if place.host else _LOOPBACK

        def make_setup(first: int, port: int) -> Setup:
            return Setup(
                host=host,
                ports=range(port, port + 1) if port else place.ports,
                token=query.token,
                first_position=first,
                limits=limits,
                connection=query.connection,
                sources_interval_s=query.sources_interval_s,
                tls=place.tls,
                lane=index,
            )

        return make_setup


class RemoteCrew:
    """Those of a fleet, and the service at which they and the tasks ask the coordinator."""

    def __init__(
        self,
        options: SourceOptions,
        query: Beginning,
        wake: Callable[[], None],
        connection_lost: Callable[[], None],
        members_changed: Callable[[], None],
    ) -> None:
        self._options = options.receivers
        self._query = query
        self._fleet = Fleet(options.receivers, query, options.in_flight_max, wake, members_changed, connection_lost)
        self._service = _CoordinatorService(self._fleet)
        self._server: grpc.Server | None = None
        self.receivers = self._fleet.receivers
        self.way: Way | None = None

    @property
    def live(self) -> list[int]:
        return self._fleet.live

    @property
    def lost(self) -> int:
        return self._service.lost

    @property
    def failure(self) -> NsqError | None:
        return self._fleet.failure

    def start(self) -> None:
        options, token = self._options, self._query.token
        host = driver_address(options.host)
        self._server = make_server(_THREADS_MAX, [Guard(token)])
        receiver_pb2_grpc.add_CoordinatorServicer_to_server(self._service, self._server)  # type: ignore[no-untyped-call]
        port = listen(self._server, host, options.ports, options.tls, patience_s=PORTS_S)
        self._server.start()
        starting = None
        if options.on_executors:
            network = options.host if options.host and is_network(options.host) else None
            starting = Starting(network, options.ports, options.lease_s)
        coordinator = str(Address(host, port))
        self.way = Way(options.tls, token, coordinator, starting)
        self._fleet.start(coordinator)

    def stop(self) -> None:
        self._fleet.begin_stop()
        self._fleet.end_stop()

    def new_round(self, is_waited_for: Callable[[], bool]) -> dict[int, int] | None:
        return self._fleet.new_round(is_waited_for)

    def socket_of(self, lane: int) -> str:
        return self._fleet.receivers[lane].socket


class _CoordinatorService(receiver_pb2_grpc.CoordinatorServicer):
    def __init__(self, fleet: Fleet) -> None:
        self.lost = 0
        self._fleet = fleet
        self._lock = threading.Lock()
        self._lost_ranges: set[tuple[int, int]] = set()

    def Register(  # noqa: N802 (the contract's name, as those below)
        self, request: pb.Registration, _context: grpc.ServicerContext
    ) -> pb.Registered:
        if request.failure:
            self._fleet.note_failure(request.failure)
            return pb.Registered(ended=True)
        return pb.Registered(ended=not self._fleet.register(request.host, request.address, request.instance))

    def Gather(self, request: pb.Gathering, _context: grpc.ServicerContext) -> pb.Gathered:  # noqa: N802
        return pb.Gathered(done=self._fleet.gathered(request.host))

    def Look(self, request: pb.Range, _context: grpc.ServicerContext) -> pb.Fate:  # noqa: N802
        is_lost = self._fleet.is_lost(request.lane, request.first)
        if is_lost:
            self._count(request)
        return pb.Fate(lost=is_lost)

    def _count(self, lost: pb.Range) -> None:
        """Attempts and actions ask again."""
        with self._lock:
            if (lost.lane, lost.first) in self._lost_ranges or len(self._lost_ranges) >= _RANGES_MAX:
                return
            self._lost_ranges.add((lost.lane, lost.first))
            self.lost += lost.end - lost.first
