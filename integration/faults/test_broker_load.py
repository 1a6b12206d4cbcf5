"""nsqd where disk, readers, files and patience are scarce, in short; ``./run faults --long`` takes more of each."""

from pathlib import Path

import pytest

from faults.broker_load import SCENARIOS
from faults.report import append
from faults.scenario import Context, Scenario, own_brokers, run


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_everything_acknowledged_is_delivered(scenario: Scenario, tmp_path: Path) -> None:
    (row,) = run(scenario, Context(own_brokers(), tmp_path, seed=1))
    append(row)
    assert row.passed, row
    assert row.published
