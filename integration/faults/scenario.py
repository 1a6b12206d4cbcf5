"""A scenario: something that breaks and what has to hold nevertheless, with a name by which it can be repeated.

``./run faults`` runs those that the modules here offer as ``SCENARIOS``, a list or tuple, and with --only also what
their ``named`` makes of the name of a row. A scenario gets a ``Context`` and returns the row of its one run, or
several; an exception in it becomes a failed row.
"""

import contextlib
import fnmatch
import importlib
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rig.daemons import Implementation

from faults.report import Row

# Longer than it takes to end what a scenario has started.
_REMIND_S = 60.0


@dataclass(frozen=True)
class Context:
    """What a scenario gets: whose brokers, a folder of its own, and its chance, which the seed decides.

    ``shared`` holds what scenarios may share, by name, such as a running Spark; ``ending`` closes it in the end, or
    when a scenario could not put it in order.
    """

    impl: Implementation
    folder: Path
    seed: int
    is_long: bool = False
    # Where nobody else watches: a scenario that takes longer hangs, and has failed.
    limit_s: float | None = None
    shared: dict[str, object] = field(default_factory=dict)
    ending: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def chance(self) -> random.Random:
        return random.Random(self.seed)

    def end_shared(self) -> None:
        self.shared.clear()
        self.ending.close()


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


class TooLongError(Exception):
    """A scenario hangs."""


class Skipped(Exception):  # noqa: N818 (it is no error)
    """This machine does not allow it: the text says what is missing."""


def run(scenario: Scenario, context: Context) -> list[Row]:
    """What came of a scenario, whatever happens in it; only ``Skipped`` goes through, and what ends the program."""
    began = time.monotonic()
    broker = context.impl.name if context.impl.name in scenario.brokers else "-"
    try:
        with _time_limit(context.limit_s):
            result = scenario.run(context)
        rows = [result] if isinstance(result, Row) else list(result)
        assert rows, "it told nothing"
    except BaseException as error:
        # Queries that run on and gates that stay closed would hold up the next one.
        context.end_shared()
        if isinstance(error, Skipped) or not isinstance(error, Exception):
            raise
        text = f"{type(error).__name__}: {error}"
        rows = [Row(scenario.fault, scenario.victim, broker, 1, 0, 0, 0, True, 0, context.seed, failure=text)]
    seconds = (time.monotonic() - began) / len(rows)
    return [
        replace(
            row,
            name=f"{row.name or scenario.name}@{broker}",
            seed=context.seed,
            is_long=context.is_long,
            seconds=round(row.seconds or seconds, 1),
        )
        for row in rows
    ]


@contextlib.contextmanager
def _time_limit(seconds: float | None) -> Iterator[None]:
    if seconds is None:
        yield
        return

    def give_up(_number: int, _frame: object) -> None:
        raise TooLongError(f"it was not done after {seconds:g} s")

    began, former = time.monotonic(), signal.signal(signal.SIGALRM, give_up)
    # Again, should somebody have caught it who catches everything.
    former_s, _ = signal.setitimer(signal.ITIMER_REAL, seconds, _REMIND_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
        if former_s:
            # Somebody else's limit, such as that of a test, goes on.
            signal.setitimer(signal.ITIMER_REAL, max(0.001, former_s - (time.monotonic() - began)))


def found() -> list[Scenario]:
    """The scenarios of all modules in this folder, in a fixed order."""
    scenarios: list[Scenario] = [scenario for module in _modules() for scenario in module.SCENARIOS]
    names = [scenario.name for scenario in scenarios]
    assert len(names) == len(set(names)), "two scenarios have the same name"
    return scenarios


def matching(pattern: str) -> list[Scenario]:
    """Those whose names the pattern fits; where there are none, what a module knows by the name that a row bears."""
    fitting = [scenario for scenario in found() if fnmatch.fnmatchcase(scenario.name, pattern)]
    if fitting:
        return fitting
    knowing = [module.named(pattern) for module in _modules() if hasattr(module, "named")]
    return [scenario for scenario in knowing if scenario]


def _modules() -> Iterator[Any]:
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if not path.stem.startswith(("test_", "_")) and "\nSCENARIOS" in path.read_text():
            yield importlib.import_module(f"faults.{path.stem}")


def end_in_order_when_asked() -> None:
    """SIGTERM ends this program like Ctrl-C: what it has started is ended too."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
