"""The container image: what is in it, how it is set up, and how it ends."""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

pytestmark = pytest.mark.container

PORTS = ("LOOKUPD_HTTP_PORT", "NSQD_TCP_PORT", "NSQD_HTTP_PORT", "JUPYTER_PORT")
DAEMONS = ("nsqlookupd", "nsqd-1", "nsqd-2")
ABSENT = ("pyspark", "pyarrow", "grpc", "pandas", "py4j", "pip")
# What the broker and its dependencies may add to the base image.
ADDED_SIZE_MAX = 120 * 2**20


def wait_until(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.2)


def is_healthy(podman: Any, container: str) -> bool:
    """By the image's own command, run as the engine would run it."""
    test = json.loads(podman("image", "inspect", "pyspark-nsq", "--format", "{{json .Config.Healthcheck}}").stdout)[
        "Test"
    ]
    assert test[0] == "CMD"
    return bool(podman("exec", container, *test[1:], check=False).returncode == 0)


def exit_code(podman: Any, container: str) -> int:
    return int(podman("inspect", container, "--format", "{{.State.ExitCode}}").stdout)


def test_it_is_small_and_has_no_spark(podman: Any, image: str) -> None:
    sizes = [
        int(podman("image", "inspect", name, "--format", "{{.Size}}").stdout) for name in (image, "python:3.11-slim")
    ]
    assert sizes[0] - sizes[1] < ADDED_SIZE_MAX
    script = f"import importlib.util as u; print([name for name in {ABSENT!r} if u.find_spec(name)])"
    assert podman.output(image, "python", "-c", script) == "[]"


def test_it_does_not_run_as_root(podman: Any, image: str) -> None:
    assert podman.output(image, "id", "-u") == "10001"
    assert podman.output(image, "stat", "-c", "%u", "/data") == "10001"


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd", "nsq"])
def test_one_image_has_all_programs(podman: Any, image: str, program: str) -> None:
    assert program in podman.output(image, program, "--version")


def test_flags_need_no_program(podman: Any, image: str) -> None:
    assert podman.output(image, "--version").startswith("nsqd v")


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("NSQD_MEM_QUEUE_SIZ=1", "--mem-queue-siz, a flag that nsqd does not have"),
        ("NSQD_MEM_QUEUE_SIZE=many", "mem-queue-size"),
    ],
)
def test_a_wrong_variable_is_told(podman: Any, image: str, variable: str, text: str) -> None:
    ran = podman("run", "--rm", "--no-healthcheck", "--network", "none", "--env", variable, image, check=False)
    assert ran.returncode != 0
    assert text in ran.stderr


def test_messages_outlive_the_container(podman: Any, image: str) -> None:
    """On a root that cannot be written, without any capability."""
    safe = (
        "--read-only",
        "--cap-drop=all",
        "--volume",
        f"{podman.network}-data:/data",
        "--env",
        "NSQD_MEM_QUEUE_SIZE=5",
    )
    podman.start("first", *safe, image, "nsqd")
    wait_until(lambda: is_healthy(podman, "first"), "nsqd answers")
    here = ("-d", "127.0.0.1:4150")
    podman("exec", "--interactive", "first", "nsq", "pub", "orders", *here, stdin="one\ntwo\nthree\n")
    script = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:4151/config/mem_queue_size').read())"
    assert podman("exec", "first", "python", "-c", script).stdout == "b'5'\n"
    podman("stop", "--time", "20", "first")
    assert exit_code(podman, "first") == 0

    podman.start("second", *safe, image, "nsqd")
    wait_until(lambda: is_healthy(podman, "second"), "nsqd answers")
    read = podman("exec", "second", "nsq", "tail", "orders", "-c", "c", "-n", "3", "-t", "30s", *here)
    assert sorted(read.stdout.split()) == ["one", "three", "two"]
    podman("stop", "--time", "20", "second")


def test_a_daemon_that_does_not_answer_is_not_healthy(podman: Any, image: str) -> None:
    podman.start("nobody", image, "sleep", "1000")
    assert not is_healthy(podman, "nobody")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def composed(podman: Any, file: Path, *services: str) -> Iterator[dict[str, str]]:
    """These services of compose.yaml: where they are on this machine."""
    ports = {name: str(free_port()) for name in PORTS}
    podman.compose(file, podman.network, "up", "--detach", "--no-build", *services, **ports)
    yield ports
    podman.compose(file, podman.network, "down", "--volumes", **ports)


