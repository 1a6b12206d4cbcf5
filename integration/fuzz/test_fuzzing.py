"""The fuzzer itself: some thousand inputs for each target in every test run, and a fault that it has to find."""

import os
from collections.abc import Iterator

import pytest

from fuzz.all_targets import TARGETS
from fuzz.fuzzing import NOT_HERE, Outcome, Settings, fuzz, is_available

RUNS = 3000

pytestmark = pytest.mark.skipif(not is_available(), reason=NOT_HERE)


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Outcome]]:
    settings = Settings(runs=RUNS, at_once=min(2, os.cpu_count() or 1))
    yield {outcome.target: outcome for outcome in fuzz(list(TARGETS.values()), settings)}


def test_so_many_inputs_find_nothing(outcomes: dict[str, Outcome]) -> None:
    assert set(outcomes) == set(TARGETS)
    failed = [outcome for outcome in outcomes.values() if not outcome.passed]
    assert not failed, "\n".join(f"{each.target}: {each.findings} {each.failure}" for each in failed)
    assert all(outcome.inputs >= RUNS and outcome.reached for outcome in outcomes.values())
