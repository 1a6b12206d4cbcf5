"""A Kafka broker of one node, and Spark's connector for it, to measure beside ours.

Their jars come from Maven's central repository, once, and are kept in the user's cache.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KAFKA = "3.9.2"
# The newest that the repository has of each; they work with the pinned Spark.
CONNECTOR, TOKEN_PROVIDER = "4.2.0", "4.0.0"
SCALA = "2.13"
_POOL = "2.13.1"
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
# One for each of the two cores.
_PARTITIONS = 2
_HEAP = "1g"
_CLUSTER_ID = "cHlzcGFyay1uc3FiZW5jaA"
_DOWNLOAD_TIMEOUT_S = 600
_START_TIMEOUT_S = 60


class KafkaMissingError(Exception):
    """Kafka cannot be had here; the text says why."""


def jars() -> Path:
    """The folder with all jars; ``KafkaMissingError`` where Maven cannot get them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pyspark-nsq"
    folder = cache / f"kafka-{KAFKA}-{CONNECTOR}"
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaMissingError("Maven, which would fetch it, is not installed (Debian: apt-get install maven)")
    print(f"Fetching Kafka {KAFKA} (once)", flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as name:
        work = Path(name)
        (work / "pom.xml").write_text(_pom())
        command = [maven, "-B", "-q", f"{_PLUGIN}:copy-dependencies", f"-DoutputDirectory={work / 'jars'}"]
        try:
            ran = subprocess.run(
                command, cwd=work, check=False, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise KafkaMissingError(f"Maven did not get it within {_DOWNLOAD_TIMEOUT_S} s") from None
        if ran.returncode != 0:
            reason = next((line for line in ran.stdout.splitlines() if "[ERROR]" in line), ran.stdout[-500:])
            raise KafkaMissingError(f"Maven did not get it: {reason}")
        (work / "jars").rename(folder)
    return folder


def _pom() -> str:
    """What Maven is to fetch. Of Spark's own modules only what Spark does not have already."""
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    wanted = [
        ("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA}", CONNECTOR, alone),
        ("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA}", TOKEN_PROVIDER, alone),
        ("org.apache.commons", "commons-pool2", _POOL, ""),
        ("org.apache.kafka", f"kafka_{SCALA}", KAFKA, ""),
    ]
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version>{exclusions}</dependency>"
        for group, artifact, version, exclusions in wanted
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>kafka</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )


def spark_settings(folder: Path) -> dict[str, str]:
    """What a Spark session needs to know the format ``kafka``."""
    names = (f"kafka-clients-{KAFKA}", "commons-pool2-*", "spark-*")
    return {"spark.jars": ",".join(str(path) for name in names for path in sorted(folder.glob(f"{name}.jar")))}


class Kafka:
    """A broker with default settings, on ports and in a folder of its own until it is closed."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="bench-kafka-"))
        self._java = ["java", f"-Xms{_HEAP}", f"-Xmx{_HEAP}", "-cp", f"{folder}/*"]
        port, controller_port = _free_ports()
        self.address = f"127.0.0.1:{port}"
        self._topics = 0
        settings = self._folder / "server.properties"
        settings.write_text(_settings(port, controller_port, self._folder / "data"))
        self._log = (self._folder / "log").open("wb")
        subprocess.run(
            [*self._java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", settings],
            stdout=self._log,
            stderr=self._log,
            check=True,
        )
        self._process = subprocess.Popen(
            [*self._java, "kafka.Kafka", settings], stdout=self._log, stderr=self._log, cwd=self._folder
        )
        self._wait_until_it_listens(port)

    def _wait_until_it_listens(self, port: int) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.05)
        said = (self._folder / "log").read_text(errors="replace")[-2000:]
        self.close()
        raise SystemExit(f"Kafka did not start:\n{said}")

    @property
    def options(self) -> dict[str, str]:
        """Where it is, for Spark's source and sink."""
        return {"kafka.bootstrap.servers": self.address}

    def new_topic(self) -> str:
        """A name that nobody has used; the topic comes with the first message."""
        self._topics += 1
        return f"bench-{self._topics}"

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _settings(port: int, controller_port: int, data: Path) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "log.dirs": data,
        "num.partitions": _PARTITIONS,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


@contextmanager
def kafka_if_possible() -> Iterator[tuple[Kafka | None, dict[str, str]]]:
    """A running broker and what Spark needs for it; without it where it cannot be had, and the reason is told."""
    try:
        folder = jars()
    except KafkaMissingError as reason:
        print(f"Without Kafka: {reason}", flush=True)
        yield None, {}
        return
    kafka = Kafka(folder)
    try:
        yield kafka, spark_settings(folder)
    finally:
        kafka.close()
