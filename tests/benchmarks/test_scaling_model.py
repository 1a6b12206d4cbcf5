"""The simulation keeps to what can be worked out by hand where only one thing limits it."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from pyspark_nsq.connector.fleet import STATUS_MS_MIN, STATUS_MS_PER_RECEIVER
from pyspark_nsq.connector.options import parse_source_options
from pyspark_nsq.connector.placement import LANES_MAX


def load(name: str) -> ModuleType:
    path = Path(__file__).parents[2] / f"benchmarks/scaling/{name}.py"
    spec = importlib.util.spec_from_file_location(f"scaling_{name}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


model = load("model")
CHEAP = model.Costs(
    nsqd_message=1e-7, receiver_message=1e-7, task_message=1e-7, batch=0.2, task=1e-4, lane=1e-6, status=1e-5
)
SHAPE = model.Shape(nsqds=2, hosts=2, cores_per_host=2, partitions=4, in_flight_max=20_000)


def test_receivers_tell_as_often_as_the_fleet_has_them() -> None:
    assert SHAPE.status_interval_s == STATUS_MS_MIN / 1000
    assert SHAPE.status_interval_s_per_host == STATUS_MS_PER_RECEIVER / 1000


def test_a_window_that_is_too_small_gives_itself_once_a_batch() -> None:
    result = model.Simulation(SHAPE, CHEAP).run(20)
    assert result.ceiling == "maxInFlight"
    assert result.rate * result.batch_s == pytest.approx(20_000, rel=0.1)


@pytest.mark.parametrize(
    ("name", "costs", "rate"),
    [
        ("nsqd", {"nsqd_message": 1e-5}, 200_000),
        ("receiver", {"receiver_message": 1e-5}, 200_000),
        ("executors", {"task_message": 4e-5}, 100_000),
        ("driver", {"task": 0.5}, 0),
    ],
)
def test_the_slowest_part_decides(name: str, costs: dict[str, float], rate: float) -> None:
    shape = replace(SHAPE, in_flight_max=2_000_000)
    result = model.Simulation(shape, replace(CHEAP, **costs)).run(300)
    assert result.ceiling == name
    if rate:
        assert result.rate == pytest.approx(rate, rel=0.15)


def test_what_is_published_is_what_is_read() -> None:
    result = model.Simulation(replace(SHAPE, in_flight_max=200_000, rate=50_000), CHEAP).run(30)
    assert result.rate == pytest.approx(50_000, rel=0.05)


def test_a_run_that_is_too_short_says_so() -> None:
    with pytest.raises(ValueError, match="too short"):
        model.Simulation(SHAPE, CHEAP).run(0.3)


def test_a_query_can_have_what_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model", model)
    for _, shapes in load("shapes").tables():
        for shape in shapes:
            texts = {"topic": "t", "channel": "c", "nsqdTcpAddresses": "h:1", "receivers": "executors"}
            chosen = {"numPartitions": str(shape.partitions), "maxInFlight": str(shape.in_flight_max)}
            options = parse_source_options(texts | chosen)
            assert (options.num_partitions, options.in_flight_max) == (shape.partitions, shape.in_flight_max)
            assert shape.hosts <= LANES_MAX
