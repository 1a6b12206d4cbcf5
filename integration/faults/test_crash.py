"""A part of the crash matrix: each victim, each moment, each sink, both brokers. ``./run faults --long`` has all."""

from collections.abc import Callable, Sequence

import pytest

from faults import trap
from faults.crash import Case, cases, scenario
from faults.gates import HALF_WAY, PLANNED, WRITTEN
from faults.queries import NSQ, SINKS, TABLE
from faults.report import Row
from faults.scenario import Scenario
from faults.victims import DRIVER, EXECUTOR, LOOKUPD, NSQD, NSQDS, PLANNER, RECEIVER, WORKER

RunScenario = Callable[[Scenario, str], Sequence[Row]]

FEW = [Case(PLANNED, NSQ), Case(HALF_WAY, TABLE), Case(WRITTEN, NSQ)]
GROUPS = [
    (RECEIVER, cases(0), "ours"),
    (PLANNER, cases(1), "go"),
    (WORKER, [Case(HALF_WAY, sink) for sink in SINKS], "ours"),
    (NSQD, cases(2), "go"),
    (NSQDS, cases(0), "ours"),
    (LOOKUPD, FEW, "go"),
    (DRIVER, cases(2), "go"),
    (EXECUTOR, FEW, "ours"),
]


@pytest.mark.parametrize(("victim", "group", "broker"), GROUPS, ids=[victim for victim, _, _ in GROUPS])
def test_nothing_is_lost_when_it_is_killed(
    run_scenario: RunScenario, victim: str, group: list[Case], broker: str
) -> None:
    rows = run_scenario(scenario(f"crash:{victim}", victim, group), broker)
    assert [row.victim for row in rows] == [victim] * len(group)


def test_a_sink_that_skips_batches_is_not_fooled(run_scenario: RunScenario) -> None:
    run_scenario(trap.SCENARIOS[0], "ours")
