"""Which receiver holds which lane, for how long, and how much of the query's budget it has.

Receivers elsewhere than beside the driver come and go with their hosts. Each that comes takes a vacant lane, or a new
one; it holds the lane for as long as it is heard of within a lease. When it is gone the lane's incarnation goes up, so
that positions of two receivers never mix. Numbers and times in, decisions out; no thread, no socket, no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Final, NamedTuple, TypeVar

from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.offsets import INCARNATION_MAX
from pyspark_nsq.connector.windows import share_budget

LANES_MAX: Final = 1024

_Many = TypeVar("_Many")
_Few = TypeVar("_Few")


class Share(NamedTuple):
    """A part of the budget, as it was given out."""

    number: int
    in_flight_max: int


@dataclass(eq=False)
class Member:
    """A receiver with the lane that it holds."""

    lane: int
    incarnation: int
    # A host has one receiver of the query; a second one means that the first is dead.
    host: str
    heard_at: float
    # It has said something: before that it gets nothing to do.
    live: bool = False
    # Given out, and not yet known to be replaced by the next one; never empty.
    shares: list[Share] = field(default_factory=lambda: [Share(0, 0)])
    # How many messages it may have in flight, whatever happens.
    charge: int = 0
    # It uses what it has, and could use more.
    is_busy: bool = False

    @property
    def hold(self) -> int:
        """What nobody else may have of the budget."""
        return max(self.charge, *(share.in_flight_max for share in self.shares), 0)


class Placement:
    """``incarnations`` has one number for each lane, held or vacant."""

    def __init__(self, in_flight_max: int, lease_s: float) -> None:
        self.incarnations: list[int] = []
        self._in_flight_max = in_flight_max
        self._lease_s = lease_s
        self._members: dict[int, Member] = {}
        # What receivers may still have in flight although they are given up, and until when.
        self._retired: list[tuple[float, int]] = []

    @property
    def members(self) -> list[Member]:
        return list(self._members.values())

    @property
    def live(self) -> list[Member]:
        """Those that work, by lane."""
        return [member for _, member in sorted(self._members.items()) if member.live]

    @property
    def receiving(self) -> list[Member]:
        """Of these, those that get a share: sources dealt to the others would never be read."""
        return self.live[: self._in_flight_max]

    def at(self, host: str) -> Member | None:
        return next((member for member in self._members.values() if member.host == host), None)

    def join(self, host: str, now: float) -> Member | None:
        """A receiver gets a lane; None where there are too many."""
        lane = self._vacant()
        if lane is None:
            return None
        member = self._members[lane] = Member(lane, self.incarnations[lane], host, now)
        return member

    def _vacant(self) -> int | None:
        for lane, incarnation in enumerate(self.incarnations):
            if lane not in self._members and incarnation < INCARNATION_MAX:
                return lane
        if len(self.incarnations) == LANES_MAX:
            return None
        self.incarnations.append(0)
        return len(self.incarnations) - 1

    def heard(self, member: Member, share_number: int, charge: int, now: float, is_busy: bool = False) -> None:
        """It lives, and this share holds."""
        member.live = True
        member.heard_at = now
        member.charge = charge
        member.is_busy = is_busy
        newest = member.shares[-1]
        member.shares = [share for share in member.shares if share.number >= share_number] or [newest]

    def expired(self, now: float) -> list[Member]:
        """Those that were not heard of for a lease."""
        return [member for member in self._members.values() if now - member.heard_at > self._lease_s]

    def leave(self, member: Member, now: float, certainly: bool) -> None:
        """It is dead, or given up: then it may go on receiving until it notices that its lease is over."""
        if self._members.get(member.lane) is not member:
            return
        del self._members[member.lane]
        if member.live:
            self.incarnations[member.lane] += 1
            if not certainly and member.hold:
                self._retired.append((now + self._lease_s, member.hold))

    def holds(self, member: Member) -> bool:
        return self._members.get(member.lane) is member

    def skip(self) -> int | None:
        """Count a vacant lane on without a receiver, so that there is a new offset; None where every lane is held."""
        lane = self._vacant()
        if lane is not None:
            self.incarnations[lane] += 1
        return lane

    def shares(self, now: float) -> dict[Member, Share]:
        """What to give out now: less at once, more as far as nobody else can still use it.

        It is divided as within a receiver over its sources.
        """
        live = self.live
        self._retired = [(until, count) for until, count in self._retired if now < until]
        if not live:
            return {}
        given: dict[Member, Share] = {}
        windows = share_budget([member.is_busy for member in live], self._in_flight_max)
        targets = list(zip(live, windows, strict=True))
        for member, target in targets:
            if target < member.shares[-1].in_flight_max:
                given[member] = _give(member, target)
        held = sum(member.hold for member in self._members.values()) + sum(count for _, count in self._retired)
        free = self._in_flight_max - held
        for member, target in targets:
            before = member.hold
            granted = min(target, before + max(0, free))
            if granted > member.shares[-1].in_flight_max:
                given[member] = _give(member, granted)
                free -= member.hold - before
        return given


def _give(member: Member, in_flight_max: int) -> Share:
    share = Share(member.shares[-1].number + 1, in_flight_max)
    member.shares.append(share)
    return share


def deal(
    sources: Sequence[Source], receivers: Sequence[int], before: Mapping[Source, Sequence[int]]
) -> dict[Source, list[int]]:
    """Which receivers connect to each source: one, or several where there are more receivers than sources.

    Everybody has about as much to do, and as little as possible moves.
    """
    if not sources or not receivers:
        return {}
    former = {(source, receiver) for source in sources for receiver in before.get(source, ())}
    if len(sources) >= len(receivers):
        kept = {source: min((r for r in before.get(source, ()) if r in receivers), default=None) for source in sources}
        return {source: [receiver] for source, receiver in _spread(sources, receivers, kept).items()}
    own = {receiver: next((s for s in sources if (s, receiver) in former), None) for receiver in receivers}
    dealt: dict[Source, list[int]] = {source: [] for source in sources}
    for receiver, source in _spread(receivers, sources, own).items():
        dealt[source].append(receiver)
    return dealt


def _spread(many: Sequence[_Many], few: Sequence[_Few], before: Mapping[_Many, _Few | None]) -> dict[_Many, _Few]:
    """One of the few for each of the many: the former one as far as all of the few get as many, or one more."""
    low, larger = divmod(len(many), len(few))
    room = dict.fromkeys(few, low)
    found: dict[_Many, _Few] = {}
    waiting = []
    for one in many:
        former = before.get(one)
        if former is None or former not in room:
            waiting.append(one)
        elif room[former] > 0:
            room[former] -= 1
            found[one] = former
        elif room[former] == 0 and larger:
            room[former] = -1
            larger -= 1
            found[one] = former
        else:
            waiting.append(one)
    loads = [(-left, index) for index, left in enumerate(room.values())]
    heapify(loads)
    for one in waiting:
        load, index = loads[0]
        heapreplace(loads, (load + 1, index))
        found[one] = few[index]
    return {one: found[one] for one in many}
