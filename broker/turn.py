"""What happens once a turn of the event loop, for all connections together.

Connections that were read, greenlets that have published, channels whose consumers have room: each says so, and one
callback at the end of the turn commits everything that was published, hands out messages, and lets each connection
send what it has in one go. So a busy turn costs one write of the log and one system call a connection, an idle loop
nothing. Only the first few publishers of a round of the loop have turns of their own (see ``connections``).
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from gevent.event import Event

from pyspark_nsq.broker.channel import Channel, Consumer
from pyspark_nsq.broker.engine import Engine, SyncJob
from pyspark_nsq.broker.engine import Event as EngineEvent
from pyspark_nsq.broker.session import Session, Subscriber

# What is handed out to one client at once.
OUTPUT_SIZE_MAX: Final = 1024 * 1024
# What is handed out beside what a client has left unread, together with that: who does not read at all would be given
# more with each time-out of what it has.
UNSENT_SIZE_MAX: Final = 64 * 1024
# So long a turn hands out messages; to send them takes about as long again. Then others are heard: thousands of
# consumers whose messages have timed out together would take seconds.
_HANDING_OUT_NS: Final = 20_000_000


class Sender(Protocol):
    """A connection as the turn sees it."""

    session: Session
    touched: bool
    unsent_size: int
    starved: bool

    def flush(self, now: int) -> None:
        """Send what the session has to say."""


class Turn:
    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], int],
        schedule: Callable[[Callable[[], None]], object],
        start_sync: Callable[[SyncJob], None],
        on_events: Callable[[list[EngineEvent]], None],
        set_timer: Callable[[int], None],
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._schedule = schedule
        self._start_sync = start_sync
        self._on_events = on_events
        self._set_timer = set_timer
        self._scheduled = False
        self._touched: list[Sender] = []
        self._woken: dict[Channel, list[Consumer]] = {}
        self._waiting: list[tuple[Callable[[], bool], Event]] = []
        self._held: list[Sender] = []
        self._rotation = 0
        self._late_at = 0  # when this turn has handed out for long enough
        self._was_late = False

    def touch(self, sender: Sender) -> None:
        """Something was read from this connection, or it has something to say."""
        if not sender.touched:
            sender.touched = True
            self._touched.append(sender)
            if not self._scheduled:
                self.request()

    def wake(self, channel: Channel, consumer: Consumer) -> None:
        """This consumer can take more than when its channel was last looked at."""
        self._woken.setdefault(channel, []).append(consumer)
        if not self._scheduled:
            self.request()

    def request(self) -> None:
        """Have a turn even though nothing was read: the engine was changed from elsewhere."""
        if not self._scheduled:
            self._scheduled = True
            self._schedule(self._run)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Block this greenlet until a turn has made the condition true."""
        event = Event()
        self._waiting.append((condition, event))
        self.request()
        event.wait()

    def hold(self, sender: Sender) -> None:
        """The output of this connection cannot leave yet: it waits for an fsync, or for a topic to start."""
        self._held.append(sender)

    def synced(self, job: SyncJob) -> None:
        """An fsync has ended: replies that waited for it can go."""
        self._engine.synced(job, self._clock())
        self.resume()

    def resume(self) -> None:
        """What connections and greenlets waited for may have happened."""
        senders, self._held = self._held, []
        for sender in senders:
            self.touch(sender)
        self.request()

    def _run(self) -> None:
        self._scheduled = False
        self.take()

    def answer(self, sender: Sender) -> None:
        """Have a turn here and now for what this connection has published."""
        if not sender.touched:
            sender.touched = True
            self._touched.append(sender)
        self.take()

    def take(self) -> None:
        """One turn."""
        now = self._clock()
        engine = self._engine
        events = engine.take_events()
        if events:
            self._on_events(events)
        engine.tick(now)
        engine.commit(now)
        job = engine.next_sync(now)
        if job is not None:
            self._start_sync(job)
        self._hand_out(now)
        if self._was_late:
            self._scheduled = True  # who asks from here on: the timer does
        touched, self._touched = self._touched, []
        for sender in touched:
            sender.touched = False
            sender.flush(now)
        if self._waiting:
            self._release()
        if self._was_late:
            # What is called back at the end of a turn may come before anybody is heard; a timer comes after.
            self._scheduled = False
            self._set_timer(now)
        else:
            self._set_timer(engine.next_deadline(now))

    def _hand_out(self, now: int) -> None:
        """To whom it can. Channels that are not reached are the first of the next turn."""
        self._was_late = False
        ready = self._engine.take_ready()
        if not ready and not self._woken:
            return
        self._late_at = self._clock() + _HANDING_OUT_NS
        for position, channel in enumerate(ready):
            if self._is_late():
                self._engine.serve_first(ready[position:])
                break
            self._pump(channel, channel.consumers, now)
        if self._woken:
            woken, self._woken = self._woken, {}
            for channel, consumers in woken.items():
                if self._is_late():
                    channel.note_ready()
                else:
                    self._pump(channel, consumers, now)

    def _is_late(self) -> bool:
        if self._clock() >= self._late_at:
            self._was_late = True
        return self._was_late

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for condition, event in waiting:
            if condition():
                event.set()
            else:
                self._waiting.append((condition, event))

    def _pump(self, channel: Channel, consumers: list[Consumer], now: int) -> None:
        """Hand out what the channel has, in equal shares where several can take it."""
        if len(consumers) == 1:
            self._deliver(channel, consumers[0], now, channel.depth)
            return
        self._rotation += 1
        if channel.ranked:
            for group in _by_rank(consumers):
                self._share_out(channel, group, now)
        else:
            self._share_out(channel, consumers, now)

    def _share_out(self, channel: Channel, consumers: list[Consumer], now: int) -> None:
        able = _able(consumers)
        while able and (depth := channel.depth) > 0:
            share = -(-depth // len(able))
            first = self._rotation % len(able)
            served: list[Consumer] = []
            for visited, one in enumerate(able[first:] + able[:first]):
                if self._is_late():
                    self._rotation += visited
                    channel.note_ready()
                    return
                if self._deliver(channel, one, now, share):
                    served.append(one)
            able = _able(served)  # who took nothing now cannot: it does not read

    def _deliver(self, channel: Channel, consumer: Consumer, now: int, limit: int) -> int:
        room = min(consumer.ready_count - consumer.in_flight_count, limit)
        assert isinstance(consumer, Subscriber)
        session = consumer.session
        sender = session.owner
        if room <= 0 or session.finished:
            return 0
        unread = sender.unsent_size
        size_max = (UNSENT_SIZE_MAX - unread if unread else OUTPUT_SIZE_MAX) - session.output.size
        if size_max <= 0:
            sender.starved = True
            return 0
        buffers, count = channel.deliver(consumer, now, room, size_max)
        if count:
            session.output.hand_out(buffers, sum(map(len, buffers)))
            sender.starved = count < room
            if not sender.touched:
                sender.touched = True
                self._touched.append(sender)
        return count


def _by_rank(consumers: Iterable[Consumer]) -> list[list[Consumer]]:
    """The nearest first."""
    groups: dict[int, list[Consumer]] = {}
    for one in consumers:
        groups.setdefault(one.nearness.rank, []).append(one)
    return [groups[rank] for rank in sorted(groups)]


def _able(consumers: Iterable[Consumer]) -> list[Consumer]:
    return [one for one in consumers if one.ready_count > one.in_flight_count]
