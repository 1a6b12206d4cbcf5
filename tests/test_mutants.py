"""The faults that tools plant can still be planted; whether tests see them the tools themselves say."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))

import mutate_broker
import mutate_connector
from mutants import Fault

PLANTED = [("conformance", fault) for fault in mutate_broker.FAULTS]
PLANTED += [("connector", fault) for fault in mutate_connector.FAULTS]


@pytest.mark.parametrize(("suite", "fault"), PLANTED, ids=[fault.name for _, fault in PLANTED])
def test_what_a_fault_takes_the_place_of_stands_there_once(root: Path, suite: str, fault: Fault) -> None:
    assert (root / "src" / "pyspark_nsq" / fault.path).read_text().count(fault.text) == 1
    assert fault.becomes != fault.text
    assert (root / "tests" / suite / f"test_{fault.tests[0]}.py").exists()


def test_each_invariant_of_the_source_has_a_fault() -> None:
    named = {fault.name.partition(":")[0] for fault in mutate_connector.FAULTS if ":" in fault.name}
    assert named == {f"I{number}" for number in range(1, 7)}
