"""A query with many receivers, as a discrete-event simulation: who waits for whom, and who is busy.

nsqds send messages in pieces, as far as windows allow; receivers decode them one piece after the other; a batch takes
all that has arrived, its tasks run on the executors' cores, and when it is committed its messages are finished, which
opens the windows again. The planner, a Python process on the driver, reads the receivers' statuses and plans batches;
Spark's driver launches tasks one after the other, and takes a while for each batch in which it mostly waits.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple


@dataclass(frozen=True)
class Costs:
    """Seconds of a core's work."""

    nsqd_message: float
    receiver_message: float
    task_message: float
    # How long a batch takes even when it is empty.
    batch: float
    # Of Spark's driver, for each task; of the planner, for each lane of a batch and each status of a receiver.
    task: float
    lane: float
    status: float


@dataclass(frozen=True)
class Shape:
    """A cluster, and the options of the query. ``rate`` is what is published in all; None is as much as can be read."""

    nsqds: int
    hosts: int
    cores_per_host: int
    partitions: int
    in_flight_max: int
    message_bytes: int = 200
    # What one host's network carries, in bytes a second.
    network: float = 1.25e9
    rate: float | None = None
    # How often a receiver tells the driver what it has, at least: as the fleet does it.
    status_interval_s: float = 0.02
    status_interval_s_per_host: float = 0.002


class Result(NamedTuple):
    """Messages a second, how long they are in flight, and how much of their time the parts are busy."""

    rate: float
    batch_s: float
    latency_s: float
    busy: dict[str, float]

    @property
    def ceiling(self) -> str:
        """What holds it back: the window, where everything else has time left."""
        name = max(self.busy, key=lambda each: self.busy[each])
        return name if self.busy[name] > 0.85 else "maxInFlight"


@dataclass
class _Server:
    """One thing that does one thing after the other."""

    free_at: float = 0.0
    busy_s: float = 0.0

    def take(self, now: float, seconds: float) -> float:
        """When a piece of work that comes now is done."""
        self.free_at = max(self.free_at, now) + seconds
        self.busy_s += seconds
        return self.free_at


@dataclass
class _Flow:
    """A connection's way from an nsqd to a receiver."""

    number: int
    nsqd: int
    receiver: int
    window: int
    in_flight: int = 0
    # When the next piece is published.
    published_at: float = 0.0
    sending: bool = False


class Simulation:
    def __init__(self, shape: Shape, costs: Costs) -> None:
        self._shape, self._costs = shape, costs
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._nsqds = [_Server() for _ in range(shape.nsqds)]
        self._receivers = [_Server() for _ in range(shape.hosts)]
        self._networks = [_Server() for _ in range(shape.hosts)]
        self._cores = [_Server() for _ in range(shape.hosts * shape.cores_per_host)]
        self._driver = _Server()
        self._planner = _Server()
        flows = max(shape.nsqds, shape.hosts)
        window = max(1, shape.in_flight_max // flows)
        self._flows = [_Flow(index, index % shape.nsqds, index % shape.hosts, window) for index in range(flows)]
        # Pieces small enough for windows to work, large enough for the simulation to end.
        self._piece = max(1, min(2_000, window // 8))
        self._arrived = [0] * flows
        # When each batch was committed, and how many messages it had.
        self._done: list[tuple[float, int]] = []

    def at(self, time: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), work))

    def run(self, seconds: float) -> Result:
        for flow in self._flows:
            self._send(flow)
        self._statuses()
        self._plan()
        while self._events and self._events[0][0] < seconds:
            self._now, _, work = heapq.heappop(self._events)
            work()
        return self._result(seconds)

    # Messages.

    def _send(self, flow: _Flow) -> None:
        """Start a piece, if the window is open and something waits."""
        if flow.sending:
            return
        room = flow.window - flow.in_flight
        if room < min(self._piece, flow.window):
            return
        piece = min(self._piece, room)
        flow.sending = True
        begin = self._now
        if self._shape.rate is not None:
            flow.published_at += piece / (self._shape.rate / len(self._flows))
            begin = max(begin, flow.published_at)
        self.at(begin, lambda: self._serve(flow, piece))

    def _serve(self, flow: _Flow, piece: int) -> None:
        flow.in_flight += piece
        assert flow.in_flight <= flow.window
        sent = self._nsqds[flow.nsqd].take(self._now, piece * self._costs.nsqd_message)
        self.at(sent, lambda: self._receive(flow, piece))

    def _receive(self, flow: _Flow, piece: int) -> None:
        flow.sending = False
        arrived = self._networks[flow.receiver].take(self._now, piece * self._shape.message_bytes / self._shape.network)
        decoded = self._receivers[flow.receiver].take(arrived, piece * self._costs.receiver_message)
        self.at(decoded, lambda: self._arrive(flow, piece))
        self._send(flow)

    def _arrive(self, flow: _Flow, piece: int) -> None:
        self._arrived[flow.number] += piece

    # Batches.

    def _statuses(self) -> None:
        shape = self._shape
        interval = max(shape.status_interval_s, shape.status_interval_s_per_host * shape.hosts)
        self._planner.take(self._now, shape.hosts * self._costs.status)
        self.at(self._now + interval, self._statuses)

    def _plan(self) -> None:
        """The next batch: what has arrived when the driver comes to it."""
        planned = self._planner.take(self._now, len(self._flows) * self._costs.lane)
        self.at(planned + self._costs.batch, self._launch)

    def _launch(self) -> None:
        taken, self._arrived = self._arrived, [0] * len(self._flows)
        total = sum(taken)
        if not total:
            self.at(self._now + 0.01, self._plan)
            return
        tasks = min(self._shape.partitions, total)
        ended = self._now
        free = [(core.free_at, index) for index, core in enumerate(self._cores)]
        heapq.heapify(free)
        for _ in range(tasks):
            launched = self._driver.take(self._now, self._costs.task)
            _, index = free[0]
            done = self._cores[index].take(launched, total / tasks * self._costs.task_message)
            heapq.heapreplace(free, (done, index))
            ended = max(ended, done)
        self.at(ended, lambda: self._commit(taken))

    def _commit(self, taken_each: list[int]) -> None:
        self._done.append((self._now, sum(taken_each)))
        for flow, taken in zip(self._flows, taken_each, strict=True):
            flow.in_flight -= taken
            self._send(flow)
        self._plan()

    # What came of it.

    def _result(self, seconds: float) -> Result:
        """Of what came after the first batches: those fill the windows."""
        late = self._done[len(self._done) // 3 :]
        if len(late) < 2:
            raise ValueError(f"{seconds:g} s are too short for {self._shape}: {len(self._done)} batches")
        span = late[-1][0] - late[0][0]
        rate = sum(taken for _, taken in late[1:]) / span
        batch_s = span / (len(late) - 1)
        in_flight = sum(flow.in_flight for flow in self._flows)
        busy = {
            "nsqd": max(each.busy_s for each in self._nsqds) / seconds,
            "receiver": max(each.busy_s for each in self._receivers) / seconds,
            "network": max(each.busy_s for each in self._networks) / seconds,
            "executors": sum(each.busy_s for each in self._cores) / seconds / len(self._cores),
            "driver": self._driver.busy_s / seconds,
            "planner": self._planner.busy_s / seconds,
        }
        return Result(rate, batch_s, in_flight / rate, busy)
