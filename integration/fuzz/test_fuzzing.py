"""The fuzzer itself: some thousand inputs for each target in every test run, and a fault that it has to find."""

import os

import pytest

from fuzz import planted
from fuzz.all_targets import TARGETS
from fuzz.fuzzing import NOT_HERE, Outcome, Settings, fuzz, is_available

pytestmark = pytest.mark.skipif(not is_available(), reason=NOT_HERE)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    settings = Settings(at_once=min(2, os.cpu_count() or 1))
    return {outcome.target: outcome for outcome in fuzz(list(TARGETS.values()), settings)}


def test_so_many_inputs_find_nothing(outcomes: dict[str, Outcome]) -> None:
    assert set(outcomes) == set(TARGETS)
    failed = [outcome for outcome in outcomes.values() if not outcome.passed]
    assert not failed, "\n".join(f"{each.target}: {each.findings} {each.failure}" for each in failed)
    assert all(each.inputs >= TARGETS[each.target].runs and each.reached for each in outcomes.values())


def test_a_fault_is_found() -> None:
    (outcome,) = fuzz(list(planted.TARGETS.values()), Settings(), "fuzz.planted")
    assert not outcome.passed
    assert [data[:4] for data in outcome.findings] == [b"bad!"]
    assert "what no parser may do" in outcome.failure
