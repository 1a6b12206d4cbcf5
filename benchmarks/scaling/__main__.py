"""How far receivers on many hosts go: the parts are measured here, the rest is simulated.

    ./run bench scaling [--broker go|ours] [--costs FILE] [--save FILE] [--seconds 20]

The costs of a message, a batch, a task, a lane and a status are measured on this machine, or read from a file that
--save wrote. The model (model.py) puts them together to clusters of up to hundreds of hosts and nsqds. It knows the
work of the connector, of nsqd and of a query that does nothing with its rows; it does not know what yours does.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

# They are found by the line above.
from measure import EXECUTORS, IN_FLIGHT_MAX, load, measure, rate_on_executors  # noqa: E402
from model import Costs, Shape, Simulation  # noqa: E402
from shapes import machine, tables  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=["go", "ours"], default="go", help="whose nsqd to measure")
    parser.add_argument("--costs", metavar="FILE", help="do not measure, read what --save wrote")
    parser.add_argument("--save", metavar="FILE", help="write the measured costs")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long a simulated query runs")
    told = parser.parse_args()
    costs = load(told.costs) if told.costs else measure(told.broker)
    if told.save:
        Path(told.save).write_text(json.dumps(asdict(costs), indent=2) + "\n")
    for name, seconds in asdict(costs).items():
        print(f"{name:17} {seconds * 1e6:12.3f} microseconds")
    if not told.costs:
        print(f"\n{held_to_a_run(costs, told.broker, told.seconds)}")
    for title, shapes in tables():
        print(f"\n{title}\n{HEAD}")
        for shape in shapes:
            print(row(shape, costs, told.seconds))


def held_to_a_run(costs: Costs, broker: str, seconds: float) -> str:
    """The model's smallest cluster beside one that is there, whose parts have to share this machine's cores."""
    model = Simulation(machine(EXECUTORS, IN_FLIGHT_MAX), costs).run(seconds).rate
    cores = os.cpu_count() or 1
    at_most = cores / (costs.nsqd_message + costs.receiver_message + costs.task_message)
    return (
        f"receivers=executors with {EXECUTORS} executors of a core: {rate_on_executors(broker):,.0f} messages/s; "
        f"the model, with cores for each part, {model:,.0f}; what these parts cost, on {cores} cores, {at_most:,.0f}"
    )


HEAD = "| hosts | nsqds | maxInFlight | tasks | messages/s | batch s | held s | ceiling | busy |\n" + "|---" * 9 + "|"


def row(shape: Shape, costs: Costs, seconds: float) -> str:
    result = Simulation(shape, costs).run(seconds)
    busy = ", ".join(f"{name} {part:.0%}" for name, part in result.busy.items() if part >= 0.05)
    numbers = [f"{shape.hosts} | {shape.nsqds} | {shape.in_flight_max:,} | {shape.partitions} | {result.rate:,.0f}"]
    numbers.append(f"{result.batch_s:.2f} | {result.latency_s:.2f} | {result.ceiling} | {busy}")
    return f"| {' | '.join(numbers)} |"


if __name__ == "__main__":
    main()
