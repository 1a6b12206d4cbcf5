"""What the tests of the broker share."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

from simulation.certificates import Certificates
from simulation.session_world import World

from pyspark_nsq.broker.nsqd_options import NsqdOptions


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, NsqdOptions())
    yield world
    world.engine.close(world.now)


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(**options: object) -> World:
        made.append(World(tmp_path, NsqdOptions(**options)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for world in made:
        world.engine.close(world.now)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates")
    return Certificates(tmp_path_factory.mktemp("certificates"))
