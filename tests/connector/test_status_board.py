"""What a receiver tells the coordinator, and how often."""

from model_nsqd import ModelNsqd, run, started

from pyspark_nsq.connector.receiver_service import StatusBoard
from pyspark_nsq.connector.wire import with_all_sources


def test_sources_are_told_again_only_when_they_have_changed() -> None:
    nsqd, board = ModelNsqd(), StatusBoard(sources_interval_s=10.0)
    core = started(nsqd)
    board.changed(core, 100.0)
    version, first = board.wait(-1, 0)
    assert first.has_sources
    assert [each.counters.received for each in first.sources] == [0]

    nsqd.publish(3)
    run(core, nsqd, 101.0)
    board.changed(core, 101.0)
    version, second = board.wait(version, 0)
    assert (second.end, second.has_sources, len(second.sources)) == (3, False, 0)
    # For the coordinator they are what they were.
    assert with_all_sources(second, first).sources == first.sources

    board.changed(core, 110.0)
    version, third = board.wait(version, 0)
    assert third.has_sources
    assert [each.counters.received for each in third.sources] == [3]
    assert [each.counters.received for each in with_all_sources(third, second).sources] == [3]

    same, beat = board.wait(version, 0)
    assert (same, beat.end, beat.has_sources) == (version, 3, False)


def test_a_share_that_holds_is_told_at_once() -> None:
    """Others get what it leaves: they would wait for the next sign of life."""
    nsqd, board = ModelNsqd(), StatusBoard(sources_interval_s=10.0)
    core = started(nsqd, in_flight_max=10)
    board.changed(core, 100.0)
    version, first = board.wait(-1, 0)
    assert (first.share, first.charge) == (0, 10)
    core.take_share(3, 4, 2**20, 100.5)
    board.changed(core, 100.5)
    version, second = board.wait(version, 0)
    # It may still have what nsqd sent before it read of this.
    assert (second.share, second.charge) == (3, 10)
    run(core, nsqd, 102.0)
    board.changed(core, 102.0)
    _, third = board.wait(version, 0)
    assert (third.share, third.charge) == (3, 4)


def test_who_listens_anew_is_told_all() -> None:
    nsqd, board = ModelNsqd(), StatusBoard(sources_interval_s=10.0)
    core = started(nsqd)
    board.changed(core, 100.0)
    nsqd.publish(3)
    run(core, nsqd, 101.0)
    board.changed(core, 101.0)
    _, status = board.wait(-1, 0)
    assert (status.end, status.has_sources, len(status.sources)) == (3, True, 1)
