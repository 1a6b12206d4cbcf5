"""nsqd where disk, readers, files and patience are scarce, in short; ``./run faults --long`` takes more of each."""

from collections.abc import Callable, Sequence

import pytest

from faults import broker_load
from faults.broker_load import SCENARIOS, need_connections
from faults.report import Row
from faults.scenario import Scenario, Skipped

RunScenario = Callable[[Scenario, str], Sequence[Row]]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_everything_acknowledged_is_delivered(scenario: Scenario, run_scenario: RunScenario) -> None:
    (row,) = run_scenario(scenario, "ours")
    assert row.published


@pytest.mark.parametrize(("files", "count"), [(1024, 600), (4096, 2100), (12_000, 10_000), (14_351, 10_000)])
def test_more_connections_than_nsqd_takes_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, files: int, count: int
) -> None:
    monkeypatch.setattr(broker_load, "raise_file_limit", lambda: files)
    with pytest.raises(Skipped, match="ulimit"):
        need_connections(count)


@pytest.mark.parametrize(("files", "count"), [(4096, 2000), (14_352, 10_000), (2**20, 10_000)])
def test_as_many_connections_as_nsqd_takes_are_made(monkeypatch: pytest.MonkeyPatch, files: int, count: int) -> None:
    monkeypatch.setattr(broker_load, "raise_file_limit", lambda: files)
    need_connections(count)