@pytest.fixture
def cluster(podman: Any, image: str, root: Path) -> Iterator[dict[str, str]]:
    with composed(podman, root / "compose.yaml", *DAEMONS) as ports:
        yield ports


def test_the_composed_cluster_works(podman: Any, image: str, cluster: dict[str, str], root: Path) -> None:
    containers = [f"{podman.network}_{name}_1" for name in DAEMONS]
    wait_until(lambda: all(is_healthy(podman, name) for name in containers), "all answer")
    services = yaml.safe_load((root / "compose.yaml").read_text())["services"]
    assert sorted(services) == sorted([*DAEMONS, "jupyter"])
    # What the tests build themselves, and no service pulls.
    assert [services[name]["build"] for name in DAEMONS] == ["."] * len(DAEMONS)
    assert services["jupyter"]["build"] == {"context": ".", "target": "notebooks"}
    place = services["jupyter"]["environment"]["NSQ_LOOKUPD_HTTP_ADDRESSES"]
    network = f"{podman.network}_default"
    inside = ("run", "--rm", "--no-healthcheck", "--network", network, "--env", f"NSQ_LOOKUPD_HTTP_ADDRESSES={place}")

    def nsqds() -> list[str]:
        told = json.loads(podman(*inside, image, "nsq", "stat", "--json", "--once").stdout)
        return list(told["nsqds"])

    wait_until(lambda: nsqds() == ["http://nsqd-1:4151", "http://nsqd-2:4151"], "both nsqds are found")
    podman(*inside, image, "nsq", "pub", "orders", "-m", "hello")
    read = podman(*inside, image, "nsq", "tail", "orders", "-c", "c", "-n", "1", "-t", "30s")
    assert read.stdout == "hello\n"
    for port in (cluster["LOOKUPD_HTTP_PORT"], cluster["NSQD_HTTP_PORT"]):
        with urlopen(f"http://127.0.0.1:{port}/ping", timeout=30) as answer:
            assert answer.read() == b"OK"
    podman("stop", "--time", "20", *containers)
    assert {name: exit_code(podman, name) for name in containers} == dict.fromkeys(containers, 0)


@pytest.mark.skipif(
    os.environ.get("NSQ_TEST_COMPILED_IMAGE") != "1",
    reason="to fetch a compiler and to use it takes minutes beside other tests: NSQ_TEST_COMPILED_IMAGE=1 asks for it",
)
@pytest.mark.timeout(1800)
def test_its_nsqd_can_be_compiled(podman: Any, image: str, root: Path) -> None:
    podman.build(root, f"{image}-compiled", "--build-arg", "COMPILED=true")
    assert podman.output(f"{image}-compiled", "nsqd", "--version").endswith("-compiled)")
    test_it_is_small_and_has_no_spark(podman, f"{image}-compiled")


@pytest.mark.skipif(
    os.environ.get("NSQ_TEST_NOTEBOOKS_IMAGE") != "1",
    reason="Spark's image takes minutes to build, and 2 GB: NSQ_TEST_NOTEBOOKS_IMAGE=1 asks for it",
)
@pytest.mark.timeout(1800)
def test_the_notebooks_run_in_the_composed_cluster(podman: Any, image: str, root: Path) -> None:
    podman.build(root, f"{image}-notebooks", "--target", "notebooks")
    with composed(podman, root / "compose.yaml", *DAEMONS, "jupyter") as ports:
        jupyter = f"{podman.network}_jupyter_1"
        wait_until(lambda: "/lab?token=" in podman("logs", jupyter).stderr, "JupyterLab has started")
        with urlopen(f"http://127.0.0.1:{ports['JUPYTER_PORT']}/login", timeout=30) as answer:
            assert answer.status == 200
        names = podman("exec", jupyter, "ls").stdout.split()
        assert sorted(names) == sorted(path.name for path in (root / "notebooks").iterdir())
        for name in (name for name in names if name.endswith(".ipynb")):
            podman("exec", jupyter, "jupyter", "nbconvert", "--to", "notebook", "--execute", "--stdout", name)
        podman("stop", "--time", "20", jupyter)
        assert exit_code(podman, jupyter) == 0
