"""The fuzzer itself, in a process of its own: ``python -m fuzz.worker MODULE JOBS_AT_ONCE JOB...``.

The module offers ``TARGETS``. A job is JSON: a target, the file for what the fuzzer says, and libFuzzer's arguments.
Each gets a process, forked from this one, as the fuzzer never returns and to prepare the code for it takes longer than
thousands of inputs. The name of every target that has ended is printed, with its exit code and the seconds it took.
"""

import json
import logging
import os
import resource
import sys
import time
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import atheris

# What a process may take beside what it has when it begins: a lying length that is believed is more than that.
_MEMORY_MAX = 1024 * 1024 * 1024


def main() -> None:
    module, at_once, *jobs = sys.argv[1:]
    waiting = [json.loads(job) for job in jobs]
    logging.disable(logging.CRITICAL)
    # Only what is imported now reports which way it goes.
    with atheris.instrument_imports(include=["pyspark_nsq"]):
        targets: dict[str, Any] = import_module(module).TARGETS
    running: dict[int, tuple[str, float]] = {}
    while waiting or running:
        while waiting and len(running) < int(at_once):
            name, output, *arguments = waiting.pop(0)
            running[_start(targets[name], output, arguments)] = name, time.monotonic()
        pid, status = os.wait()
        name, began = running.pop(pid)
        print(name, os.waitstatus_to_exitcode(status), time.monotonic() - began, flush=True)


def _start(target: Any, output: str, arguments: list[str]) -> int:
    pid = os.fork()
    if pid == 0:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        _fuzz(target, arguments)
    return pid


def _fuzz(target: Any, arguments: list[str]) -> NoReturn:
    for seed in target.seeds:
        # What is loaded and cached the first time does not count. What fails here fails again below.
        with suppress(Exception):
            target.run(seed)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + _MEMORY_MAX, taken + _MEMORY_MAX))
    atheris.Setup([f"fuzz {target.name}", *arguments], target.check)
    atheris.Fuzz()
    os._exit(0)


if __name__ == "__main__":
    main()
