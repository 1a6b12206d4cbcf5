"""The loop with nsqds that follow a script: what it sends at its end, and whom it keeps waiting."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from scripted_nsqd import Peer, Script, ScriptedNsqd

from pyspark_nsq.connector import client, receiver_loop
from pyspark_nsq.connector.attempts import Attempt, Attempts
from pyspark_nsq.connector.client import NsqdStream
from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.receiver_core import ReceiverCore
from pyspark_nsq.connector.receiver_loop import ReceiverLoop
from pyspark_nsq.connector.settings import Address, ConnectionSettings
from pyspark_nsq.connector.source_state import Limits
from pyspark_nsq.proto.commands import NOP
from pyspark_nsq.proto.frames import CLOSE_WAIT, HEARTBEAT, HEARTBEATS_MAX, RESPONSE, encode_frame, encode_message

LIMITS = Limits("c", 1000, 2**28, 2**24, None, None, 0.1, 1.0)

StartPeer = Callable[..., ScriptedNsqd]


class Observer:
    """How many connections of a source are subscribed."""

    def __init__(self) -> None:
        self.subscribed: dict[Source, int] = {}

    def changed(self, core: ReceiverCore, _now: float) -> None:
        self.subscribed = {
            source: sum(connection.subscribed for connection in state.connections)
            for source, state in core.sources.items()
        }


class Running:
    """A loop at work in a thread."""

    def __init__(self, settings: ConnectionSettings, limits: Limits) -> None:
        self.observer = Observer()
        self.core = ReceiverCore(limits, 0)
        self.loop = ReceiverLoop(self.core, settings, None, self.observer)
        self.thread = threading.Thread(target=self.loop.run, daemon=True)
        self.thread.start()

    def assign(self, *sources: Source) -> None:
        self.loop.call(lambda _now: self.core.assign(sources)).result()

    def stop(self) -> None:
        self.loop.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.loop.close()


StartLoop = Callable[..., Running]


@pytest.fixture
def start_loop() -> Iterator[StartLoop]:
    started: list[Running] = []

    def start(limits: Limits = LIMITS, **settings: Any) -> Running:
        started.append(Running(ConnectionSettings(**settings), limits))
        return started[-1]

    yield start
    for running in started:
        running.stop()


def wait_until(look: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def until_closed(peer: Peer) -> list[bytes]:
    """The commands before CLS."""
    lines = [peer.read_line()]
    while lines[-1] != b"CLS":
        lines.append(peer.read_line())
    return lines[:-1]


def subscribe(peer: Peer, **facts: object) -> None:
    peer.identify(**facts)
    assert peer.read_line().startswith(b"SUB ")
    peer.answer()


def answer_all(peer: Peer) -> None:
    subscribe(peer)
    until_closed(peer)
    peer.answer(CLOSE_WAIT)


def silent_until(event: threading.Event) -> Script:
    """Accepts, and says nothing."""

    def wait(_peer: Peer) -> None:
        event.wait(60)

    return wait


def test_a_message_that_crosses_the_end_is_given_back(start_peer: StartPeer, start_loop: StartLoop) -> None:
    given_back: list[bytes] = []
    ended = threading.Event()

    def cross(peer: Peer) -> None:
        subscribe(peer)
        assert peer.read_line().startswith(b"RDY ")
        peer.send(encode_message(1, 1, b"early-0123456789", b"body"))
        given_back.extend(until_closed(peer))
        # It was on its way before nsqd has read CLS.
        peer.send(encode_message(1, 1, b"late-00123456789", b"body"))
        peer.answer(CLOSE_WAIT)
        try:
            while True:
                given_back.append(peer.read_line())
        finally:
            ended.set()

    running = start_loop()
    running.assign(Source("t", start_peer(cross).address))
    wait_until(lambda: running.core.lane.end == 1)
    running.loop.stop()
    assert ended.wait(20)
    assert [line for line in given_back if line.startswith(b"REQ ")] == [
        b"REQ early-0123456789 0",
        b"REQ late-00123456789 0",
    ]


def test_what_an_nsqd_reads_late_is_given_back_too(
    start_peer: StartPeer, start_loop: StartLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not read before the time for its answer to CLS is over."""
    count = 20_000
    monkeypatch.setattr(receiver_loop, "_CLOSE_S", 0.1)
    is_over = threading.Event()
    given_back = bytearray()
    ended = threading.Event()

    def read_late(peer: Peer) -> None:
        subscribe(peer, max_rdy_count=count)
        assert peer.read_line() == b"RDY %d" % count
        for number in range(count):
            peer.send(encode_message(1, 1, b"%016d" % number, b""))
        is_over.wait(20)
        while piece := peer.socket.recv(2**20):
            given_back.extend(piece)
        ended.set()

    running = start_loop(replace(LIMITS, in_flight_max=count))
    requeue, unsent_sizes = running.core.requeue, list[int]()

    def note() -> None:
        requeue()
        unsent_sizes.append(link.stream.unsent_size)
        if len(unsent_sizes) == 2:
            monkeypatch.setattr(receiver_loop, "_CLOSE_S", 60.0)
            is_over.set()

    monkeypatch.setattr(running.core, "requeue", note)
    running.assign(Source("t", start_peer(read_late).address))
    wait_until(lambda: running.core.lane.end == count)
    (link,) = running.loop._links.values()
    # What the two sockets take is a small part of it.
    link.stream._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)
    running.loop.stop()
    assert ended.wait(20)
    assert unsent_sizes[1]
    assert given_back.count(b"REQ ") == count


