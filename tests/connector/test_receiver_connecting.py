"""When a receiver connects, how soon it tries again, and what it tells of refusals."""

from itertools import pairwise

import pytest
from model_nsqd import ModelNsqd, connection_of, ids, limits, lose, run, step

from pyspark_nsq.connector.receiver_core import ReceiverCore
from pyspark_nsq.proto.parser import Subscribe

SUB_REFUSED = {Subscribe: b'E_UNAUTHORIZED AUTH failed for SUB on "topic" "channel"'}


def test_failures_are_tried_again_ever_later() -> None:
    nsqd = ModelNsqd()
    core = ReceiverCore(limits(), 0)
    core.assign([nsqd.source])
    times = []
    for tick in range(4000):
        now = tick * 0.01
        for source in core.to_connect(now):
            times.append(now)
            core.connect_failed(source, now)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[0] == pytest.approx(0.1, abs=0.02)
    assert gaps[-1] == pytest.approx(10.0, abs=0.02)


def test_an_nsqd_that_only_subscribes_is_tried_again_ever_later() -> None:
    nsqd = ModelNsqd()
    core = ReceiverCore(limits(), 0)
    core.assign([nsqd.source])
    times = []

    def subscribe_and_lose(now: float) -> None:
        run(core, nsqd, now)
        if nsqd.clients:
            assert connection_of(nsqd).subscribed
            times.append(now)
            lose(core, nsqd, connection_of(nsqd), now)

    for tick in range(4000):
        subscribe_and_lose(tick * 0.01)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(10.0, abs=0.02)
    # Messages, or time, show that it is well: then it is tried again soon.
    nsqd.publish(1)
    run(core, nsqd, 60.0)
    lose(core, nsqd, connection_of(nsqd), 60.0)
    run(core, nsqd, 60.2)
    assert nsqd.clients


def test_an_nsqd_that_appears_after_an_hour_is_read_soon_after() -> None:
    nsqd = ModelNsqd()
    core = ReceiverCore(limits(), 0)
    core.assign([nsqd.source])
    published = nsqd.publish(3)
    for second in range(3600):
        for source in core.to_connect(float(second)):
            core.connect_failed(source, float(second))
    assert core.sources[nsqd.source].counts.failed_connections < 500
    # Within retryDelayMax.
    run(core, nsqd, *(float(second) for second in range(3600, 3611)))
    assert ids(core, 0, core.lane.end) == published


def test_a_refusal_is_told_only_while_nothing_has_been_connected() -> None:
    nsqd, other = ModelNsqd(port=1), ModelNsqd(port=2)
    core = ReceiverCore(limits(), 0)
    core.assign([nsqd.source, other.source])
    core.to_connect(0.0)
    core.connect_failed(nsqd.source, 0.0, "a wrong secret")
    assert core.refusal == ""
    core.connect_failed(other.source, 0.0, "a wrong secret")
    assert core.refusal == "a wrong secret"
    step(core, [nsqd, other], 1.0)
    assert core.refusal == ""
    lose(core, nsqd, connection_of(nsqd), 2.0)
    core.to_connect(3.0)
    core.connect_failed(nsqd.source, 3.0, "a wrong secret")
    assert core.refusal == ""


def test_a_refused_sub_is_told_as_long_as_nothing_has_been_subscribed() -> None:
    nsqd, other = ModelNsqd(port=1), ModelNsqd(port=2)
    nsqd.refused = other.refused = SUB_REFUSED
    core = ReceiverCore(limits(), 0)
    core.assign([nsqd.source])
    run(core, nsqd, 0.0)
    assert core.refusal == (
        'nsqd 127.0.0.1:1: E_UNAUTHORIZED AUTH failed for SUB on "topic" "channel": '
        "see options authSecret and authSecretFile"
    )
    core.assign([nsqd.source, other.source])
    assert core.refusal == ""
    step(core, [nsqd, other], 0.01)
    assert core.refusal.startswith("nsqd 127.0.0.1:1: E_UNAUTHORIZED")
    other.refused = {}
    step(core, [nsqd, other], 1.0)
    assert core.refusal == ""
    other.refused = SUB_REFUSED
    lose(core, other, connection_of(other), 2.0)
    for now in (3.0, 4.0, 20.0):
        step(core, [nsqd, other], now)
    assert not nsqd.clients
    assert not other.clients
    assert core.refusal == ""


def test_an_nsqd_that_refuses_sub_is_tried_again_ever_later() -> None:
    nsqd = ModelNsqd()
    nsqd.refused = SUB_REFUSED
    core = ReceiverCore(limits(), 0)
    core.assign([nsqd.source])
    times = []
    for tick in range(4000):
        # The clock of a host that has been up for a while.
        now = 1000 + tick * 0.01
        failures = core.sources[nsqd.source].counts.failed_connections
        step(core, [nsqd], now)
        if core.sources[nsqd.source].counts.failed_connections > failures:
            times.append(now)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[0] == pytest.approx(0.1, abs=0.02)
    assert gaps[-1] == pytest.approx(10.0, abs=0.02)
