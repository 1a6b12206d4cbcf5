"""Spark's standalone master, workers and drivers, as processes; what receivers they leave; and how they are cut off."""

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark

from rig.daemons import wait_until

SPARK_HOME = Path(pyspark.__file__).parent
SPARK_CLASS = SPARK_HOME / "bin" / "spark-class"
DRIVER = Path(__file__).parents[1] / "executors" / "driver.py"
RECEIVER = "pyspark_nsq.connector.executor_receiver"
_START_S = 200.0
_GONE_S = 30.0


class SparkProcess:
    """A master or a worker. Its folder for temporary files makes it a host of its own."""

    def __init__(self, folder: Path, host: str, ready: str, *arguments: str, prefix: Sequence[str] = ()) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.log = folder / "log"
        variables = {
            **os.environ,
            "TMPDIR": str(self.temporary),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*prefix, str(SPARK_CLASS), *arguments], env=variables, stdout=log, stderr=log, start_new_session=True
            )
        self._ready = re.compile(ready)

    def wait_ready(self) -> str:
        def look() -> str | None:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            match = self._ready.search(self.log.read_text())
            return match[1] if match else None

        found: str = wait_until(look, f"a sign of life in {self.log}", _START_S)
        return found

    def kill(self) -> None:
        """Without a warning; a worker's executors notice."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Cluster:
    """A master, and workers of one core each at the addresses given."""

    def __init__(self, folder: Path, host: str, workers: Mapping[str, Sequence[str]]) -> None:
        self.folder = folder
        master = "org.apache.spark.deploy.master.Master"
        flags = ["--host", host, "--port", "0", "--webui-port", "0"]
        self.master = SparkProcess(folder / "master", host, r"Starting Spark master at (spark://\S+)", master, *flags)
        self.url = self.master.wait_ready()
        self.workers = {
            address: SparkProcess(folder / address, address, *self._worker(folder / address, address), prefix=prefix)
            for address, prefix in workers.items()
        }
        for worker in self.workers.values():
            worker.wait_ready()

    def _worker(self, folder: Path, address: str) -> list[str]:
        flags = ["--host", address, "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(folder)]
        ready = r"(Successfully registered with master)"
        return [ready, "org.apache.spark.deploy.worker.Worker", *flags, self.url]

    @property
    def applications(self) -> list[psutil.Process]:
        """What runs on the workers beside them: executors, their Pythons, receivers."""
        own = {worker.process.pid for worker in self.workers.values()}
        found = [process for worker in self.workers.values() for process in _processes(worker.temporary, "")]
        return [process for process in found if process.pid not in own]

    def kill(self) -> None:
        for process in (*self.workers.values(), self.master):
            process.kill()


class Driver:
    """A Spark application, told what to do."""

    def __init__(
        self,
        master: str,
        folder: Path,
        settings: Mapping[str, str],
        host: str = "127.0.0.1",
        home: Path | None = None,
    ) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.log = folder / "log"
        places = {"spark.driver.host": host, "spark.driver.bindAddress": host}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(DRIVER), master, json.dumps({**places, **settings})],
                env=os.environ | _local(host, self.temporary, home) | {"PYTHONPATH": str(DRIVER.parents[1])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._answer() == "ready", self.log.read_text()[-3000:]

    def _answer(self) -> Any:
        assert self.process.stdout
        # A test that waits for ever would be ended without a word.
        watch = threading.Timer(240, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        assert line, f"the driver is dead or hangs:\n{self.log.read_text()[-3000:]}"
        return json.loads(line)

    def call(self, method: str, **arguments: Any) -> Any:
        assert self.process.stdin
        self.process.stdin.write(json.dumps([method, arguments]) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        assert "error" not in answer, answer["error"]
        return answer["answer"]

    def start(self, query: str, *, available_now: bool = False, **options: Any) -> "Query":
        return Query(self, query, options, available_now)

    def kill(self) -> None:
        """All of it at once, without a warning: Python, Spark and the source's planner."""
        if self.process.poll() is None:
            process = psutil.Process(self.process.pid)
            for each in (process, *process.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        self.process.wait()

    def stop(self) -> None:
        """Let it end in order."""
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(60)
        finally:
            self.kill()


def _local(host: str, temporary: Path, home: Path | None) -> dict[str, str]:
    """The variables of a driver. In a home of its own a local cluster has its executors' files there."""
    found = {"SPARK_LOCAL_IP": host, "TMPDIR": str(temporary)}
    if home:
        for name in ("bin", "jars", "python"):
            if (SPARK_HOME / name).exists():
                (home / name).symlink_to(SPARK_HOME / name)
        found["SPARK_HOME"] = str(home)
    return found


class Query:
    def __init__(self, driver: Driver, name: str, options: Mapping[str, Any], available_now: bool) -> None:
        self._driver = driver
        self._name = name
        self.checkpoint = driver.folder / name
        self.gate = driver.folder / f"{name}-gate"
        places = {"checkpoint": str(self.checkpoint), "gate": str(self.gate)}
        driver.call("start", query=name, options=options, available_now=available_now, **places)

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self._driver.call("state", query=self._name)
        assert not found["failure"], found["failure"] + self._driver.log.read_text()[-3000:]
        return found

    def bodies(self) -> Counter[bytes]:
        return Counter(body.encode() for batch in self.state()["batches"] for body in batch)

    def has(self, wanted: Counter[bytes]) -> bool:
        """Whether each of these has come at least once."""
        return wanted.keys() <= self.bodies().keys()

    def wait_for(self, wanted: Counter[bytes]) -> Counter[bytes]:
        wait_until(lambda: self.has(wanted), f"{len(wanted)} different messages")
        return self.bodies()

    def wait_ended(self) -> None:
        """Until it has come to its end by itself."""
        wait_until(lambda: not self.state()["active"], "the query's end")

    def stop(self) -> None:
        self._driver.call("stop", query=self._name)


def receivers(folder: Path) -> list[psutil.Process]:
    """The receivers that were started on executors whose temporary files are below this folder."""
    return _processes(folder, RECEIVER)


def executors(folder: Path) -> list[psutil.Process]:
    return _processes(folder, "CoarseGrainedExecutorBackend")


def python_workers(folder: Path) -> list[psutil.Process]:
    """The processes in which executors run Python, and those that fork them."""
    return _processes(folder, "pyspark.daemon")


def _processes(folder: Path, part: str) -> list[psutil.Process]:
    """Those with such a word in their command, whose temporary files are below this folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_meant = any(part in word for word in process.cmdline())
            if is_meant and process.environ().get("TMPDIR", "").startswith(str(folder)):
                found.append(process)
    return found


def wait_nothing_left(folder: Path) -> None:
    """No receiver, and no file of one."""
    wait_until(lambda: not receivers(folder), f"the end of all receivers below {folder}", _GONE_S)
    assert not list(folder.rglob("pyspark-nsq-*"))
