"""Spark in a process of its own, as seen from the one that breaks things: queries are ordered there, and looked at."""

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark
from rig.processes import command_of, is_alive, kill

from faults.held_source import PLANNER_NOTE
from faults.queries import SIGN, Order
from pyspark_nsq.connector.executors import started_at

# Slots are no cores: tasks that are held need one each.
LOCAL = "local[24,4]"
CLUSTER = "local-cluster[2,12,1024]"

# Far more than it takes where the machine has nothing else to do.
_START_S = 300.0
_ANSWER_S = 300.0
_GONE_S = 60.0
_RECEIVER = "pyspark_nsq.connector.receiver"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_WORKER = "pyspark.daemon"


class DriverError(AssertionError):
    """Spark did not do what it was told."""


def _submit_arguments(java_options: str) -> dict[str, str]:
    """Not for every JVM: the one that works out Spark's command line has a small heap."""
    return {"PYSPARK_SUBMIT_ARGS": f"--driver-java-options '{java_options}' pyspark-shell"} if java_options else {}


class Driver:
    """``start`` and the other commands fail with ``DriverError`` once the JVM is gone."""

    def __init__(self, master: str, folder: Path, java_options: str = "") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"driver-{len(list(folder.glob('driver-*.log')))}.log"
        integration = str(Path(__file__).resolve().parents[1])
        # Where Spark leaves its warehouse.
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "faults.queries", master],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": integration, **_submit_arguments(java_options)},
            )
        # Not only its id, which somebody else may have once it has ended.
        self._root = psutil.Process(self._process.pid)
        self._application = "none"
        self._orphans: list[psutil.Process] = []
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self._application = self._answer(_START_S)["application"]
        except BaseException:
            self.end()
            raise

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            _, sign, answer = line.partition(SIGN)
            if sign:
                self._answers.put(json.loads(answer))
        self._answers.put(None)

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise DriverError(f"no answer within {timeout_s:g} s, see {self.log}") from None
        if answer is None:
            self._answers.put(None)
            raise DriverError(f"Spark has ended, see {self.log}")
        if "error" in answer:
            raise DriverError(answer["error"])
        return answer

    def _command(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise DriverError(f"Spark has ended, see {self.log}") from None
        return self._answer(_ANSWER_S)

    def start(self, order: Order) -> None:
        self._command(do="start", order=order)

    def stop(self, name: str) -> None:
        self._command(do="stop", name=name)

    def failures(self) -> dict[str, str]:
        """Every query that was started, with the reason why it does not run."""
        return self._command(do="look")

    # Its processes.

    def is_alive(self) -> bool:
        return self._process.poll() is None and self.jvm() is not None

    def descendants(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def python(self) -> psutil.Process | None:
        """The program that was started, whose child the JVM is."""
        return next(iter(self.descendants()), None)

    def jvm(self) -> psutil.Process | None:
        return next((process for process in self.descendants() if _has_word(process, "SparkSubmit")), None)

    def executors(self) -> list[psutil.Process]:
        return [process for process in self.descendants() if _has_word(process, _EXECUTOR)]

    def workers(self) -> list[psutil.Process]:
        """The processes that run Python tasks, but not the ones that start them."""
        daemons = [process for process in self.descendants() if _has_word(process, _WORKER)]
        pids = {process.pid for process in daemons}
        return [process for process in daemons if _parent(process) in pids]

    @staticmethod
    def planner(order: Order) -> psutil.Process | None:
        """The stream reader's process of a query."""
        pid, _, started = order.gates.noted(PLANNER_NOTE).partition(" ")
        if not pid or str(started_at(int(pid))) != started:
            return None
        try:
            return psutil.Process(int(pid))
        except psutil.NoSuchProcess:
            return None

    def receivers(self, order: Order) -> list[psutil.Process]:
        planner = self.planner(order)
        try:
            return [each for each in planner.children() if _has_word(each, _RECEIVER)] if planner else []
        except psutil.NoSuchProcess:
            return []

    def end(self) -> None:
        """End Spark as it is, and whatever it has started and left."""
        left = self.descendants()
        if self._process.poll() is None and self._process.stdin:
            with suppress(OSError):
                self._process.stdin.close()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self.bury(left)

    def kill(self) -> None:
        """Kill the JVM; what belongs to it has to notice."""
        left = self.descendants()
        if jvm := self.jvm():
            kill(jvm)
        # This is nobody's victim: without its JVM it can only complain.
        self._process.kill()
        self._process.wait()
        self._orphans = left

    def check_left_behind(self) -> None:
        """After ``kill``: all that the JVM had started ends by itself, and soon."""
        _, alive = psutil.wait_procs(self._orphans, timeout=_GONE_S)
        names = [command for process in alive if is_alive(process) and (command := command_of(process)[:200])]
        self.bury(alive)
        assert not names, f"the driver's death left behind: {names}"

    def bury(self, processes: Iterable[psutil.Process]) -> None:
        self._process.wait()
        _, alive = psutil.wait_procs(list(processes), timeout=10)
        for process in alive:
            kill(process)
        # Where a cluster keeps its executors' files cannot be chosen.
        shutil.rmtree(Path(pyspark.__file__).parent / "work" / self._application, ignore_errors=True)


def _has_word(process: psutil.Process, word: str) -> bool:
    return word in command_of(process)


def _parent(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return 0
