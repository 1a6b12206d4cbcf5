"""What the tests of the faults share: one Spark that runs, until a test kills it."""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from rig.daemons import Implementation, own_brokers

from faults.report import FOLDER_VARIABLE, Row, append, write
from faults.scenario import Context, Scenario, Skipped, matching, run

# A scenario that hangs is given up while there is time to tell so, and to end what it has started.
LIMIT_S = 300.0
_ENDING_S = 60.0
SEED = int(os.environ.get("NSQ_FAULTS_SEED", "20261118"))
RunScenario = Callable[[Scenario, str], Sequence[Row]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "run_scenario" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(LIMIT_S + _ENDING_S))


@pytest.fixture(scope="session", autouse=True)
def written_report() -> Iterator[None]:
    """Where a report was asked for, what the tests have put into it can be read in the end."""
    yield
    if folder := os.environ.get(FOLDER_VARIABLE):
        write(Path(folder), "Faults: the part that runs with the tests", {"seed": SEED})


@pytest.fixture(scope="session")
def run_scenario(
    tmp_path_factory: pytest.TempPathFactory, find_go: Callable[[], Implementation]
) -> Iterator[RunScenario]:
    """Runs a scenario against the brokers of a name, puts what came of it into the report, and fails if it failed.

    Where this machine does not allow it the test is skipped."""
    numbers = itertools.count()
    place = tmp_path_factory.mktemp("faults")
    with contextlib.ExitStack() as ending:
        shared: dict[str, object] = {}

        def run_one(scenario: Scenario, broker: str) -> Sequence[Row]:
            assert matching(scenario.name), "nobody could repeat it by this name"
            impl = find_go() if broker == "go" else own_brokers()
            folder = place / str(next(numbers))
            folder.mkdir()
            try:
                rows = run(scenario, Context(impl, folder, SEED, limit_s=LIMIT_S, shared=shared, ending=ending))
            except Skipped as reason:
                pytest.skip(str(reason))
            for row in rows:
                append(row)
                print(row)
            failed = [row for row in rows if not row.passed]
            assert not failed, "\n".join(f"{row.command}: {row}" for row in failed)
            return rows

        yield run_one
