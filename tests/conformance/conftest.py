"""The black-box suite: every test runs against Go's nsqd v1.3.0 and against ours, as it is and compiled, over sockets
only."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from blackbox.certs import Certificates
from blackbox.daemons import Daemon, Implementation, Nsqd, Nsqlookupd
from blackbox.fakes import FakeLookupd
from blackbox.wire import PATIENCE_SECONDS, Conn

StartNsqd = Callable[..., Nsqd]
StartLookupd = Callable[..., Nsqlookupd]
Connect = Callable[..., Conn]

RIPE_CHANNELS = 60


def pytest_configure(config: pytest.Config) -> None:
    """Name the marks of this folder."""
    config.addinivalue_line(
        "markers", "known_defect(number, strict=True): Go's nsqd fails this, as docs/broker.md tells"
    )
    config.addinivalue_line("markers", "waits_long: runs last, when what it waits for has nearly happened")
    config.addinivalue_line("markers", "only(name, why): the question exists for one implementation only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Expect Go's known defects, leave out what one implementation is not asked, and put long waits last."""
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        name = getattr(getattr(item, "callspec", None), "params", {}).get("impl")
        defect = item.get_closest_marker("known_defect")
        if defect and name == "go":
            item.add_marker(pytest.mark.xfail(reason=defect.args[0], strict=defect.kwargs.get("strict", True)))
        only = item.get_closest_marker("only")
        made_by = "ours" if name == "compiled" else name
        (left_out if only and made_by != only.args[0] else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = sorted(kept, key=lambda item: item.get_closest_marker("waits_long") is not None)


@pytest.fixture(scope="session", params=["go", "ours", "compiled"], ids=["on-go", "on-ours", "on-compiled"])
def impl(request: pytest.FixtureRequest) -> Implementation:
    """The implementation under test; ours is beside the Python that runs, or in the folder that NSQ_OURS_BIN names."""
    if request.param == "go":
        found: Implementation = request.getfixturevalue("go_nsqd")
        return found
    if request.param == "compiled":
        return Implementation("ours", request.getfixturevalue("compiled_wheel") / "bin")
    return Implementation("ours", Path(os.environ.get("NSQ_OURS_BIN") or Path(sys.executable).parent))


@pytest.fixture(scope="session")
def go_nsqd(go_nsq: Path) -> Implementation:
    """Go's executables, for tests of ours that need them too."""
    return Implementation("go", go_nsq)


@pytest.fixture
def patience(impl: Implementation) -> float:
    """Seconds to wait for what Go's nsqd is known not to bring: there every one of them is in vain."""
    return 5 if impl.name == "go" else PATIENCE_SECONDS


@pytest.fixture
def data_path(tmp_path: Path) -> Path:
    """A data path of the test's own."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def _end(daemons: list[Daemon]) -> None:
    for daemon in daemons:
        daemon.stop()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of this run."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def nsqd(impl: Implementation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """A broker with default settings that tests share; topics are the tests' own."""
    daemon = Nsqd(impl, tmp_path_factory.mktemp("nsqd"), ripe=RIPE_CHANNELS)
    with _patient(impl, tmp_path_factory.mktemp("patient")) as (daemon.early_birds, daemon.directory):
        daemon.await_listening("TCP", "HTTP")
        yield daemon
    assert daemon.stop() == 0


@contextmanager
def _patient(impl: Implementation, folder: Path) -> Iterator[tuple[tuple[Conn, Conn], FakeLookupd]]:
    """What takes long by nature, begun early: a broker's first heartbeats after 30 s, its PINGs every 15 s."""
    with FakeLookupd() as directory:
        daemon = Nsqd(impl, folder, [f"--lookupd-tcp-address={directory.address}"])
        daemon.await_listening("TCP")
        with daemon.connect() as silent, daemon.connect() as producer:
            producer.publish("topic", b"body")
            yield (silent, producer), directory
        assert daemon.stop() == 0


@pytest.fixture
def ripe_topic(nsqd: Nsqd) -> str:
    """A topic of the shared broker whose channel "ch" has its deadlines looked after from the first moment."""
    return nsqd.take_ripe()


@pytest.fixture(scope="module")
def module_nsqd(impl: Implementation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartNsqd]:
    """Starts brokers with special flags that live as long as the module's tests."""
    started: list[Daemon] = []

    def start(*flags: str, ripe: int = 0) -> Nsqd:
        daemon = Nsqd(impl, tmp_path_factory.mktemp("nsqd"), flags, ripe=ripe)
        started.append(daemon)
        daemon.await_listening("TCP", "HTTP")
        return daemon

    yield start
    _end(started)


@pytest.fixture
def start_nsqd(impl: Implementation, data_path: Path) -> Iterator[StartNsqd]:
    """Starts brokers for one test, on its data path unless told otherwise."""
    started: list[Daemon] = []

    def start(*flags: str, folder: Path = data_path, listening: tuple[str, ...] = ("TCP", "HTTP")) -> Nsqd:
        daemon = Nsqd(impl, folder, flags)
        started.append(daemon)
        if listening:
            daemon.await_listening(*listening)
        return daemon

    yield start
    _end(started)


@pytest.fixture
def start_lookupd(impl: Implementation, tmp_path: Path) -> Iterator[StartLookupd]:
    """Starts directories for one test."""
    started: list[Daemon] = []

    def start(*flags: str, listening: tuple[str, ...] = ("TCP", "HTTP")) -> Nsqlookupd:
        daemon = Nsqlookupd(impl, tmp_path / "lookupd", flags)
        started.append(daemon)
        if listening:
            daemon.await_listening(*listening)
        return daemon

    yield start
    _end(started)


@pytest.fixture
def start_foreign(tmp_path: Path) -> Iterator[Callable[..., tuple[Nsqd, Nsqlookupd]]]:
    """Starts a broker of one implementation with a directory of the other."""
    started: list[Daemon] = []

    def start(broker: Implementation, directory: Implementation) -> tuple[Nsqd, Nsqlookupd]:
        lookupd = Nsqlookupd(directory, tmp_path / "lookupd", ["--broadcast-address=127.0.0.1"])
        started.append(lookupd)
        lookupd.await_listening("TCP", "HTTP")
        daemon = Nsqd(broker, tmp_path / "data", [f"--lookupd-tcp-address={lookupd.tcp_address}"])
        started.append(daemon)
        daemon.await_listening("TCP", "HTTP")
        return daemon, lookupd

    yield start
    _end(started)


@pytest.fixture
def connect(
    request: pytest.FixtureRequest,
    start_nsqd: StartNsqd,
    start_lookupd: StartLookupd,
    start_foreign: Callable[..., tuple[Nsqd, Nsqlookupd]],
) -> Iterator[Connect]:
    """Opens connections, to the shared broker unless told otherwise, and closes them before brokers are stopped."""
    opened: list[Conn] = []

    def open_one(daemon: Nsqd | Nsqlookupd | None = None, **options: bytes) -> Conn:
        target = daemon or request.getfixturevalue("nsqd")
        conn: Conn = target.connect(**options)
        opened.append(conn)
        return conn

    yield open_one
    for conn in opened:
        conn.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own: the shared broker is started once."""
    return f"t{abs(hash(request.node.nodeid)) % 10**15}"


@pytest.fixture
def run(connect: Connect) -> Callable[[str], str]:
    """Sends one command line on a new connection; the text of the error that ends it."""

    def send(line: str) -> str:
        conn = connect()
        conn.command(line)
        return conn.fatal()

    return send
