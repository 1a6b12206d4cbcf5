"""Receivers that are not the coordinator's children: whom they serve, and for how long."""

from dataclasses import replace
from typing import Any

import grpc
import pytest
from receiver_hosts import BEGINNING, HOST_TOKEN, LIMITS, Host, hold_the_end, wait_until

from pyspark_nsq.connector.beginning import Beginning, from_message, to_message
from pyspark_nsq.connector.offsets import first_position
from pyspark_nsq.connector.settings import ConnectionSettings, Secret, Security
from pyspark_nsq.connector.source_state import Limits
from pyspark_nsq.proto import receiver_pb2 as pb


def begin(beginning: Beginning = BEGINNING) -> pb.Command:
    return pb.Command(begin=to_message(beginning))


def refusal(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    code: grpc.StatusCode = caught.value.code()
    return code


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


def test_beginnings_cross_the_wire_whole() -> None:
    security = Security(tls=True, tls_ca_file="ca", auth_secret=Secret("secret"), tls_key_password=Secret("password"))
    settings = ConnectionSettings(security=security, snappy=True, client_id="me", msg_timeout_ms=5, sample_rate=7)
    limits = Limits("c#ephemeral", 5, 6, 7, 8, "dead", 0.5, 2.5, 123)
    told = Beginning("s" * 16, "t" * 64, first_position(3), limits, settings, 0.1, 12.0, lane=5)
    assert from_message(to_message(told)) == told
    assert from_message(to_message(BEGINNING)) == BEGINNING
    assert "t" * 64 not in repr(told)
