"""The network between two parties fails, and nsqds lie. ``./run faults`` has the ways that are left out here."""

from collections.abc import Callable, Sequence

import pytest

from faults import lies, network
from faults.lying_nsqd import SINK_LIES, SOURCE_LIES
from faults.network import COORDINATOR_LOOKUPD, COORDINATOR_RECEIVER, FAULTS, RECEIVER_NSQD, SINK_NSQD, TASK_RECEIVER
from faults.report import Row
from faults.scenario import Scenario

RunScenario = Callable[[Scenario, str], Sequence[Row]]

CHOSEN = {
    RECEIVER_NSQD: ("half-open", "partition"),
    COORDINATOR_LOOKUPD: ("accepted, never answered",),
    TASK_RECEIVER: ("resets",),
    SINK_NSQD: ("partition",),
    COORDINATOR_RECEIVER: ("partition",),
}


@pytest.mark.parametrize("link", CHOSEN)
def test_a_bad_network_loses_nothing(run_scenario: RunScenario, link: str) -> None:
    chosen = [fault for fault in FAULTS if fault.name in CHOSEN[link]]
    assert run_scenario(network.scenario(link, chosen), "go" if link == SINK_NSQD else "ours")


def test_an_nsqd_may_hang_for_longer_than_its_time_outs(run_scenario: RunScenario) -> None:
    assert run_scenario(Scenario("network:paused nsqd", network.run_pause, "paused (SIGSTOP)", "one nsqd"), "go")


def test_a_liar_beside_an_honest_nsqd_does_no_harm_to_the_source(run_scenario: RunScenario) -> None:
    names = {"messages past RDY", "endless heartbeats", "half a frame", "strange IDENTIFY"}
    chosen = [lie for lie in SOURCE_LIES if lie.name in names]
    assert run_scenario(lies.scenario("source", chosen), "ours")


def test_a_liar_beside_an_honest_nsqd_does_no_harm_to_the_sink(run_scenario: RunScenario) -> None:
    names = {"acknowledges nothing", "answers garbage", "OK without write", "endless heartbeats"}
    chosen = [lie for lie in SINK_LIES if lie.name in names]
    assert run_scenario(lies.scenario("sink", chosen), "ours")
