"""What the receiver decides, against a model of nsqd: when it finishes, touches, requeues, and what it emits."""

import random
from collections import Counter

import pytest
from model_nsqd import ModelNsqd, connection_of, ids, limits, lose, run, started, step

from pyspark_nsq.connector.lanes import FinishedError
from pyspark_nsq.connector.receiver_core import ReceiverCore
from pyspark_nsq.connector.receiver_service import StatusBoard
from pyspark_nsq.connector.report import Report


def expect_each_once(core: ReceiverCore, nsqd: ModelNsqd, published: list[bytes], now: float) -> None:
    """Each was emitted once and, when its batch is committed, is finished once."""
    assert ids(core, 0, core.lane.end) == published
    core.finish(len(published), now)
    run(core, nsqd, now)
    assert nsqd.finished == Counter(published)


def test_nothing_is_finished_before_its_batch_is_committed() -> None:
    nsqd = ModelNsqd()
    core = started(nsqd)
    published = nsqd.publish(10)
    run(core, nsqd, 1.0, 2.0)
    assert ids(core, 0, 10) == published
    assert not nsqd.finished
    core.finish(4, 3.0)
    run(core, nsqd, 3.0)
    assert sorted(nsqd.finished) == published[:4]
    assert ids(core, 4, 10) == published[4:]
    core.finish(10, 4.0)
    run(core, nsqd, 4.0)
    assert nsqd.finished == Counter(published)
    assert core.lane.size == 0
    counts = core.sources[nsqd.source].counts
    # Again for what was read twice.
    assert (counts.received, counts.emitted, counts.finished) == (10, 16, 10)


def test_a_source_is_used_up_while_nothing_more_can_come_before_something_is_finished() -> None:
    nsqd = ModelNsqd()
    core = started(nsqd, in_flight_max=5)
    state = core.sources[nsqd.source]
    assert not state.is_used_up
    nsqd.publish(7)
    run(core, nsqd, 1.0)
    assert state.is_used_up
    core.finish(3, 2.0)
    assert not state.is_used_up


def test_it_tells_whether_it_has_use_for_more() -> None:
    nsqd = ModelNsqd()
    core = started(nsqd, in_flight_max=10)
    board = StatusBoard()

    def busy(now: float) -> bool:
        run(core, nsqd, now)
        board.changed(core, now)
        return board.wait(-1, 0)[1].busy

    nsqd.publish(4)
    assert [busy(now) for now in (1.0, 1.5)] == [False, False]
    nsqd.publish(1)
    assert [busy(now) for now in (2.0, 2.5)] == [False, True]
    core.finish(5, 2.5)
    assert [busy(now) for now in (3.0, 7.0, 8.0)] == [True, True, False]


def test_a_range_reads_the_same_until_it_is_finished() -> None:
    nsqd = ModelNsqd(rdy_max=100)
    core = started(nsqd)
    expected: list[bytes] = []
    for now in range(1, 6):
        expected += nsqd.publish(7)
        run(core, nsqd, float(now))
    once = core.read(3, 33)
    assert ids(core, 3, 33) == expected[3:33]
    core.finish(3, 6.0)
    again = core.read(3, 33)
    assert [part.to_pydict() for _, part in again] == [part.to_pydict() for _, part in once]
    with pytest.raises(FinishedError):
        core.read(2, 33)
    with pytest.raises(ValueError, match="not within"):
        core.read(3, 36)


def test_a_slow_batch_is_touched_until_nsqd_gives_it_up_and_then_joined() -> None:
    nsqd = ModelNsqd(timeout_s=60, timeout_s_max=300)
    core = started(nsqd)
    published = nsqd.publish(5)
    run(core, nsqd, *(float(now) for now in range(1, 290, 5)))
    # Only TOUCH kept them for five minutes, each after half of a message's time-out.
    assert not nsqd.errors
    assert nsqd.in_flight() == 5
    assert core.sources[nsqd.source].counts.touched == 9 * 5
    run(core, nsqd, *(float(now) for now in range(290, 400, 5)))
    state = core.sources[nsqd.source]
    assert state.counts.redelivered == state.counts.timed_out == 5
    assert ids(core, 0, core.lane.end) == published
    core.finish(5, 400.0)
    run(core, nsqd, 400.0)
    assert nsqd.finished == Counter(published)
    assert state.connections[0].in_flight == 0


