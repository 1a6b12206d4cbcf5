"""What a receiver holds stays bounded, whatever an nsqd sends: RDY, its socket, and its connection are the means."""

from itertools import pairwise

import pytest
from model_nsqd import ModelNsqd, connection_of, limits, run, started, step

from pyspark_nsq.connector.memory import UNASKED_SIZE_MAX
from pyspark_nsq.connector.ready import RDY_GRACE_S
from pyspark_nsq.connector.receiver_core import ReceiverCore
from pyspark_nsq.proto.frames import encode_message

MIB = 2**20


def begin(core: ReceiverCore, nsqd: ModelNsqd, size: int, now: float) -> bytes:
    """The start of a message with a body of so many bytes arrives; what is missing of it."""
    frame = encode_message(1, 1, b"%016d" % nsqd.source.nsqd.port, bytes(size))
    core.received(connection_of(nsqd), frame[:100], now)
    return frame[100:]


def test_what_was_on_its_way_when_the_budget_was_used_up_waits_in_the_socket() -> None:
    nsqd = ModelNsqd()
    core = started(nsqd, bytes_max=MIB)
    connection = connection_of(nsqd)
    assert core.may_read(connection, 1.0)
    nsqd.publish(1, MIB)
    run(core, nsqd, 1.0)
    assert core.paused
    assert not core.may_read(connection, 1.0 + RDY_GRACE_S / 2)
    # Then nsqd has read that RDY is 0, and heartbeats and answers are to be read.
    assert core.may_read(connection, 1.0 + RDY_GRACE_S)
    core.finish(1, 1.5)
    core.tick(1.5)
    assert core.may_read(connection, 1.5)


def test_an_nsqd_that_sends_on_past_rdy_0_is_closed_and_asked_ever_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_nsq.connector.memory.UNASKED_SIZE_MAX", 2 * MIB)
    liar = ModelNsqd(rdy_max=2500)
    core = started(liar, bytes_max=MIB, in_flight_max=2500)
    liar.is_liar = True
    breaks = []
    largest = 0
    for tick in range(4, 400):
        now = tick * 0.25
        liar.publish(10 - len(liar.queue), MIB // 10)
        step(core, [liar], now)
        largest = max(largest, core.lane.size)
        if len(liar.broken) > len(breaks):
            breaks.append(now)
            # As long as all that is held nothing more can be used.
            assert core.to_connect(now + 60) == []
            core.finish(core.lane.end, now)
    assert set(liar.broken) == {f"more than {2 * MIB} bytes of messages came although RDY was 0"}
    # The budget and what came in spite of RDY 0, each but for a piece.
    assert largest < 6 * MIB
    gaps = [later - earlier for earlier, later in pairwise(breaks)]
    assert len(gaps) >= 4
    assert all(later >= earlier - 0.25 for earlier, later in pairwise(gaps))
    assert gaps[-1] > 3 * gaps[0]


def test_an_honest_nsqd_may_have_much_on_its_way() -> None:
    nsqd = ModelNsqd(rdy_max=2500)
    core = started(nsqd, bytes_max=MIB)
    nsqd.publish(2, MIB)
    run(core, nsqd, 1.0)
    connection = connection_of(nsqd)
    message = encode_message(1, 1, b"on its way-00000", bytes(UNASKED_SIZE_MAX))
    core.received(connection, message, 1.0 + RDY_GRACE_S)
    assert core.lane.end == 3


def test_a_large_frame_counts_and_another_one_waits_until_there_is_room_for_it() -> None:
    nsqds = [ModelNsqd(port=1), ModelNsqd(port=2)]
    core = ReceiverCore(limits(bytes_max=8 * MIB), 0)
    core.assign([nsqd.source for nsqd in nsqds])
    for now in (0.0, 1.0):
        step(core, nsqds, now)
    first, second = map(connection_of, nsqds)
    rest = begin(core, nsqds[0], 6 * MIB, 2.0)
    others = begin(core, nsqds[1], 6 * MIB, 2.0)
    core.received(first, rest[: 3 * MIB], 2.0)
    # Both would be more than the budget: the one that has more of it here is completed first.
    assert (core.may_read(first, 2.0), core.may_read(second, 2.0)) == (True, False)
    core.received(first, rest[3 * MIB :], 2.0)
    assert core.lane.end == 1
    assert not core.paused
    # Nobody else has one now: it may come, however large it is.
    assert core.may_read(second, 2.0)
    core.received(second, others[: 3 * MIB], 2.0)
    assert core.paused
    assert first.rdy == second.rdy == 0
    assert core.may_read(second, 2.0 + RDY_GRACE_S)
    core.received(second, others[3 * MIB :], 2.0 + RDY_GRACE_S)
    assert core.lane.end == 2
    core.finish(2, 4.0)
    core.tick(4.0)
    assert not core.paused


def test_large_frames_for_which_there_is_room_come_side_by_side() -> None:
    nsqds = [ModelNsqd(port=1), ModelNsqd(port=2)]
    core = ReceiverCore(limits(bytes_max=64 * MIB), 0)
    core.assign([nsqd.source for nsqd in nsqds])
    for now in (0.0, 1.0):
        step(core, nsqds, now)
    for nsqd in nsqds:
        begin(core, nsqd, 6 * MIB, 2.0)
    assert all(core.may_read(connection_of(nsqd), 2.0) for nsqd in nsqds)


def test_a_connection_that_breaks_in_a_large_frame_leaves_its_place_to_others() -> None:
    nsqds = [ModelNsqd(port=1), ModelNsqd(port=2)]
    core = ReceiverCore(limits(bytes_max=4 * MIB), 0)
    core.assign([nsqd.source for nsqd in nsqds])
    for now in (0.0, 1.0):
        step(core, nsqds, now)
    rest = begin(core, nsqds[0], 600 * MIB, 2.0)
    core.received(connection_of(nsqds[0]), rest[: 3 * MIB], 2.0)
    begin(core, nsqds[1], 600 * MIB, 2.0)
    assert not core.may_read(connection_of(nsqds[1]), 2.0)
    core.lost_connection(connection_of(nsqds[0]), 3.0)
    assert core.may_read(connection_of(nsqds[1]), 3.0)


@pytest.mark.parametrize(("size", "is_large"), [(MIB, False), (MIB + 1, True)])
def test_messages_of_the_usual_sizes_never_wait(size: int, is_large: bool) -> None:
    nsqds = [ModelNsqd(port=1), ModelNsqd(port=2)]
    core = ReceiverCore(limits(bytes_max=MIB), 0)
    core.assign([nsqd.source for nsqd in nsqds])
    for now in (0.0, 1.0):
        step(core, nsqds, now)
    for nsqd in nsqds:
        begin(core, nsqd, size, 2.0)
    assert sum(core.may_read(connection_of(nsqd), 2.0) for nsqd in nsqds) == (1 if is_large else 2)
