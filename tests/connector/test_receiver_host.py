"""Receivers that are not the coordinator's children, and the fleet that they form: leases, tokens, sessions."""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from pyspark_nsq.connector.beginning import Beginning, from_message, to_message
from pyspark_nsq.connector.channels import TOKEN_KEY, listen, make_server
from pyspark_nsq.connector.connection import Connection, Source
from pyspark_nsq.connector.fleet import Fleet
from pyspark_nsq.connector.handshake import ServerFacts
from pyspark_nsq.connector.offsets import first_position
from pyspark_nsq.connector.options import parse_source_options
from pyspark_nsq.connector.placement import Member, Placement
from pyspark_nsq.connector.receiver_host import HostService
from pyspark_nsq.connector.rows import Place, RangePartition, fetch
from pyspark_nsq.connector.settings import Address, ConnectionSettings, Secret, Security
from pyspark_nsq.connector.source_state import Limits
from pyspark_nsq.proto import receiver_pb2 as pb
from pyspark_nsq.proto import receiver_pb2_grpc
from pyspark_nsq.proto.columns import decode_frames
from pyspark_nsq.proto.frames import encode_message

HOST_TOKEN = "the token of the host"
LIMITS = Limits("channel", 0, 2**20, 2**20, None, None, 0.1, 1.0)
BEGINNING = Beginning("session", "the token of the query", 0, LIMITS, ConnectionSettings(), 0.5, 60.0)


class Host:
    """A receiver process, but for the process."""

    def __init__(self, port: int = 0) -> None:
        self.instance = secrets.token_hex(8)
        self.service = HostService(HOST_TOKEN, "/somewhere/a.sock")
        self.server = make_server(16)
        receiver_pb2_grpc.add_ReceiverServicer_to_server(self.service, self.server)  # type: ignore[no-untyped-call]
        self.address = f"127.0.0.1:{listen(self.server, '127.0.0.1', [port], None)}"
        self.server.start()
        self.channel = grpc.insecure_channel(self.address)
        self.stub: Any = receiver_pb2_grpc.ReceiverStub(self.channel)  # type: ignore[no-untyped-call]

    def control(self, *commands: pb.Command, token: str = HOST_TOKEN) -> Any:
        """The statuses of a stream that sends these, and then nothing more for as long as it lasts."""
        ended = threading.Event()

        def send() -> Iterator[pb.Command]:
            yield from commands
            ended.wait()

        call = self.stub.Control(send(), metadata=[(TOKEN_KEY, token)])
        call.add_callback(ended.set)
        return call

    def read(self, token: str) -> grpc.StatusCode:
        """With what a read fails."""
        with pytest.raises(grpc.RpcError) as caught:
            list(self.stub.Read(pb.ReadRequest(first=0, end=1), metadata=[(TOKEN_KEY, token)], timeout=20))
        code: grpc.StatusCode = caught.value.code()
        return code

    def stop(self) -> None:
        self.channel.close()
        self.service.stop()
        self.server.stop(0).wait()


@pytest.fixture
def host() -> Iterator[Host]:
    started = Host()
    yield started
    started.stop()


def begin(beginning: Beginning = BEGINNING) -> pb.Command:
    return pb.Command(begin=to_message(beginning))


