"""A scenario: something that breaks and what has to hold nevertheless, with a name by which it can be repeated.

``./run faults`` runs those that the modules here offer as ``SCENARIOS``, a list or tuple. A scenario gets a
``Context`` and returns the row of its one run, or several; an exception in it becomes a failed row.
"""

import contextlib
import importlib
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rig.daemons import Implementation

from faults.report import Row


@dataclass(frozen=True)
class Context:
    """What a scenario gets: whose brokers, a folder of its own, and its chance, which the seed decides.

    ``shared`` holds what scenarios may share, by name, such as a running Spark; ``ending`` closes it in the end.
    """

    impl: Implementation
    folder: Path
    seed: int
    is_long: bool = False
    shared: dict[str, object] = field(default_factory=dict)
    ending: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def chance(self) -> random.Random:
        return random.Random(self.seed)


@dataclass(frozen=True)
class Scenario:
    """``brokers`` says against whose it makes sense: "go", "ours", or "-" for neither, when it runs once.

    ``is_long``: only with ``--long``. The rows' seeds are filled in by ``run``, names and seconds where they are not.
    """

    name: str
    run: Callable[[Context], Row | Sequence[Row]]
    fault: str
    victim: str
    brokers: Sequence[str] = ("go", "ours")
    is_long: bool = False


class Skipped(Exception):  # noqa: N818 (it is no error)
    """This machine does not allow it: the text says what is missing."""


def run(scenario: Scenario, context: Context) -> list[Row]:
    """What came of a scenario, whatever happens in it; only ``Skipped`` goes through."""
    began = time.monotonic()
    broker = context.impl.name if context.impl.name in scenario.brokers else "-"
    try:
        result = scenario.run(context)
        rows = [result] if isinstance(result, Row) else list(result)
    except Skipped:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        rows = [Row(scenario.fault, scenario.victim, broker, 1, 0, 0, 0, True, 0, context.seed, failure=text)]
    seconds = (time.monotonic() - began) / len(rows)
    return [
        replace(
            row,
            name=f"{row.name or scenario.name}@{broker}",
            seed=context.seed,
            seconds=round(row.seconds or seconds, 1),
        )
        for row in rows
    ]


def found() -> list[Scenario]:
    """The scenarios of all modules in this folder, in a fixed order."""
    scenarios: list[Scenario] = []
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem.startswith(("test_", "_")) or path.stem == "conftest":
            continue
        if "\nSCENARIOS" in path.read_text():
            scenarios += importlib.import_module(f"faults.{path.stem}").SCENARIOS
    names = [scenario.name for scenario in scenarios]
    assert len(names) == len(set(names)), "two scenarios have the same name"
    return scenarios


def own_brokers() -> Implementation:
    return Implementation("ours", Path(sys.executable).parent)


def end_in_order_when_asked() -> None:
    """SIGTERM ends this program like Ctrl-C: what it has started is ended too."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
