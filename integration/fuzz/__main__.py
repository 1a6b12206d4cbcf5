"""``./run fuzz``: hostile input by the million, chosen by what code it reaches.

What is found is shown as a line of Python that repeats it, and with --keep goes to ``findings/``, where every test run
tries it from then on.
"""

import argparse
import logging
import sys

from faults.report import Row, append

from fuzz.all_targets import TARGETS
from fuzz.fuzzing import NOT_HERE, Outcome, Settings, fuzz, is_available


def report(outcome: Outcome, seed: int) -> None:
    """A line for people, what repeats a finding, and a row for the report of faults."""
    rate = outcome.inputs / outcome.seconds if outcome.seconds else 0
    result = "ok" if outcome.passed else "FOUND SOMETHING"
    numbers = f"{outcome.inputs:>12,} inputs {rate:>8,.0f}/s {outcome.reached:>7,} branches"
    print(f"{outcome.target:24}{numbers}  {result}", flush=True)
    if outcome.failure:
        print(outcome.failure)
    for data in outcome.findings:
        call = f"TARGETS[{outcome.target!r}].weigh({data!r})"
        print(f"repeat it in integration/:\n    from fuzz.all_targets import TARGETS; {call}")
    lost, seconds, failure = len(outcome.findings), round(outcome.seconds, 1), outcome.failure[-300:]
    append(Row("fuzzing", outcome.target, "ours", 1, outcome.inputs, lost, 0, False, seconds, seed, failure=failure))


def _arguments() -> argparse.Namespace:
    usual = Settings()
    parser = argparse.ArgumentParser(prog="./run fuzz", description="Feed hostile input to parsers and ports.")
    parser.add_argument("target", nargs="*", help="all, if none is named: " + ", ".join(TARGETS))
    parser.add_argument("--runs", type=int, help="inputs for each target (as many as a test run tries)")
    parser.add_argument("--seconds", type=int, default=0, help="so long for each target, whatever the number of inputs")
    parser.add_argument("--seed", type=int, default=usual.seed, help=f"another one tries other inputs ({usual.seed})")
    parser.add_argument("--jobs", type=int, default=1, help="targets at the same time (1)")
    parser.add_argument("--keep", action="store_true", help="keep what reaches something new, and what is found")
    chosen = parser.parse_args()
    if unknown := set(chosen.target) - set(TARGETS):
        parser.error(f"unknown target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    return chosen


def main() -> int:
    chosen = _arguments()
    if not is_available():
        print(f"error: {NOT_HERE}", file=sys.stderr)
        return 1
    logging.disable(logging.CRITICAL)
    targets = [TARGETS[name] for name in chosen.target or TARGETS]
    outcomes = []
    for outcome in fuzz(targets, Settings(chosen.runs, chosen.seconds, chosen.seed, chosen.jobs, chosen.keep)):
        report(outcome, chosen.seed)
        outcomes.append(outcome)
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