def test_an_nsqd_that_never_answers_keeps_nobody_else_waiting(start_peer: StartPeer, start_loop: StartLoop) -> None:
    released = threading.Event()
    hanging = start_peer(silent_until(released))
    healthy = start_peer(answer_all)
    # Longer than the test waits.
    running = start_loop(connect_timeout_s=600.0)
    try:
        running.assign(*(Source(f"t{number}", hanging.address) for number in range(100)))
        wait_until(lambda: hanging.connection_count == 1)
        good = [Source("good", healthy.address), Source("better", healthy.address)]
        running.assign(*(Source(f"t{number}", hanging.address) for number in range(100)), *good)
        wait_until(lambda: all(running.observer.subscribed.get(source) for source in good))
        assert hanging.connection_count == 1
    finally:
        released.set()


def test_all_topics_of_an_nsqd_are_connected_once_it_answers(start_peer: StartPeer, start_loop: StartLoop) -> None:
    back = threading.Event()
    nsqd = start_peer(silent_until(back), answer_all)
    running = start_loop()
    sources = [Source(f"t{number}", nsqd.address) for number in range(30)]
    running.assign(*sources)
    wait_until(lambda: nsqd.connection_count == 1)
    back.set()
    wait_until(lambda: all(running.observer.subscribed.get(source) for source in sources))


def test_an_nsqd_that_breaks_its_connections_is_tried_one_by_one(start_peer: StartPeer, start_loop: StartLoop) -> None:
    breaks, released = threading.Event(), threading.Event()

    def break_off(peer: Peer) -> None:
        subscribe(peer)
        breaks.wait(20)

    broken = start_peer(break_off, break_off, break_off, silent_until(released))
    healthy = start_peer(answer_all)
    running = start_loop(connect_timeout_s=600.0)
    try:
        sources = [Source(f"t{number}", broken.address) for number in range(3)]
        running.assign(*sources)
        wait_until(lambda: all(running.observer.subscribed.get(source) for source in sources))
        breaks.set()
        wait_until(lambda: [running.core.sources[source].opening for source in sources] == [1, 1, 1])
        good = Source("good", healthy.address)
        running.assign(*sources, good)
        wait_until(lambda: running.observer.subscribed.get(good))
        assert broken.connection_count == 4
    finally:
        released.set()


