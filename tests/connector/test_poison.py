"""Messages that were delivered too often: dropped, or published elsewhere, and not emitted."""

from collections import Counter

from model_nsqd import ModelNsqd, connection_of, ids, run, started

from pyspark_nsq.connector.receiver_service import StatusBoard
from pyspark_nsq.proto.parser import Publish


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


def test_a_dead_letter_topic_that_the_secret_does_not_open_is_a_failure_that_names_it() -> None:
    nsqd = ModelNsqd()
    nsqd.refused = {Publish: b'E_UNAUTHORIZED AUTH failed for PUB on "graveyard" ""'}
    core = started(nsqd, attempts_max=1, dead_letter_topic="graveyard")
    nsqd.publish(3)
    run(core, nsqd, 1.0)
    assert core.failure == ""
    nsqd.publish(1)
    nsqd.queue[0].attempts = 1
    run(core, nsqd, 2.0)
    assert core.failure == (
        'nsqd 127.0.0.1:4150: E_UNAUTHORIZED AUTH failed for PUB on "graveyard" "": see options authSecret and '
        "authSecretFile; with deadLetterTopic the secret has to open publishing to that topic"
    )
    board = StatusBoard()
    board.changed(core, 2.0)
    assert board.wait(-1, 0)[1].failure == core.failure


def test_an_auth_server_that_is_away_when_a_dead_letter_is_published_may_come_back() -> None:
    nsqd = ModelNsqd()
    nsqd.refused = {Publish: b"E_AUTH_FAILED AUTH failed"}
    core = started(nsqd, attempts_max=1, dead_letter_topic="graveyard")
    (published,) = nsqd.publish(1)
    nsqd.queue[0].attempts = 1
    run(core, nsqd, 1.0)
    assert not nsqd.clients
    nsqd.refused = {}
    run(core, nsqd, 2.0, 70.0)
    assert core.failure == ""
    assert nsqd.published == [("graveyard", b"body of " + published)]


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
