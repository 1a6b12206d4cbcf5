"""Receivers elsewhere as their coordinator has them: who is there, what each may have, and what is lost with one."""

import logging
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from receiver_hosts import BEGINNING, HOST_TOKEN, Host, hold_the_end, wait_until

from pyspark_nsq.connector.connection import Connection, Source
from pyspark_nsq.connector.fleet import Fleet
from pyspark_nsq.connector.handshake import ServerFacts
from pyspark_nsq.connector.offsets import first_position
from pyspark_nsq.connector.options import parse_source_options
from pyspark_nsq.connector.placement import Member, Placement
from pyspark_nsq.connector.rows import Place, RangePartition, fetch
from pyspark_nsq.connector.settings import Address
from pyspark_nsq.proto.columns import decode_frames
from pyspark_nsq.proto.frames import encode_message

MakeFleet = Callable[..., Fleet]


@pytest.fixture
def make_fleet(tmp_path: Any) -> Iterator[MakeFleet]:
    fleets: list[Fleet] = []

    def made(*addresses: str, lease_s: float = 60.0) -> Fleet:
        texts = {"topic": "t", "channel": "c", "nsqdTcpAddresses": "127.0.0.1:1", "receivers": "executors"}
        if addresses:
            (tmp_path / "token").write_text(HOST_TOKEN.replace(" ", "-"))
            texts |= {"receivers": ",".join(addresses), "receiverTokenFile": str(tmp_path / "token")}
        options = replace(parse_source_options(texts).receivers, lease_s=lease_s)
        query = replace(BEGINNING, lease_s=lease_s, token=HOST_TOKEN)
        fleets.append(Fleet(options, query, 1000, lambda: None, lambda: None, lambda: None))
        fleets[-1]._token = HOST_TOKEN
        fleets[-1].start("127.0.0.1:7000")
        return fleets[-1]

    yield made
    for fleet in fleets:
        fleet.begin_stop()
        fleet.end_stop()


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each receiver that a fleet has given up, whether it is certain that it is dead."""
    certain: list[bool] = []
    leave = Placement.leave

    def note(placement: Placement, member: Member, now: float, certainly: bool) -> None:
        certain.append(certainly)
        leave(placement, member, now, certainly)

    monkeypatch.setattr(Placement, "leave", note)
    return certain


def shares(*hosts: Host) -> list[int]:
    return [session.core._limits.in_flight_max for host in hosts for session in host.service.sessions]


def test_receivers_register_share_and_are_told_to_stop(make_fleet: MakeFleet, host: Host) -> None:
    fleet, second = make_fleet(), Host()
    assert fleet.register("a", host.address, host.instance)
    wait_until(lambda: fleet.live == [0] and shares(host) == [1000])
    assert fleet.register("b", second.address, second.instance)
    wait_until(lambda: fleet.live == [0, 1] and shares(host, second) == [500, 500])
    # Asked again, as an answer was lost.
    assert fleet.register("b", second.address, second.instance)
    assert fleet.live == [0, 1]
    assert [receiver.socket for receiver in fleet.receivers] == ["/somewhere/a.sock"] * 2
    fleet.begin_stop()
    fleet.end_stop()
    wait_until(lambda: not host.service.sessions and not second.service.sessions)
    assert not fleet.register("c", host.address, host.instance)
    second.stop()


def test_one_that_is_busy_gets_more_than_one_that_is_not(make_fleet: MakeFleet, host: Host) -> None:
    fleet, second = make_fleet(), Host()
    fleet.register("a", host.address, host.instance)
    fleet.register("b", second.address, second.instance)
    wait_until(lambda: shares(host, second) == [500, 500])
    (session,) = second.service.sessions
    source = Source("t", Address("127.0.0.1", 1))

    def be_busy_until(until: float) -> None:
        session.core.assign([source])
        session.core.sources[source].busy_until = until

    session.loop.call(lambda _now: be_busy_until(math.inf)).result()
    wait_until(lambda: shares(host, second) == [125, 875])
    session.loop.call(lambda _now: be_busy_until(0)).result()
    wait_until(lambda: shares(host, second) == [500, 500])
    second.stop()


def test_one_that_stops_is_lost_at_once_and_its_positions_with_it(
    make_fleet: MakeFleet, host: Host, left: list[bool]
) -> None:
    fleet = make_fleet()
    fleet.register("a", host.address, host.instance)
    wait_until(lambda: fleet.live == [0])
    assert not fleet.is_lost(0, 5)
    host.service.stop()
    wait_until(lambda: fleet.live == [])
    assert fleet.is_lost(0, 5)
    assert left == [True]
    assert fleet.receivers[0].incarnation == 1
    assert fleet.receivers[0].status is None
    assert not fleet.is_lost(0, first_position(1))
    assert fleet.is_lost(7, 0)


def test_another_one_on_the_same_host_means_that_the_first_is_dead(make_fleet: MakeFleet, host: Host) -> None:
    fleet, second = make_fleet(), Host()
    fleet.register("a", host.address, host.instance)
    wait_until(lambda: fleet.live == [0])
    fleet.register("a", second.address, second.instance)
    assert fleet.is_lost(0, 5)
    wait_until(lambda: fleet.live == [0] and len(second.service.sessions) == 1)
    assert second.service.sessions[0].beginning.first_position == first_position(1)
    second.stop()


def test_its_successor_may_be_at_the_same_address(make_fleet: MakeFleet, host: Host) -> None:
    """As on the ports of a range, where the first one was killed."""
    fleet = make_fleet()
    assert fleet.register("a", host.address, host.instance)
    wait_until(lambda: fleet.live == [0])
    host.stop()
    successor = Host(port=int(host.address.rpartition(":")[2]))
    assert successor.address == host.address
    assert fleet.register("a", successor.address, successor.instance)
    wait_until(lambda: fleet.live == [0] and successor.service.sessions)
    assert successor.service.sessions[0].beginning.first_position == first_position(1)
    successor.stop()


def hold(host: Host, bodies: list[bytes]) -> None:
    """Have the receiver there hold these."""
    (session,) = host.service.sessions
    frames = b"".join(encode_message(1, 1, b"%016d" % number, body) for number, body in enumerate(bodies))
    messages = decode_frames(frames, 2**20).messages
    connection = Connection(Source("t", Address("h", 1)), ServerFacts("1", 2500, 60_000, 900_000), "c", 2**20)
    session.loop.call(lambda now: session.core.lane.append(messages, connection, now)).result()


def read(host: Host, lane: int, first: int, end: int) -> list[bytes]:
    """What a task reads there."""
    pieces = fetch(RangePartition(Place(host.address, lane), HOST_TOKEN, first, end), ["body"])
    return [body for piece in pieces if piece.messages for body in piece.messages.column("body").to_pylist()]


def test_a_successor_at_the_same_address_with_another_lane_has_nothing_of_the_first(make_fleet: MakeFleet) -> None:
    """Lanes count their incarnations each for itself, so that the positions may be the same."""
    fleet, first, second = make_fleet(), Host(), Host()
    port = int(second.address.rpartition(":")[2])
    fleet.register("a", first.address, first.instance)
    wait_until(lambda: fleet.live == [0])
    fleet.register("b", second.address, second.instance)
    wait_until(lambda: fleet.live == [0, 1])
    second.stop()
    second = Host(port)
    fleet.register("b", second.address, second.instance)
    wait_until(lambda: fleet.live == [0, 1] and second.service.sessions)
    begin = first_position(1)
    hold(second, [b"one", b"two"])
    assert read(second, 1, begin, begin + 2) == [b"one", b"two"]
    first.service.stop()
    wait_until(lambda: fleet.live == [1])
    second.stop()
    second = Host(port)
    fleet.register("b", second.address, second.instance)
    wait_until(lambda: fleet.live == [0] and second.service.sessions)
    hold(second, [b"three", b"four"])
    assert read(second, 0, begin, begin + 2) == [b"three", b"four"]
    assert read(second, 1, begin, begin + 2) == []
    first.stop()
    second.stop()


def test_one_that_gives_back_what_it_holds_keeps_its_part_of_the_budget(
    make_fleet: MakeFleet, host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = make_fleet()
    fleet.register("a", host.address, host.instance)
    wait_until(lambda: shares(host) == [1000])
    given_back = hold_the_end(host, monkeypatch)
    fleet.receivers[0].call.cancel()
    wait_until(lambda: "gives back what it holds; calling it again" in caplog.text)
    assert not fleet.is_lost(0, 5)
    given_back.set()
    wait_until(lambda: fleet.is_lost(0, 5))


def test_shares_are_dealt_on_after_a_failure(
    make_fleet: MakeFleet, host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed = threading.Event()
    share_out = Fleet._share_out

    def fail_once(fleet: Fleet, now: float) -> None:
        if not failed.is_set():
            failed.set()
            raise IndexError("planted")
        share_out(fleet, now)

    monkeypatch.setattr(Fleet, "_share_out", fail_once)
    fleet = make_fleet()
    wait_until(failed.is_set)
    fleet.register("a", host.address, host.instance)
    wait_until(lambda: shares(host) == [1000])
    assert "IndexError: planted" in caplog.text


def test_silence_ends_with_the_lease_on_both_sides(make_fleet: MakeFleet, host: Host, left: list[bool]) -> None:
    fleet = make_fleet(lease_s=1.0)
    fleet.register("a", host.address, host.instance)
    wait_until(lambda: fleet.live == [0])
    (session,) = host.service.sessions
    # Nothing gets through any more.
    fleet.receivers[0].address = "127.0.0.1:1"
    fleet.receivers[0].call.cancel()
    wait_until(lambda: fleet.is_lost(0, 5))
    # It may be alive, and receive until it notices: others do not get its part yet.
    assert left == [False]
    wait_until(lambda: session.ended)


def test_receivers_at_addresses_are_called_again_and_again(make_fleet: MakeFleet, host: Host) -> None:
    fleet = make_fleet("127.0.0.1:1", host.address)
    wait_until(lambda: len(fleet.live) == 1)
    assert fleet.failure is None
    host.service.sessions[0].stop()
    wait_until(lambda: fleet.live and fleet.receivers[fleet.live[0]].incarnation == 1)


def test_one_that_was_started_again_holds_nothing_of_what_it_held(make_fleet: MakeFleet, host: Host) -> None:
    """Otherwise what is committed of the former would finish messages that only its successor has."""
    fleet, successor = make_fleet(host.address), Host()
    wait_until(lambda: fleet.live == [0])
    fleet.receivers[0].finish(5)
    fleet.receivers[0].address = successor.address
    fleet.receivers[0].call.cancel()
    wait_until(lambda: fleet.is_lost(0, 5))
    assert not successor.service.sessions
    wait_until(lambda: fleet.live == [0] and fleet.receivers[0].incarnation == 1)
    successor.stop()


def test_a_wrong_token_fails_the_query(make_fleet: MakeFleet, host: Host) -> None:
    fleet = make_fleet()
    fleet._token = "another"
    fleet.register("a", host.address, host.instance)
    wait_until(lambda: fleet.failure)
    assert "UNAUTHENTICATED" in str(fleet.failure)


def test_rounds_start_receivers_and_come_to_an_end(make_fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_nsq.connector.fleet._ROUND_PAUSE_S", 0.0)
    fleet = make_fleet()
    # The first, whether there is something to receive or not; then only where somebody waits.
    assert fleet.new_round(lambda: False) == {}
    assert fleet.new_round(lambda: False) is None
    for number in range(1, 5):
        assert fleet.new_round(lambda: True) == {0: first_position(number)}
        assert fleet.failure is None
    fleet.new_round(lambda: True)
    assert "5 times: none that may have started has reached the driver at 127.0.0.1:7000" in str(fleet.failure)
    assert "receiverHost" in str(fleet.failure)


def test_why_none_could_start_is_logged_once_a_host_and_ends_the_query(
    make_fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pyspark_nsq.connector.fleet._ROUND_PAUSE_S", 0.0)
    fleet = make_fleet()
    for number in range(6):
        fleet.note_failure("host-a: no port is free")
        fleet.note_failure("host-b: no port is free")
        fleet.new_round(lambda: True)
        assert bool(fleet.failure) == (number == 5)
    assert "5 times: host-a: no port is free; host-b: no port is free" in str(fleet.failure)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == [
        f"a host has no receiver: host-{name}: no port is free" for name in "ab"
    ]


def test_tasks_wait_until_hosts_have_their_receivers(make_fleet: MakeFleet, host: Host) -> None:
    fleet = make_fleet()
    fleet.new_round(lambda: False)
    assert not fleet.gathered("a")
    fleet.register("a", host.address, host.instance)
    wait_until(lambda: fleet.gathered("a"))
    assert fleet.new_round(lambda: True) is None
    # One that comes late keeps only its own host waiting.
    assert not fleet.gathered("b")