def test_a_time_out_is_counted_once_however_often_it_is_noticed() -> None:
    """Here by its copy on another connection, and by TOUCHes that came too late."""
    nsqd = ModelNsqd(rdy_max=5, timeout_s=60)
    core = started(nsqd, in_flight_max=10)
    published = nsqd.publish(10)
    run(core, nsqd, 1.0, 2.0)
    first = connection_of(nsqd)
    assert nsqd.in_flight() == 10
    # Two TOUCHes for each are on their way when nsqd gives them up, and delivers some of the first's to the second.
    nsqd.is_stalled = True
    nsqd.clients[first].rdy = 0
    run(core, nsqd, 32.0, 62.5)
    nsqd.is_stalled = False
    run(core, nsqd, 63.0)
    core.finish(10, 64.0)
    run(core, nsqd, 64.0, 65.0)
    assert nsqd.errors == [b"TOUCH"] * 20
    state = core.sources[nsqd.source]
    assert state.counts.timed_out == 10
    assert nsqd.finished == Counter(published)
    assert sum(connection.in_flight for connection in state.connections) == 0


def test_it_tells_what_is_not_to_wait_for_more_before_nsqd_gives_it_up() -> None:
    nsqd = ModelNsqd(timeout_s=60, timeout_s_max=300)
    core = started(nsqd)
    board = StatusBoard()

    def due(now: float) -> int:
        run(core, nsqd, now)
        board.changed(core, now)
        return board.wait(-1, 0)[1].due

    nsqd.publish(5)
    run(core, nsqd, *(float(now) for now in range(1, 100, 5)))
    nsqd.publish(3)
    assert [due(now) for now in (120.0, 140.0, 150.0, 152.0, 155.0)] == [0, 0, 0, 5, 5]
    core.finish(5, 156.0)
    assert due(156.0) == 0
    run(core, nsqd, 200.0, 230.0)
    assert due(275.0) == 8


def test_a_long_silence_of_the_receiver_emits_nothing_twice() -> None:
    nsqd = ModelNsqd(timeout_s=60)
    core = started(nsqd)
    published = nsqd.publish(5)
    run(core, nsqd, 1.0)
    nsqd.expire(100.0)
    # nsqd sends them again before the receiver has had a moment to touch them.
    core.tick(100.0)
    nsqd.deliver(core, 100.0)
    run(core, nsqd, 100.0)
    expect_each_once(core, nsqd, published, 101.0)


def test_what_waited_on_its_way_for_longer_than_its_time_out_is_emitted_once() -> None:
    """Its copies arrive one behind the other, in one read or in two."""
    nsqd = ModelNsqd(timeout_s=60)
    core = started(nsqd)
    nsqd.is_stalled = True
    published = nsqd.publish(5)
    nsqd.deliver(core, 1.0)
    nsqd.expire(100.0)
    nsqd.deliver(core, 100.0)
    nsqd.is_stalled = False
    nsqd.deliver(core, 101.0)
    nsqd.expire(200.0)
    nsqd.deliver(core, 200.0)
    run(core, nsqd, 200.0)
    expect_each_once(core, nsqd, published, 201.0)
    assert core.sources[nsqd.source].connections[0].in_flight == 0


def test_what_a_broken_connection_left_is_joined_when_it_comes_again() -> None:
    nsqd = ModelNsqd(timeout_s=60)
    core = started(nsqd)
    published = nsqd.publish(6)
    run(core, nsqd, 1.0)
    lose(core, nsqd, connection_of(nsqd), 2.0)
    run(core, nsqd, 3.0)
    # It can still be read, and a part is committed before nsqd delivers it again.
    assert ids(core, 0, 6) == published
    core.finish(2, 4.0)
    run(core, nsqd, 70.0)
    state = core.sources[nsqd.source]
    assert core.lane.end == 6
    assert state.counts.redelivered == 6
    assert sorted(nsqd.finished) == published[:2]
    core.finish(6, 71.0)
    run(core, nsqd, 71.0)
    assert nsqd.finished == Counter(published)
    assert nsqd.in_flight() == 0


