"""The suite as a program: ``./run faults [--long] [--seed N] [--only NAME] [--broker go|ours] [--report FOLDER]``."""

import argparse
import os
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from rig.daemons import Implementation, own_brokers

from faults.report import Row, append, write
from faults.scenario import Context, Scenario, Skipped, end_in_order_when_asked, found, matching, run

# None takes so long, however busy the machine is.
_LIMIT_S = 3600.0


def main() -> int:
    end_in_order_when_asked()
    options = parse()
    folder: Path = options.report
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").unlink(missing_ok=True)
    began = time.monotonic()
    wanted = [
        (scenario, make) for scenario, broker in choose(options) for make in makes(scenario, broker or options.broker)
    ]
    chosen = [(impl, scenario) for scenario, make in wanted if (impl := implementation(make))]
    skipped = [
        f"{scenario.name}@{make} (NSQ_GO_BIN is not set)" for scenario, make in wanted if not implementation(make)
    ]
    print(f"{len(chosen)} scenarios, seed {options.seed}, report in {folder}", flush=True)
    with tempfile.TemporaryDirectory(prefix="nsq-faults-") as place:
        context = Context(own_brokers(), Path(place), options.seed, options.long, _LIMIT_S)
        with context.ending:
            for number, (impl, scenario) in enumerate(chosen):
                own = replace(context, impl=impl, folder=Path(place) / f"{number}", seed=options.seed + number)
                if len(chosen) == 1:
                    own = replace(own, seed=options.seed)
                skipped += attempt(scenario, own, folder)
    facts = {"seed": options.seed, "form": "long" if options.long else "short"}
    facts |= {"seconds": round(time.monotonic() - began), "skipped": "; ".join(skipped) or "nothing"}
    rows = write(folder, "Faults: what broke, and what came of it", facts)
    print((folder / "report.md").read_text())
    return 0 if rows and all(row.passed for row in rows) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("./run faults", description="Break everything and account for every message.")
    parser.add_argument("--long", action="store_true", help="everything, instead of a chosen part")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="decides all chance; printed")
    parser.add_argument(
        "--only",
        action="append",
        help="scenarios of this name, as a report gives it; * stands for anything; repeatable",
    )
    parser.add_argument("--broker", choices=["go", "ours"], help="against these brokers only")
    parser.add_argument("--list", action="store_true", help="print the scenarios' names and end")
    parser.add_argument("--report", type=Path, default=Path("build/faults"), help="folder of report.md and report.json")
    options = parser.parse_args()
    if options.list:
        print("\n".join(scenario.name for scenario in found()))
        sys.exit()
    return options


def choose(options: argparse.Namespace) -> list[tuple[Scenario, str]]:
    """Scenarios, each with the broker that its name says after an @, or empty."""
    if not options.only:
        return [(scenario, "") for scenario in found() if options.long or not scenario.is_long]
    chosen: list[tuple[Scenario, str]] = []
    for pattern in options.only:
        name, _, broker = pattern.partition("@")
        if not (scenarios := matching(name)):
            sys.exit(f"there is no scenario {name!r}; --list shows them")
        chosen += [(scenario, broker.replace("-", "")) for scenario in scenarios]
    return chosen


def makes(scenario: Scenario, broker: str | None) -> list[str]:
    """Whose brokers it is run against; ours are there where it needs none."""
    of_these = scenario.brokers if "go" in scenario.brokers else ["ours"]
    return [make for make in of_these if broker in (None, make)]


def implementation(make: str) -> Implementation | None:
    """None where Go's are not at hand."""
    if make == "ours":
        return own_brokers()
    folder = os.environ.get("NSQ_GO_BIN")
    return Implementation("go", Path(folder).absolute()) if folder else None


def attempt(scenario: Scenario, context: Context, report: Path) -> list[str]:
    """Run it and keep its rows; why it was skipped, if it was."""
    context.folder.mkdir()
    try:
        rows = run(scenario, context)
    except Skipped as reason:
        print(f"skipped   {scenario.name}: {reason}", flush=True)
        return [f"{scenario.name} ({reason})"]
    for row in rows:
        append(row, report)
        print(line(row), flush=True)
    return []


def line(row: Row) -> str:
    counts = f"published {row.published}, lost {row.lost}, duplicated {row.duplicated}"
    return f"{'ok' if row.passed else 'FAILED':<9} {row.name} ({row.seconds:g} s): {counts} {row.failure}"


if __name__ == "__main__":
    sys.exit(main())
