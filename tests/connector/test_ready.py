"""When a receiver is full: a batch has nothing to gain by waiting for more."""

from model_nsqd import ModelNsqd, run, started, step

from pyspark_nsq.connector.receiver_core import ReceiverCore


def fill(core: ReceiverCore, nsqds: list[ModelNsqd]) -> int:
    """How many messages it held when it was full."""
    for tick in range(1, 400):
        step(core, nsqds, tick * 0.25)
        if core.full:
            return core.lane.held
    raise AssertionError(f"it holds {core.lane.held} and is not full")


def test_it_is_full_at_the_limit_of_bytes() -> None:
    nsqd = ModelNsqd(rdy_max=10)
    core = started(nsqd, bytes_max=12_000)
    assert not core.full
    nsqd.publish(100)
    assert fill(core, [nsqd]) < 100
    assert core.paused
    core.finish(core.lane.end, 101.0)
    core.tick(101.0)
    assert not core.full


def test_it_is_full_where_one_of_several_nsqds_has_used_up_its_window_and_the_others_have_little() -> None:
    nsqds = [ModelNsqd(port=port, rdy_max=25) for port in (1, 2, 3)]
    core = started(nsqds[0], in_flight_max=80)
    core.assign([nsqd.source for nsqd in nsqds])
    nsqds[0].publish(1000)
    nsqds[1].publish(1)
    # The others keep a quarter of a third each; its connections came one after the other.
    assert 60 <= fill(core, nsqds) < 80
    nsqds[1].publish(3)
    step(core, nsqds, 101.0)
    assert core.full


def test_it_is_not_full_while_messages_come_and_are_finished() -> None:
    nsqd = ModelNsqd(rdy_max=10)
    core = started(nsqd, in_flight_max=10)
    for tick in range(1, 100):
        nsqd.publish(10)
        run(core, nsqd, tick * 0.25)
        assert not core.full
        core.finish(core.lane.end, tick * 0.25)