def test_a_fin_that_nsqd_never_read_is_given_again() -> None:
    nsqd = ModelNsqd(timeout_s=60)
    core = started(nsqd)
    published = nsqd.publish(6)
    run(core, nsqd, 1.0)
    core.finish(6, 2.0)
    # The FINs are written, the connection breaks before nsqd reads them.
    lose(core, nsqd, connection_of(nsqd), 2.0)
    run(core, nsqd, 3.0, 70.0)
    assert core.lane.end == 6
    assert nsqd.finished == Counter(published)


def test_a_fin_that_came_too_late_is_given_again() -> None:
    nsqd = ModelNsqd(timeout_s=60)
    core = started(nsqd)
    published = nsqd.publish(3)
    run(core, nsqd, 1.0)
    # nsqd's clock and the receiver's differ: it has given them up unseen.
    nsqd.expire(62.0)
    core.finish(3, 2.0)
    run(core, nsqd, 3.0, 4.0)
    assert nsqd.errors == [b"FIN"] * 3
    assert core.sources[nsqd.source].counts.timed_out == 3
    assert nsqd.finished == Counter(published)
    assert core.lane.end == 3


def test_a_message_that_comes_again_while_its_fin_is_on_its_way_is_not_emitted_again() -> None:
    nsqd = ModelNsqd(timeout_s=60)
    core = started(nsqd)
    published = nsqd.publish(3)
    run(core, nsqd, 1.0)
    core.finish(3, 2.0)
    # What nsqd sends gets through, what it is sent does not.
    nsqd.expire(62.0)
    nsqd.deliver(core, 62.0)
    assert core.lane.end == 3
    run(core, nsqd, 62.0, 63.0)
    assert core.lane.end == 3
    assert nsqd.finished == Counter(published)
    assert nsqd.in_flight() == 0


def test_nor_when_it_comes_on_another_connection() -> None:
    nsqd = ModelNsqd(rdy_max=5, timeout_s=60)
    core = started(nsqd, in_flight_max=10)
    published = nsqd.publish(10)
    run(core, nsqd, 1.0, 2.0)
    first = connection_of(nsqd)
    assert len(nsqd.clients) == 2
    core.finish(10, 3.0)
    # As above, and what the first one had comes on the second.
    nsqd.clients[first].rdy = 0
    nsqd.expire(63.0)
    nsqd.deliver(core, 63.0)
    nsqd.clients[first].rdy = 5
    assert core.lane.end == 10
    run(core, nsqd, 63.0, 64.0)
    assert core.lane.end == 10
    assert nsqd.finished == Counter(published)
    assert nsqd.in_flight() == 0


def test_fins_are_looked_up_also_where_more_come_meanwhile() -> None:
    nsqd = ModelNsqd(rdy_max=5, timeout_s=60)
    core = started(nsqd, in_flight_max=10)
    nsqd.publish(10)
    run(core, nsqd, 1.0, 2.0)
    state = core.sources[nsqd.source]
    core.finish(4, 3.0)
    assert len(state.recent_fins()) == 4
    core.finish(10, 3.0)
    assert len(state.recent_fins()) == 10
    # What it takes to look them up is not kept.
    run(core, nsqd, 4.0)
    assert state.fin_index is None