def refusal(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    code: grpc.StatusCode = caught.value.code()
    return code


def wait_until(look: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_host_s_token_opens_control_and_the_query_s_its_messages(host: Host) -> None:
    for wrong in ("", "another", BEGINNING.token):
        assert refusal(host.control(begin(), token=wrong)) is grpc.StatusCode.UNAUTHENTICATED
    status = next(host.control(begin()))
    assert (status.end, status.share, status.socket) == (0, 0, "/somewhere/a.sock")
    for wrong in ("", "another", HOST_TOKEN):
        assert host.read(wrong) is grpc.StatusCode.UNAUTHENTICATED
    assert host.read(BEGINNING.token) is grpc.StatusCode.OUT_OF_RANGE


@pytest.mark.parametrize(
    "command",
    [
        pb.Command(),
        pb.Command(stop=pb.Stop()),
        begin(replace(BEGINNING, token="short")),
        begin(replace(BEGINNING, session="")),
        begin(replace(BEGINNING, lease_s=3600.0)),
        begin(replace(BEGINNING, limits=replace(LIMITS, frame_size_max=0))),
        begin(replace(BEGINNING, limits=replace(LIMITS, bytes_max=2**60))),
        begin(replace(BEGINNING, limits=replace(LIMITS, retry_delay_s=-1.0))),
    ],
)
def test_a_session_begins_with_a_sound_beginning(host: Host, command: pb.Command) -> None:
    assert refusal(host.control(command)) is grpc.StatusCode.INVALID_ARGUMENT
    assert not host.service.sessions


def test_a_share_is_obeyed_and_told(host: Host) -> None:
    share = pb.Command(share=pb.Share(number=3, in_flight_max=70, bytes_max=2**20))
    for status in host.control(begin(), share):
        if status.share == 3:
            break
    assert host.service.sessions[0].core._limits.in_flight_max == 70


def test_sessions_end_by_command_and_leave_others_alone(host: Host) -> None:
    other = replace(BEGINNING, session="other", token="the token of another query")
    next(host.control(begin(other)))
    stopping = host.control(begin(), pb.Command(stop=pb.Stop()))
    # The stream ends, and not with an error.
    assert all(status.end == 0 for status in stopping)
    assert stopping.code() is grpc.StatusCode.OK
    wait_until(lambda: [each.beginning.session for each in host.service.sessions] == ["other"])
    assert host.read(BEGINNING.token) is grpc.StatusCode.UNAUTHENTICATED
    assert host.read(other.token) is grpc.StatusCode.OUT_OF_RANGE


def test_a_session_outlives_its_stream_but_not_its_lease(host: Host) -> None:
    first = host.control(begin())
    next(first)
    (session,) = host.service.sessions
    first.cancel()
    again = host.control(begin())
    next(again)
    assert host.service.sessions == [session]
    # It was given up, and begins anew behind what came before.
    next(host.control(begin(replace(BEGINNING, first_position=first_position(1), lease_s=0.5))))
    (newer,) = host.service.sessions
    assert newer is not session
    assert session.ended
    wait_until(lambda: newer.ended and not host.service.sessions)


def test_a_session_of_one_lane_is_none_of_another(host: Host) -> None:
    next(host.control(begin()))
    (session,) = host.service.sessions
    resuming = begin(replace(BEGINNING, lane=1))
    resuming.begin.resume = True
    assert refusal(host.control(resuming)) is grpc.StatusCode.NOT_FOUND
    next(host.control(begin(replace(BEGINNING, lane=1))))
    assert session.ended
    assert host.service.sessions != [session]


def test_only_a_session_that_is_there_is_resumed(host: Host) -> None:
    resuming = begin()
    resuming.begin.resume = True
    assert refusal(host.control(resuming)) is grpc.StatusCode.NOT_FOUND
    assert not host.service.sessions
    next(host.control(begin()))
    (session,) = host.service.sessions
    next(host.control(resuming))
    assert host.service.sessions == [session]


def test_a_session_that_gives_back_what_it_holds_is_neither_resumed_nor_gone(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    resuming = begin()
    resuming.begin.resume = True
    next(host.control(begin()))
    given_back = hold_the_end(host, monkeypatch)
    assert refusal(host.control(resuming)) is grpc.StatusCode.UNAVAILABLE
    given_back.set()
    wait_until(lambda: not host.service.sessions)
    assert refusal(host.control(resuming)) is grpc.StatusCode.NOT_FOUND


def hold_the_end(host: Host, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Stop the host's session, whose nsqds do not take back what it has before the event."""
    (session,) = host.service.sessions
    given_back = threading.Event()
    monkeypatch.setattr(session.loop, "_close", lambda _is_done: given_back.wait(30))
    session.stop()
    wait_until(lambda: session.core.stopping)
    return given_back


def test_beginnings_cross_the_wire_whole() -> None:
    security = Security(tls=True, tls_ca_file="ca", auth_secret=Secret("secret"), tls_key_password=Secret("password"))
    settings = ConnectionSettings(security=security, snappy=True, client_id="me", msg_timeout_ms=5, sample_rate=7)
    limits = Limits("c#ephemeral", 5, 6, 7, 8, "dead", 0.5, 2.5, 123)
    told = Beginning("s" * 16, "t" * 64, first_position(3), limits, settings, 0.1, 12.0, lane=5)
    assert from_message(to_message(told)) == told
    assert from_message(to_message(BEGINNING)) == BEGINNING
    assert "t" * 64 not in repr(told)


# The fleet.

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
