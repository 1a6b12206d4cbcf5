"""Order in the files themselves, so that nobody needs to keep it in mind."""

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path

import hatchling.build
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
ROOMS = [
    ".ci",
    "benchmarks",
    "broker",
    "connector",
    "docs",
    "integration",
    "notebooks",
    "proto",
    "src",
    "tests",
    "tools",
]
TEXT = {"", ".cfg", ".ipynb", ".md", ".proto", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}
UNWELCOME = {
    # What lies below /opt/nsq and /home/nsq is the container's, which the Dockerfile itself makes.
    "a path of somebody's machine": re.compile(r"(?<![\w.{}$/-])/(?:home|root|opt|work|Users)/(?!nsq\b)\w"),
    "an unfinished thought": re.compile(r"\b(?:TODO|FIXME|XXX)\b"),
    "a number that only the authors can look up": re.compile(r"\b[Ii]ssue \d|(?<![\w&/{])#\d{1,4}\b(?!-)"),
}
# Text by others, by machines, and this file, whose samples are what it looks for.
NOT_OURS = re.compile(r"(_pb2(_grpc)?\.pyi?|^LICENSE|^test_tidy\.py)$")


def texts(root: Path) -> Iterator[Path]:
    """Every text file that people write here."""
    candidates = [path for path in root.iterdir() if not path.name.startswith(".")]
    for room in ROOMS:
        candidates += (root / room).rglob("*")
    for path in candidates:
        ours = "__pycache__" not in path.parts and not NOT_OURS.search(path.name)
        if ours and path.suffix in TEXT and path.is_file() and not path.is_symlink():
            yield path


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """The functions of a file with the lines each takes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


@pytest.mark.parametrize("what", UNWELCOME)
def test_texts_are_free_of(root: Path, what: str) -> None:
    found = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in texts(root)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNWELCOME[what].search(line)
    ]
    assert not found, f"{what}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a path of somebody's machine", "open('/home/me/x')"),
        ("an unfinished thought", "# TODO later"),
        ("a number that only the authors can look up", "as issue 7 asks"),
        ("a number that only the authors can look up", "see #12"),
    ],
)
def test_what_is_unwelcome_is_seen(what: str, text: str) -> None:
    assert UNWELCOME[what].search(text)


def test_files_are_short(root: Path) -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in texts(root) if path.suffix in {".py", ".sh", ""}}
    assert lengths
    too_long = {str(path.relative_to(root)): lines for path, lines in lengths.items() if lines > FILE_LINES_MAX}
    assert not too_long


def test_functions_are_short(root: Path) -> None:
    too_long = [
        f"{path.relative_to(root)}: {name} takes {lines} lines"
        for path in texts(root)
        if path.suffix == ".py"
        for name, lines in functions(path)
        if lines > FUNCTION_LINES_MAX
    ]
    assert not too_long


def test_every_test_file_can_fail(root: Path) -> None:
    files = [path for room in ("tests", "integration") for path in (root / room).rglob("test_*.py")]
    without = [
        str(path.relative_to(root)) for path in files if not re.search(r"\bassert\b|pytest\.raises", path.read_text())
    ]
    assert not without


def test_the_changelog_has_a_place_for_what_comes_next(root: Path) -> None:
    assert "\n## [Unreleased]\n" in (root / "CHANGELOG.md").read_text()


def test_every_dependency_is_pinned_within_its_range(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())
    pins = dict(line.lower().split("==") for line in (root / "constraints.txt").read_text().splitlines())
    monkeypatch.chdir(root)
    lists = [
        project["build-system"]["requires"],
        # What the build's own environment gets beside these, where nobody sees it.
        hatchling.build.get_requires_for_build_sdist(),
        hatchling.build.get_requires_for_build_wheel(),
        hatchling.build.get_requires_for_build_editable(),
        project["project"]["dependencies"],
        *project["project"]["optional-dependencies"].values(),
        *project["dependency-groups"].values(),
    ]
    for requirement in map(Requirement, chain.from_iterable(lists)):
        if requirement.name != "pyspark-nsq":
            assert requirement.specifier.contains(pins[requirement.name.lower()]), requirement


def test_everything_that_is_installed_is_pinned(root: Path) -> None:
    """Also what nobody here asks for by name."""
    pins = (line.split("==") for line in (root / "constraints.txt").read_text().splitlines())
    pinned = {canonicalize_name(name): version for name, version in pins}
    installed = {canonicalize_name(each.name): each.version for each in distributions()}
    del installed["pyspark-nsq"]
    assert installed.items() - pinned.items() == set()


def test_what_builds_for_us_is_pinned_where_it_is_not_seen(root: Path) -> None:
    """pip takes the newest for a build's environment, unless it is told otherwise."""
    for name in ("tools/setup.sh", "Dockerfile"):
        commands = re.sub(r"\\\n", "", (root / name).read_text()).splitlines()
        builds = [line for line in commands if re.search(r"install .*-c constraints\.txt", line)]
        assert builds
        assert all("--build-constraint constraints.txt" in line for line in builds), name


def test_ranges_promise_no_version_that_generated_code_refuses(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    ranges = {r.name: r.specifier for r in map(Requirement, project["optional-dependencies"]["connector"])}
    made_for = {
        "protobuf": (root / "proto/receiver_pb2.py", r"Protobuf Python Version: ([\d.]+)"),
        "grpcio": (root / "proto/receiver_pb2_grpc.py", r"GRPC_GENERATED_VERSION = '([\d.]+)'"),
    }
    for name, (path, pattern) in made_for.items():
        found = re.search(pattern, path.read_text())
        assert found
        floors = [Version(part.version) for part in ranges[name] if part.operator == ">="]
        assert max(floors) >= Version(found[1]), name


def test_pins_name_no_place(root: Path) -> None:
    for line in (root / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!]+", line), line