def test_many_connections_remember_fewer_fins_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_nsq.connector.memory._RECENT_FINS_MAX", 100)
    nsqds = [ModelNsqd(port=port, rdy_max=2) for port in range(1, 6)]
    core = ReceiverCore(limits(in_flight_max=10), 0)
    core.assign([nsqd.source for nsqd in nsqds])
    for tick in range(200):
        for nsqd in nsqds:
            nsqd.publish(1)
        step(core, nsqds, tick * 0.25)
        core.finish(core.lane.end, tick * 0.25)
    remembered = [len(connection.recent_fins()) // 16 for nsqd in nsqds for connection in nsqd.clients]
    assert remembered == [20] * 5


def test_a_stop_gives_everything_back_at_once_and_in_order() -> None:
    nsqd = ModelNsqd(rdy_max=100)
    core = started(nsqd)
    published = nsqd.publish(20)
    run(core, nsqd, 1.0)
    core.finish(5, 2.0)
    core.stop(2.0)
    nsqd.obey(2.0)
    nsqd.deliver(core, 2.0)
    assert sorted(nsqd.finished) == published[:5]
    assert nsqd.requeued == published[5:]
    assert core.sources[nsqd.source].counts.requeued == 15
    assert all(connection.closed_by_nsqd for connection in nsqd.clients)
    assert nsqd.in_flight() == 0


def test_what_is_on_its_way_at_a_stop_is_given_back_too() -> None:
    nsqd = ModelNsqd()
    core = started(nsqd)
    published = nsqd.publish(3)
    core.stop(2.0)
    # Sent before nsqd reads RDY 0 and CLS.
    nsqd.deliver(core, 2.0)
    core.requeue()
    nsqd.obey(2.0)
    assert nsqd.requeued == published


def test_in_flight_never_exceeds_the_budget_and_busy_sources_get_more() -> None:
    busy, idle = ModelNsqd(port=1, rdy_max=25), ModelNsqd(port=2, rdy_max=25)
    core = ReceiverCore(limits(in_flight_max=80), 0)
    core.assign([busy.source, idle.source])
    busy.publish(5000)
    most = 0
    for tick in range(1, 200):
        now = tick * 0.25
        step(core, [busy, idle], now)
        for nsqd in (busy, idle):
            assert all(len(client.in_flight) <= client.rdy_given for client in nsqd.clients.values())
        assert busy.in_flight() + idle.in_flight() <= 80
        most = max(most, busy.in_flight())
        if tick % 8 == 0:
            core.finish(core.lane.end, now)
    # Of 80 the idle source keeps a quarter of its half.
    assert most == 70
    assert len(core.sources[busy.source].connections) == 3
    assert sum(client.rdy for client in idle.clients.values()) == 10
    idle_published = idle.publish(30)
    for tick in range(200, 240):
        step(core, [busy, idle], tick * 0.25)
        core.finish(core.lane.end, tick * 0.25)
    idle.obey(60.0)
    assert idle.finished == Counter(idle_published)


def test_connections_that_are_no_longer_needed_are_closed_in_order() -> None:
    nsqd = ModelNsqd(rdy_max=10)
    core = started(nsqd, in_flight_max=80)
    published = nsqd.publish(1000)
    counts = []
    for tick in range(400):
        now = tick * 0.25
        step(core, [nsqd], now)
        if tick % 4 == 0:
            core.finish(core.lane.end, now)
        for connection in [each for each in nsqd.clients if each.closed_by_nsqd]:
            assert not nsqd.clients[connection].in_flight
            lose(core, nsqd, connection, now)
        counts.append(len(nsqd.clients))
    assert max(counts) == 8
    assert counts[-1] == 1
    assert nsqd.finished == Counter(published)
    assert core.sources[nsqd.source].counts.failed_connections == 0


def test_rdy_takes_turns_where_sources_outnumber_the_budget() -> None:
    nsqds = [ModelNsqd(port=port) for port in range(1, 8)]
    core = ReceiverCore(limits(in_flight_max=2), 0)
    core.assign([nsqd.source for nsqd in nsqds])
    published = [message_id for nsqd in nsqds for message_id in nsqd.publish(2)]
    for tick in range(400):
        step(core, nsqds, tick * 0.25)
        assert sum(each.in_flight() for each in nsqds) <= 2
        core.finish(core.lane.end, tick * 0.25)
    assert sum((nsqd.finished for nsqd in nsqds), Counter()) == Counter(published)


def test_receiving_pauses_at_the_limit_of_bytes_and_goes_on() -> None:
    nsqd = ModelNsqd(rdy_max=10)
    core = started(nsqd, bytes_max=12_000)
    published = nsqd.publish(100)
    largest = 0
    for tick in range(1, 200):
        run(core, nsqd, tick * 0.25)
        largest = max(largest, core.lane.size)
        if core.lane.size >= 12_000:
            assert all(client.rdy == 0 for client in nsqd.clients.values())
            assert core.paused
        if tick % 10 == 0:
            core.finish(core.lane.end, tick * 0.25)
    # Of each connection a piece may be on its way when it is reached.
    assert 12_000 <= largest <= 32_000
    assert nsqd.finished == Counter(published)


def test_a_source_that_is_gone_is_not_connected_again() -> None:
    nsqd = ModelNsqd()
    core = started(nsqd)
    core.assign([])
    run(core, nsqd, 1.0)
    assert len(nsqd.clients) == 1
    lose(core, nsqd, connection_of(nsqd), 2.0)
    run(core, nsqd, 3.0, 100.0)
    assert not nsqd.clients
    assert not core.sources


def test_counters_never_fall_also_when_sources_are_gone() -> None:
    nsqd = ModelNsqd()
    core = started(nsqd)
    board = StatusBoard(sources_interval_s=0.0)
    totals = []
    for now in (1.0, 100.0, 200.0):
        core.assign([nsqd.source])
        nsqd.publish(5)
        run(core, nsqd, now)
        core.finish(core.lane.end, now)
        core.assign([])
        run(core, nsqd, now + 1)
        lose(core, nsqd, connection_of(nsqd), now + 2)
        for later in (now + 2, now + 70):
            run(core, nsqd, later)
            board.changed(core, later)
            report = Report(backlog=0, lost=0)
            report.add([board.wait(-1, 0)[1]])
            totals.append(report.nsqds[str(nsqd.source.nsqd)]["finished"])
    assert totals == [5, 5, 10, 10, 15, 15]
    assert not core.sources


# Where there are several connections, a copy that is late on one of them may not be known for one that came on another.
@pytest.mark.parametrize(("in_flight_max", "stalls"), [(50, False), (20, True)], ids=["three connections", "stalls"])
@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_nothing_is_lost_and_little_comes_twice(seed: int, in_flight_max: int, stalls: bool) -> None:
    """Publishing, batches, broken connections, crashes, stalls, long pauses, by chance; then all is accounted for."""
    chance = random.Random(seed)
    nsqd = ModelNsqd(rdy_max=20, timeout_s=10, timeout_s_max=40)
    core = started(nsqd, in_flight_max=in_flight_max)
    published: list[bytes] = []
    emitted: Counter[bytes] = Counter()
    now = stalled_at = 0.0
    batch_end = position = 0
    for _ in range(400):
        now += chance.choice([0.1, 0.1, 0.1, 0.5, 3.0, 12.0 if chance.random() < 0.1 else 0.2])
        match chance.randrange(8):
            case 0 | 1:
                published += nsqd.publish(chance.randrange(1, 30))
            case 2 if nsqd.clients:
                lose(core, nsqd, chance.choice(list(nsqd.clients)), now)
            case 3 if chance.random() < 0.2:
                for connection in list(nsqd.clients):
                    core.lost_connection(connection, now)
                nsqd.crash()
            case 6 if stalls and not nsqd.is_stalled and chance.random() < 0.2:
                nsqd.is_stalled, stalled_at = True, now
            case 4 | 5:
                # A batch: planned, read (twice, the same), committed.
                batch_end = core.lane.end
                rows = ids(core, position, batch_end)
                assert rows == ids(core, position, batch_end)
                emitted.update(rows)
                assert not set(nsqd.finished) - set(emitted), "finished before its batch was committed"
                core.finish(batch_end, now)
                # What is finished is sent in the same round.
                nsqd.obey(now)
                position = batch_end
        # Heartbeats that fail to come end a connection before messages have come three times.
        nsqd.is_stalled = nsqd.is_stalled and now < stalled_at + 5
        step(core, [nsqd], now)
        assert nsqd.in_flight() <= in_flight_max
    nsqd.is_stalled = False
    for _ in range(300):
        now += 0.5
        step(core, [nsqd], now)
        emitted.update(ids(core, position, core.lane.end))
        position = core.lane.end
        core.finish(position, now)
    step(core, [nsqd], now)
    assert set(emitted) == set(published)
    assert set(nsqd.finished) == set(published)
    assert not nsqd.queue
    assert not nsqd.in_flight()
    assert not nsqd.orphans
    assert max(emitted.values(), default=1) == 1, "a redelivery was emitted again"
    assert sum(connection.in_flight for connection in core.sources[nsqd.source].connections) == 0
