"""Fixtures of the integration tests: brokers of both makes, and one Spark session for all."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parent))

from rig.daemons import Daemon, Implementation, Lookupd, Nsqd, own_brokers
from rig.security import AuthServer, Certificates

StartNsqd = Callable[..., Nsqd]
StartLookupd = Callable[..., Lookupd]


def go_implementation() -> Implementation:
    """Go's brokers; without them the test is skipped, or fails where ``NSQ_REQUIRE_GO=1``."""
    if named := os.environ.get("NSQ_GO_BIN"):
        return Implementation("go", Path(named).absolute())
    if os.environ.get("NSQ_REQUIRE_GO") == "1":
        pytest.fail("NSQ_REQUIRE_GO=1 but NSQ_GO_BIN names no folder with Go's nsqd")
    pytest.skip("set NSQ_GO_BIN to a folder with Go's nsqd and nsqlookupd v1.3.0")


@pytest.fixture(scope="session")
def find_go() -> Callable[[], Implementation]:
    """For tests that learn late whose brokers they need."""
    return go_implementation


@pytest.fixture(scope="session", params=["go", "ours"], ids=["on-go", "on-ours"])
def impl(request: pytest.FixtureRequest) -> Implementation:
    """Whose brokers the test runs against: it runs once against each."""
    return own_brokers() if request.param == "ours" else go_implementation()


@pytest.fixture(scope="session")
def makes() -> list[Implementation]:
    """Both at once, for tests whose cluster takes too long to start for one run against each."""
    return [own_brokers(), go_implementation()]


@pytest.fixture
def daemons() -> Iterator[list[Daemon]]:
    """Every daemon that a test started; they end with the test."""
    started: list[Daemon] = []
    yield started
    for daemon in reversed(started):
        daemon.kill()


@pytest.fixture
def start_lookupd(impl: Implementation, daemons: list[Daemon]) -> StartLookupd:
    """Starts a lookupd for the test."""

    def start(*flags: str) -> Lookupd:
        lookupd = Lookupd(impl, flags)
        daemons.append(lookupd)
        return lookupd

    return start


@pytest.fixture
def start_nsqd(impl: Implementation, daemons: list[Daemon], tmp_path: Path) -> StartNsqd:
    """Starts an nsqd for the test, with a data path of its own, known to the lookupds given."""

    def start(*flags: str, lookupds: tuple[Lookupd, ...] = ()) -> Nsqd:
        nsqd = Nsqd(impl, tmp_path / f"nsqd-{len(daemons)}", lookupds, flags)
        daemons.append(nsqd)
        return nsqd

    return start


@pytest.fixture
def nsqd(start_nsqd: StartNsqd) -> Nsqd:
    """An nsqd with default settings."""
    return start_nsqd()


@pytest.fixture(scope="session")
def shared_nsqd(impl: Implementation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that tests share which neither stop it nor count its connections: topics are theirs."""
    nsqd = Nsqd(impl, tmp_path_factory.mktemp("shared-nsqd"))
    yield nsqd
    nsqd.stop()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of this run."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def auth_server(request: pytest.FixtureRequest) -> Iterator[AuthServer]:
    """It knows the module's ``SECRET``."""
    with AuthServer(request.module.SECRET) as server:
        yield server


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    return f"t{abs(hash(request.node.nodeid)) % 10**15}"


@pytest.fixture(scope="session")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Python's processes of that Spark keep temporary files."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="session")
def spark(temporary: Path) -> Iterator[SparkSession]:
    """One local Spark for all tests; workers run this interpreter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        session = make_session("local[2]")
    yield session
    session.stop()


def make_session(master: str, **settings: str) -> SparkSession:
    """A quiet Spark on loopback."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.Builder().master(master).appName("integration")
    quiet = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stopTimeout": "30s",
    }
    for key, value in {**quiet, **settings}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
