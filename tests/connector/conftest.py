"""Fixtures of the connector's tests."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_http import Answers, FakeLookupd
from receiver_hosts import Host
from scripted_nsqd import Certificates, Script, ScriptedNsqd


@pytest.fixture
def start_peer() -> Iterator[Callable[..., ScriptedNsqd]]:
    """Starts scripted nsqds; a script that fails, fails the test."""
    started: list[ScriptedNsqd] = []

    def start(*scripts: Script) -> ScriptedNsqd:
        started.append(ScriptedNsqd(scripts))
        return started[-1]

    yield start
    for peer in started:
        peer.close()
    assert not [failure for peer in started for failure in peer.failures]


@pytest.fixture
def start_lookupd() -> Iterator[Callable[[Answers], FakeLookupd]]:
    """Starts servers that answer as told."""
    started: list[FakeLookupd] = []

    def start(answers: Answers) -> FakeLookupd:
        started.append(FakeLookupd(answers))
        return started[-1]

    yield start
    for lookupd in started:
        lookupd.close()


@pytest.fixture
def host() -> Iterator[Host]:
    """A receiver that is not the coordinator's child."""
    started = Host()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Files with certificates, made for this run."""
    return Certificates(tmp_path_factory.mktemp("certificates"))
