"""Which connection may have how many messages in flight, from moment to moment, and how many connections it takes."""

from collections.abc import Collection, Iterable
from typing import Final

from pyspark_nsq.connector.connection import Connection
from pyspark_nsq.connector.source_state import SourceState
from pyspark_nsq.connector.windows import connections_for, share_budget, split_window

# After it nsqd has read a RDY that was sent: until then it may still deliver under the one before.
RDY_GRACE_S: Final = 1.0
# How long a source that filled half of its window counts as busy.
_BUSY_S: Final = 5.0
# How long after that it keeps the connections that this took.
_KEEP_S: Final = 30.0
# A window that has been used up for so long is not about to grow: no other one shrinks, no connection is on its way.
_STUCK_S: Final = 2.0
# Where the sources outnumber the budget: how long one has its turn.
_TURN_S: Final = 2.0


def plan_ready(sources: Collection[SourceState], in_flight_max: int, is_paused: bool, now: float) -> None:
    """Give every connection its RDY; together they never allow more than ``in_flight_max``."""
    for state in sources:
        note_use(state, state.connections, now)
    staying = [state for state in sources if state.usable and not state.leaving]
    states = sorted(staying, key=lambda state: state.turn_ended_at)
    windows = share_budget([now < state.busy_until for state in states], 0 if is_paused else in_flight_max)
    targets: list[tuple[Connection, int]] = []
    for state, window in zip(states, windows, strict=True):
        _take_turn(state, window, now)
        targets += _plan_source(state, window, now)
    targets += [target for state in sources if state.leaving for target in _empty(state, now)]
    charged = sum(connection.charge(now) for state in sources for connection in state.connections)
    _set_ready(targets, in_flight_max - charged, now)


def note_use(state: SourceState, connections: Iterable[Connection], now: float) -> None:
    """A source of which one of these connections has used half of its window is busy for a while."""
    if any(connection.rdy and connection.in_flight * 2 >= connection.rdy for connection in connections):
        state.busy_until = now + _BUSY_S


def is_stuck(sources: Iterable[SourceState], now: float) -> bool:
    """Whether a source waits for something to be finished: to wait for more messages would hold its own up."""
    stuck = False
    for state in sources:
        if not state.is_used_up:
            state.used_up_since = None
        elif state.used_up_since is None:
            state.used_up_since = now
        else:
            stuck = stuck or now - state.used_up_since >= _STUCK_S
    return stuck


def _take_turn(state: SourceState, window: int, now: float) -> None:
    """After its turn a source queues up at the end: of use where not all can have a window."""
    if window == 0:
        state.turn_since = None
    elif state.turn_since is None:
        state.turn_since = now
    elif now - state.turn_since >= _TURN_S:
        state.turn_since, state.turn_ended_at = None, now


def _plan_source(state: SourceState, window: int, now: float) -> list[tuple[Connection, int]]:
    """The RDY that each connection of a source should have; also decides how many there should be."""
    usable = state.usable
    rdy_max = usable[0].max_rdy
    is_busy = now < state.busy_until
    # In quiet times one is enough, and messages that come one by one come soonest where they all take the same way.
    needed = connections_for(window, rdy_max) if now < state.busy_until + _KEEP_S else 1
    # One by one would take too long, all at once would be too many where nothing comes.
    state.wanted = min(needed, 2 * len(usable)) if is_busy else min(state.wanted, needed)
    # Where the window is 0 for the moment they will be needed again.
    surplus = usable[needed:] if window and not is_busy else []
    for connection in surplus:
        if connection.charge(now) == 0:
            connection.close()
    kept = usable[: len(usable) - len(surplus)]
    return [*zip(kept, split_window(window, len(kept), rdy_max), strict=True), *((c, 0) for c in surplus)]


def _empty(state: SourceState, now: float) -> list[tuple[Connection, int]]:
    """Of a source that is another receiver's: receive nothing more, and close what holds nothing more."""
    for connection in state.usable:
        if connection.rdy == 0 and connection.charge(now) == 0:
            connection.close()
    return [(connection, 0) for connection in state.usable]


def _set_ready(targets: list[tuple[Connection, int]], free: int, now: float) -> None:
    """Lower where it is to be lowered; raise as far as nobody else can still use what that takes."""
    for connection, rdy in targets:
        if rdy < connection.rdy:
            connection.set_rdy(rdy, now, RDY_GRACE_S)
        elif rdy > connection.rdy:
            charge = connection.charge(now)
            granted = max(connection.rdy, min(rdy, charge + max(0, free)))
            free -= max(0, granted - charge)
            connection.set_rdy(granted, now, RDY_GRACE_S)
