"""What arrives at somebody who installs the package: from the wheel, and from a checkout with ``pip install -e``.

Each environment is fresh and sees this one's third-party packages through a path file. A path file's folder is not
searched for further path files, so this environment's own editable install does not leak in.
"""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOMS = ("broker", "connector", "proto")
SPARK_SIDE = ("google", "grpc", "pandas", "pyarrow", "pyspark")
BROKER_SIDE = ("gevent",)

BLOCK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""
IMPORT_ALL = """
import importlib, json, pkgutil
loaded = []
for room in {rooms!r}:
    package = importlib.import_module(f"pyspark_nsq.{{room}}")
    for module in pkgutil.walk_packages(package.__path__, f"pyspark_nsq.{{room}}."):
        importlib.import_module(module.name)
        loaded.append(module.name)
print(json.dumps(loaded))
"""
LAUNCH = "import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"
HAS_SOURCE = """
import json, pyspark_nsq
assert pyspark_nsq.__version__
print(json.dumps(hasattr(pyspark_nsq, "DefaultSource")))
"""
SPARK_FINDS_NSQ = """
import json
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
reader = spark.readStream.format("nsq").option("topic", "t").option("channel", "c")
frame = reader.option("nsqdTcpAddresses", "127.0.0.1:1").load()
print(json.dumps(frame.schema.fieldNames()))
"""


@dataclass(frozen=True)
class Environment:
    """A fresh virtual environment."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def variables(self) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "SPARK_HOME"}}
        return ours | {"PYSPARK_PYTHON": str(self.python), "SPARK_LOCAL_IP": "127.0.0.1"}

    def answer(self, script: str, cwd: Path = Path("/")) -> object:
        """What a script prints as its last line, as JSON."""
        ran = subprocess.run([self.python, "-c", script], cwd=cwd, env=self.variables, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout.splitlines()[-1])


def run_quietly(*command: str | Path, cwd: Path) -> None:
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def environment(folder: Path, *what: str | Path) -> Environment:
    """A virtual environment with this project as its only package of its own."""
    venv.create(folder, symlinks=True)
    fresh = Environment(folder)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    paths = sysconfig.get_paths()
    (site / "third_party.pth").write_text(f"{paths['purelib']}\n{paths['platlib']}\n")
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", fresh.python, "--disable-pip-version-check"]
    run_quietly(*pip, "install", "--no-deps", "--no-index", "--no-build-isolation", *what, cwd=folder)
    return fresh


@pytest.fixture(scope="module")
def sdist(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run_quietly(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, root, cwd=folder)
    (path,) = folder.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """Built from the unpacked sdist, so that what the sdist lacks is missed."""
    (path,) = sdist.parent.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def from_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(tmp_path_factory.mktemp("wheel"), wheel)


@pytest.fixture(scope="module")
def editable(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(tmp_path_factory.mktemp("editable"), "-e", root)


@pytest.fixture(params=["from_wheel", "editable"])
def installed(request: pytest.FixtureRequest) -> Environment:
    found: Environment = request.getfixturevalue(request.param)
    return found


def code(root: Path) -> set[str]:
    """The package's files as an installed package names them."""
    package = root / "src" / "pyspark_nsq"
    files = {f"pyspark_nsq/{path.relative_to(package)}" for path in package.rglob("*.py")} | {"pyspark_nsq/py.typed"}
    for room in ROOMS:
        files |= {f"pyspark_nsq/{path.relative_to(root)}" for path in (root / room).rglob("*.py*")}
    return {name for name in files if not name.endswith(".pyc")}


def test_the_wheel_holds_the_code_and_nothing_else(root: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if name.endswith((".py", ".pyi", ".typed"))} == code(root)
    assert {name.split("/")[0] for name in names} == {
        "pyspark_nsq",
        wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info",
    }


