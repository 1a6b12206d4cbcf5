"""The script that starts every daily task says what it can do and does not pretend."""

import subprocess
from pathlib import Path

import pytest

SCRIPTS = ["run", ".ci/run", "tools/container-base", "tools/go-nsq", "tools/machine.sh", "tools/setup.sh"]


def call(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([root / "run", *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_scripts_are_bash(root: Path, script: str) -> None:
    assert subprocess.run(["bash", "-n", root / script]).returncode == 0


def test_help_names_every_command(root: Path) -> None:
    answer = call(root, "help")
    assert answer.returncode == 0
    dispatched = (root / "run").read_text().partition("case $command in")[2]
    names = [line.split(")")[0].split("|")[0].strip() for line in dispatched.splitlines() if ") " in line]
    assert len(names) >= 9
    for name in names:
        assert f"\n  {name} " in answer.stdout, name


@pytest.mark.parametrize("arguments", [("nonsense",), ("bench", "nonsense")])
def test_what_does_not_exist_is_not_pretended(root: Path, arguments: tuple[str, ...]) -> None:
    answer = call(root, *arguments)
    assert answer.returncode == 1
    assert answer.stderr.splitlines()[-1].startswith("error: ")


def test_the_readme_shows_commands_that_exist(root: Path) -> None:
    known = call(root, "help").stdout
    shown = {line.split()[1] for line in (root / "README.md").read_text().splitlines() if line.startswith("./run ")}
    assert {"demo", "test"} <= shown
    assert all(f"\n  {name} " in known for name in shown)
