"""Messages that were delivered too often: dropped, or published elsewhere, and not emitted."""

from collections import Counter

from model_nsqd import ModelNsqd, connection_of, ids, run, started


def test_poison_goes_to_the_dead_letter_topic_and_is_finished_when_it_is_there() -> None:
    nsqd = ModelNsqd()
    core = started(nsqd, attempts_max=2, dead_letter_topic="graveyard")
    published = nsqd.publish(2)
    nsqd.queue[0].attempts = 2
    nsqd.expire(1.0)
    core.tick(1.0)
    nsqd.deliver(core, 1.0)
    assert not nsqd.finished
    run(core, nsqd, 2.0)
    assert nsqd.published == [("graveyard", b"body of " + published[0])]
    assert nsqd.finished == Counter(published[:1])
    assert ids(core, 0, core.lane.end) == published[1:]
    assert core.sources[nsqd.source].counts.dead_lettered == 1


def test_poison_is_dropped_and_counted_without_such_a_topic() -> None:
    nsqd = ModelNsqd()
    core = started(nsqd, attempts_max=2)
    published = nsqd.publish(2)
    nsqd.queue[0].attempts = 2
    run(core, nsqd, 1.0)
    assert ids(core, 0, core.lane.end) == published[1:]
    assert nsqd.finished == Counter(published[:1])
    assert core.sources[nsqd.source].counts.dropped == 1


def test_a_restart_counts_an_attempt_of_all_that_was_in_flight() -> None:
    """As docs/operating.md says: also of what no task has read."""
    nsqd = ModelNsqd()
    first = started(nsqd)
    published = nsqd.publish(5)
    run(first, nsqd, 1.0)
    ids(first, 0, 1)
    first.stop(2.0)
    nsqd.obey(2.0)
    nsqd.cut(connection_of(nsqd))
    second = started(nsqd, attempts_max=1)
    run(second, nsqd, 3.0)
    assert nsqd.finished == Counter(published)
    assert second.sources[nsqd.source].counts.dropped == 5