def test_the_sdist_holds_code_and_licence_and_no_tests_that_could_not_run(root: Path, sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    rooms = {name.removeprefix("pyspark_nsq/") for name in code(root)}
    assert {name if name.startswith(ROOMS) else f"src/pyspark_nsq/{name}" for name in rooms} <= names
    assert {"LICENSE", "README.md", "pyproject.toml", "src/pyspark_nsq/__init__.py"} <= names
    assert not {name for name in names if name.startswith("tests")}


def test_sparks_lookup_sees_the_package_and_no_stray_room(installed: Environment) -> None:
    script = "import json, pkgutil; print(json.dumps([module.name for module in pkgutil.iter_modules()]))"
    names = installed.answer(script)
    assert isinstance(names, list)
    assert "pyspark_nsq" in names
    assert not set(ROOMS) & set(names)


def test_no_room_can_be_imported_by_its_bare_name(installed: Environment) -> None:
    script = f"import importlib.util as u, json; print(json.dumps([n for n in {ROOMS!r} if u.find_spec(n)]))"
    assert installed.answer(script) == []


def test_the_code_comes_from_the_installed_package(root: Path, from_wheel: Environment, editable: Environment) -> None:
    script = "import json, pyspark_nsq.proto; print(json.dumps(pyspark_nsq.proto.__file__))"
    for installed, place in ((from_wheel, from_wheel.folder), (editable, root)):
        answer = installed.answer(script)
        assert isinstance(answer, str)
        assert Path(answer).is_relative_to(place)


def test_spark_resolves_nsq_without_registration(installed: Environment, tmp_path: Path) -> None:
    names = installed.answer(SPARK_FINDS_NSQ, cwd=tmp_path)
    assert isinstance(names, list)
    assert {"body", "id", "attempts", "timestamp"} <= set(names)


@pytest.mark.parametrize("flags", [("nsqd", "--data-path=."), ("nsqlookupd",)], ids=["nsqd", "nsqlookupd"])
def test_the_daemons_start_and_stop(from_wheel: Environment, tmp_path: Path, flags: tuple[str, ...]) -> None:
    command: list[str | Path] = [from_wheel.folder / "bin" / flags[0], *flags[1:]]
    command += ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
    output = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=tmp_path, env=from_wheel.variables, stdout=output, stderr=subprocess.STDOUT
    ) as daemon:
        assert daemon.stdout is not None
        seen = []
        try:
            for line in daemon.stdout:
                seen.append(line)
                if b"TCP: listening on" in line:
                    break
            else:
                pytest.fail(f"ended without listening:\n{b''.join(seen).decode()}")
            daemon.send_signal(signal.SIGTERM)
            rest = daemon.stdout.read()
            assert daemon.wait() == 0, rest.decode()
        finally:
            daemon.kill()


def test_importing_the_package_imports_nothing_else(from_wheel: Environment) -> None:
    script = """
import sys, typing
before = set(sys.modules)
import pyspark_nsq
loaded = sorted(set(sys.modules) - before)
import json
print(json.dumps(loaded))
"""
    assert from_wheel.answer(script) == ["pyspark_nsq"]


@pytest.mark.parametrize("missing", [("pyspark",), SPARK_SIDE], ids=["pyspark", "all"])
def test_without_spark_there_is_no_source_and_no_error(from_wheel: Environment, missing: tuple[str, ...]) -> None:
    assert from_wheel.answer(BLOCK.format(names=set(missing)) + HAS_SOURCE) is False


@pytest.mark.parametrize("missing", ["grpc", "google", "numpy", "pyarrow", "cramjam"])
def test_no_missing_dependency_ends_sparks_lookup(from_wheel: Environment, missing: str) -> None:
    assert from_wheel.answer(BLOCK.format(names={missing}) + HAS_SOURCE) in {True, False}


