"""A part of the crash matrix: each victim, each moment, each sink, both brokers. ``./run faults --long`` has all."""

from collections.abc import Callable, Sequence

import pytest

from faults import trap
from faults.crash import Case, scenario
from faults.gates import BEFORE_FIN, COMMITTED, FIN_SENT, HALF_WAY, PLANNED, RECEIVED, WRITTEN
from faults.queries import FILES, NSQ, TABLE
from faults.report import Row
from faults.scenario import Scenario
from faults.victims import DRIVER, EXECUTOR, LOOKUPD, NSQD, NSQDS, PLANNER, RECEIVER, WORKER

RunScenario = Callable[[Scenario, str], Sequence[Row]]

# Each victim, moment, sink and broker with several of the others.
GROUPS = [
    (RECEIVER, [(PLANNED, FILES), (HALF_WAY, TABLE), (COMMITTED, NSQ)], "ours"),
    (PLANNER, [(RECEIVED, TABLE), (HALF_WAY, FILES), (BEFORE_FIN, TABLE)], "go"),
    (WORKER, [(HALF_WAY, NSQ), (HALF_WAY, FILES)], "ours"),
    (NSQD, [(HALF_WAY, TABLE), (FIN_SENT, FILES)], "go"),
    (NSQDS, [(HALF_WAY, NSQ), (WRITTEN, TABLE)], "ours"),
    (LOOKUPD, [(PLANNED, NSQ), (COMMITTED, TABLE)], "go"),
    (DRIVER, [(PLANNED, TABLE), (HALF_WAY, NSQ), (COMMITTED, FILES)], "go"),
    (EXECUTOR, [(HALF_WAY, FILES), (WRITTEN, TABLE)], "ours"),
]


@pytest.mark.parametrize(("victim", "group", "broker"), GROUPS, ids=[victim for victim, _, _ in GROUPS])
def test_nothing_is_lost_when_it_is_killed(
    run_scenario: RunScenario, victim: str, group: list[tuple[str, str]], broker: str
) -> None:
    rows = run_scenario(scenario(victim, [Case(*each) for each in group]), broker)
    assert [row.victim for row in rows] == [victim] * len(group)


def test_a_sink_that_skips_batches_is_not_fooled(run_scenario: RunScenario) -> None:
    run_scenario(trap.SCENARIOS[0], "ours")