def test_an_nsqd_that_sends_without_end_fills_its_socket_and_is_closed(
    start_peer: StartPeer, start_loop: StartLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    unasked_max, budget, piece = 4 * 2**20, 2**20, 2**20
    monkeypatch.setattr("pyspark_nsq.connector.memory.UNASKED_SIZE_MAX", unasked_max)

    def flood(peer: Peer) -> None:
        subscribe(peer)
        assert peer.read_line().startswith(b"RDY ")
        number = 0
        while True:
            number += 1
            peer.send(encode_message(1, 1, b"%016d" % number, bytes(100_000)))

    source = Source("t", start_peer(flood).address)
    running = start_loop(replace(LIMITS, bytes_max=budget))
    running.assign(source)
    wait_until(lambda: running.core.sources[source].counts.failed_connections)
    # Each limit is noticed with the piece that passes it.
    assert running.core.lane.size < budget + unasked_max + 3 * piece
    assert running.loop.call(lambda now: running.core.to_connect(now + 600)).result() == []
    running.loop.call(lambda now: running.core.finish(running.core.lane.end, now)).result()
    wait_until(lambda: running.core.sources[source].counts.failed_connections == 2)


def test_an_nsqd_that_never_reads_gets_no_answers_to_its_heartbeats(
    start_peer: StartPeer, start_loop: StartLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_stuck, has_seen_enough = threading.Event(), threading.Event()

    def never_read(peer: Peer) -> None:
        subscribe(peer)
        assert is_stuck.wait(20)
        for number in range(1, 21):
            peer.send(HEARTBEATS_MAX * encode_frame(RESPONSE, HEARTBEAT))
            peer.send(encode_message(1, 1, b"%016d" % number, b"body"))
            wait_until(lambda end=number: running.core.lane.end == end)
        has_seen_enough.wait(20)

    source = Source("t", start_peer(never_read).address)
    running = start_loop()
    running.assign(source)
    wait_until(lambda: running.observer.subscribed.get(source))
    (link,) = running.loop._links.values()
    # More than the kernel takes.
    running.loop.call(lambda _now: link.stream.queue(bytes(2**25))).result()
    queued: list[bytes] = []
    monkeypatch.setattr(link.stream, "queue", lambda *pieces: queued.extend(pieces))
    is_stuck.set()
    wait_until(lambda: running.core.lane.end == 20)
    has_seen_enough.set()
    assert link.stream.unsent_size > 0
    assert NOP not in queued


class ReluctantStream(NsqdStream):
    """To an nsqd that, after the handshake, takes one byte each time that it is offered any."""

    def flush(self) -> bool:
        if self._socket.gettimeout() != 0:
            return super().flush()
        if self._unsent:
            self._sent(self._socket.send(self._unsent[0][:1]))
        return not self._unsent


def test_who_reads_more_slowly_than_dead_letters_are_made_of_its_messages_is_not_read(
    start_peer: StartPeer, start_loop: StartLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsent_max, piece = 2**20, 2**20
    monkeypatch.setattr(receiver_loop, "_UNSENT_MAX", unsent_max)
    monkeypatch.setattr(client, "NsqdStream", ReluctantStream)

    def send_poison(peer: Peer) -> None:
        subscribe(peer)
        assert peer.read_line().startswith(b"RDY ")
        for number in range(100):
            peer.send(encode_message(1, 9, b"%016d" % number, bytes(2**18)))
        peer.read(2**30)

    nsqd = start_peer(send_poison)
    running = start_loop(replace(LIMITS, attempts_max=2, dead_letter_topic="dead"))
    running.assign(Source("t", nsqd.address))
    wait_until(lambda: running.loop.call(lambda _now: bool(running.loop._held)).result())
    (link,) = running.loop._links.values()
    assert unsent_max < link.stream.unsent_size < unsent_max + 2 * piece
    nsqd.close()


def test_an_nsqd_that_never_completes_a_frame_is_dead(start_peer: StartPeer, start_loop: StartLoop) -> None:
    ended = threading.Event()

    def drip(peer: Peer) -> None:
        subscribe(peer)
        try:
            for byte in encode_message(1, 1, b"0123456789abcdef", bytes(10_000)):
                peer.send(bytes([byte]))
                time.sleep(0.05)
        finally:
            ended.set()

    nsqd = start_peer(drip, answer_all)
    running = start_loop(heartbeat_interval_ms=200)
    running.assign(Source("t", nsqd.address))
    wait_until(lambda: nsqd.connection_count == 2)
    assert ended.wait(20)
    assert running.core.lane.end == 0


def attempt(topic: str, port: int = 1) -> Attempt:
    return Attempt(Source(topic, Address("h", port)), is_first=True)


def test_attempts_to_one_that_does_not_answer_come_one_by_one_and_fail_together() -> None:
    attempts, nsqd = Attempts(), Address("h", 1)
    first, second, third = map(attempt, ("a", "b", "c"))
    assert attempts.add(first) == [first]
    assert attempts.add(second) == attempts.add(third) == []
    assert attempts.add(attempt("a", 2)) == [attempt("a", 2)]
    assert attempts.failed(nsqd) == [second, third]
    assert attempts.add(second) == [second]
    assert attempts.add(third) == []
    assert attempts.succeeded(nsqd) == [third]
    assert attempts.add(first) == [first]
    # A connection that lasted has broken.
    attempts.doubt(nsqd)
    assert attempts.add(second) == []
    assert attempts.failed(nsqd) == [second]
    assert attempts.add(second) == []
    assert attempts.succeeded(nsqd) == [second]


def test_attempts_to_one_that_answers_leave_room_for_others() -> None:
    attempts, nsqd = Attempts(), Address("h", 1)
    begun = attempts.add(attempt("first"))
    many = [attempt(f"t{number}") for number in range(20)]
    for each in many:
        assert attempts.add(each) == []
    running = len(begun)
    while running:
        running -= 1
        begun += (more := attempts.succeeded(nsqd))
        running += len(more)
        assert running <= 4
    assert begun == [attempt("first"), *many]
    assert not attempts._running
    assert not attempts._waiting
