"""The daemons' console scripts. Without the extra that a daemon needs they name that, and no module."""

import sys
from importlib import import_module
from typing import Any


def nsqd() -> Any:
    return _launch("broker", "nsqd")


def nsqlookupd() -> Any:
    return _launch("broker", "nsqlookupd")


def nsq_receiver() -> Any:
    return _launch("connector", "nsq_receiver")


def _launch(extra: str, name: str) -> Any:
    try:
        main = import_module(f"pyspark_nsq.{extra}.{name}").main
    except ModuleNotFoundError as error:
        program = name.replace("_", "-")
        sys.exit(f'{program}: there is no {error.name} here: pip install "pyspark-nsq[{extra}]"')
    return main()