def test_the_source_is_light_on_top_of_spark(from_wheel: Environment) -> None:
    """Spark asks for it in every session of the machine, whether or not that session uses NSQ."""
    script = """
import json, sys
import pyspark.sql.datasource, pyspark.sql.types
before = set(sys.modules)
import pyspark_nsq
assert pyspark_nsq.DefaultSource.name() == "nsq"
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""
    loaded = from_wheel.answer(script)
    assert isinstance(loaded, list)
    assert {name for name in loaded if name not in sys.stdlib_module_names} == {"pyspark_nsq"}


def test_the_broker_needs_nothing_of_spark(from_wheel: Environment) -> None:
    script = BLOCK.format(names=set(SPARK_SIDE)) + IMPORT_ALL.format(rooms=["broker"])
    loaded = from_wheel.answer(script)
    assert isinstance(loaded, list)
    assert "pyspark_nsq.broker.nsqd" in loaded


def test_the_connector_needs_no_gevent(from_wheel: Environment) -> None:
    script = BLOCK.format(names=set(BROKER_SIDE)) + IMPORT_ALL.format(rooms=["connector", "proto"])
    loaded = from_wheel.answer(script)
    assert isinstance(loaded, list)
    assert {"pyspark_nsq.connector.source", "pyspark_nsq.proto.frames"} <= set(loaded)


def test_the_nsq_command_needs_neither_half(from_wheel: Environment) -> None:
    """But for the live table, which needs rich, and for ``local_nsq``, which starts the broker as another process."""
    absent = {*SPARK_SIDE, *BROKER_SIDE, "rich"}
    script = BLOCK.format(names=absent) + IMPORT_ALL.format(rooms=["cli"]) + "import pyspark_nsq.testing"
    assert from_wheel.answer(script)
    command = [from_wheel.folder / "bin" / "nsq", "--version"]
    ran = subprocess.run(command, env=from_wheel.variables, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("nsq ")


def test_the_connector_brings_its_receiver(from_wheel: Environment) -> None:
    command = [from_wheel.folder / "bin" / "nsq-receiver", "--help"]
    ran = subprocess.run(command, env=from_wheel.variables, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("usage: nsq-receiver ")


@pytest.mark.parametrize(
    ("program", "missing", "extra"),
    [("nsqd", "gevent", "broker"), ("nsqlookupd", "gevent", "broker"), ("nsq-receiver", "grpc", "connector")],
)
def test_a_daemon_without_its_extra_names_it(from_wheel: Environment, program: str, missing: str, extra: str) -> None:
    script = BLOCK.format(names={*SPARK_SIDE, *BROKER_SIDE}) + LAUNCH
    command = [from_wheel.python, "-c", script, from_wheel.folder / "bin" / program]
    ran = subprocess.run(command, env=from_wheel.variables, capture_output=True, text=True)
    told = f'{program}: there is no {missing} here: pip install "pyspark-nsq[{extra}]"\n'
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", told)


def test_pytest_is_told_of_the_fixtures(from_wheel: Environment) -> None:
    script = """
import importlib.metadata, json
print(json.dumps([entry.value for entry in importlib.metadata.entry_points(group="pytest11", name="pyspark_nsq")]))
"""
    assert from_wheel.answer(script) == ["pyspark_nsq.pytest_plugin"]


def test_each_extra_asks_for_its_own_half_only(from_wheel: Environment) -> None:
    script = """
import importlib.metadata, json
from packaging.requirements import Requirement
asked = {extra: [] for extra in ("", "broker", "connector")}
for text in importlib.metadata.requires("pyspark-nsq"):
    requirement = Requirement(text)
    for extra, names in asked.items():
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            names.append(requirement.name)
print(json.dumps(asked))
"""
    asked = from_wheel.answer(script)
    assert isinstance(asked, dict)
    assert not {"pyspark", "pyarrow", "grpcio", "protobuf", "gevent"} & set(asked[""])
    assert set(asked["broker"]) - set(asked[""]) == {"gevent"}
    assert set(asked["connector"]) - set(asked[""]) == {"pyspark", "pyarrow", "grpcio", "protobuf"}
