"""The image, really built, with a store of images and networks of its own that is gone afterwards."""

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

NEEDED = ("podman", "runc", "mmdebstrap", "iptables")
# Explicit limits: podman's defaults need a capability that a container on a build machine may not have.
CONFIGURATION = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=8192:8192"]
[engine]
runtime = "runc"
[network]
network_backend = "netavark"
"""
# Where podman's name server notes its process id, for all stores of a machine.
RESOLVER = Path("/run/containers/networks/aardvark-dns/aardvark.pid")


class Podman:
    """podman with a store in one folder, and the names of what it has started."""

    def __init__(self, store: Path) -> None:
        self._store = store
        configuration = store / "containers.conf"
        configuration.write_text(CONFIGURATION)
        self._variables = os.environ | {"CONTAINERS_CONF": str(configuration), "LC_ALL": "C"}
        # podman-compose takes the name of one program, without arguments.
        self._program = store / "podman"
        self._program.write_text(f'#!/bin/sh\nexec podman --root {store}/root --runroot {store}/run "$@"\n')
        self._program.chmod(0o755)
        self.network = f"nsq{uuid.uuid4().hex[:8]}"

    def __call__(self, *arguments: str | Path, check: bool = True, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return self._run([self._program, *arguments], {}, check, stdin)

    def compose(self, file: Path, project: str, *arguments: str, **variables: str) -> None:
        """What ``docker compose`` does, for the services of this file."""
        program = Path(sys.executable).with_name("podman-compose")
        place = ["--podman-path", self._program, "--file", file, "--project-name", project]
        self._run([program, *place, *arguments], variables)

    def _run(
        self, command: Sequence[str | Path], variables: Mapping[str, str], check: bool = True, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(command, env={**self._variables, **variables}, input=stdin, capture_output=True, text=True)
        assert ran.returncode == 0 or not check, f"{command}:\n{ran.stdout}{ran.stderr}"
        return ran

    def start(self, name: str, *arguments: str) -> None:
        self("run", "--detach", "--no-healthcheck", "--name", name, "--network", self.network, *arguments)

    def build(self, root: Path, tag: str, *options: str) -> None:
        """An image from the Dockerfile."""
        self("build", "--isolation", "chroot", "--pull=never", "--format", "docker", *options, "--tag", tag, root)

    def output(self, *arguments: str) -> str:
        """What a command prints in a fresh container of the image."""
        return self("run", "--rm", "--no-healthcheck", "--network", "none", *arguments).stdout.strip()

    def tidy(self) -> None:
        self("rm", "--force", "--all", "--time", "3", check=False)
        self("network", "rm", "--force", self.network, check=False)
        subprocess.run(["umount", self._store / "root" / "overlay"], capture_output=True)
        shutil.rmtree(self._store, ignore_errors=True)


def cannot(reason: str) -> None:
    """Skip, or fail where somebody counts on these tests."""
    if os.environ.get("NSQ_REQUIRE_CONTAINER") == "1":
        pytest.fail(f"NSQ_REQUIRE_CONTAINER=1, but {reason}")
    pytest.skip(f"no image can be built here: {reason}")


def forget_dead_resolver() -> None:
    """One that was killed, as by whoever interrupted a run, leaves its note. Podman would take whoever has that process
    id by now for it, and send a signal: a thread's is enough, and ends Spark's Java."""
    with suppress(FileNotFoundError):
        pid = RESOLVER.read_text().strip()
        is_alive = False
        with suppress(OSError):
            is_alive = Path(f"/proc/{pid}/comm").read_text() == "aardvark-dns\n"
        if not is_alive:
            RESOLVER.unlink()


@pytest.fixture(scope="session")
def podman(root: Path) -> Iterator[Podman]:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        packages = "podman runc netavark aardvark-dns iptables mmdebstrap"
        cannot(f"{' and '.join(missing)} not found (Debian: apt-get install {packages})")
    if os.geteuid() != 0:
        cannot("it takes root to make the base image")
    base = subprocess.run([root / "tools" / "container-base"], capture_output=True, text=True)
    if base.returncode != 0:
        cannot(f"the base image could not be made:\n{base.stderr}")
    forget_dead_resolver()
    podman = Podman(Path(tempfile.mkdtemp(prefix="nsq-container-", dir="/var/tmp")))
    try:
        podman("import", "--quiet", base.stdout.strip(), "python:3.11-slim")
        podman("network", "create", "--internal", podman.network)
        yield podman
    finally:
        podman.tidy()


@pytest.fixture(scope="session")
def image(podman: Podman, root: Path) -> str:
    """The image of the broker."""
    podman.build(root, "pyspark-nsq")
    return "pyspark-nsq"
