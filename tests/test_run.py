"""The script that starts every daily task says what it can do and does not pretend."""

import fcntl
import shutil
import subprocess
import sys
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


def bash_command(script: str) -> list[str]:
    """A script with the functions that set things up, as ``run`` has them."""
    tools = Path(__file__).parents[1] / "tools"
    return ["bash", "-c", f"set -euo pipefail; source {tools}/machine.sh; source {tools}/setup.sh; {script}"]


def bash(place: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(place), **variables}
    return subprocess.run(bash_command(script), cwd=place, env=environment, capture_output=True, text=True)


def make_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def make_java(home: Path, version: str) -> Path:
    make_program(home / "bin" / "java", f"echo 'openjdk version \"{version}\" 2026-01-20' >&2")
    return home


@pytest.mark.parametrize(
    ("version", "is_new_enough"), [("1.8.0_402", False), ("11.0.22", False), ("17.0.10", True), ("21", True)]
)
def test_a_java_is_known_by_its_version(tmp_path: Path, version: str, is_new_enough: bool) -> None:
    home = make_java(tmp_path, version)
    assert (bash(tmp_path, f"is_java_17 {home}").returncode == 0) == is_new_enough


def test_the_named_java_comes_first_then_that_on_the_path(tmp_path: Path) -> None:
    named, on_path, old = (
        make_java(tmp_path / name, version) for name, version in (("named", "21"), ("path", "17.0.1"), ("old", "11"))
    )
    path = f"{on_path}/bin:/usr/bin:/bin"
    assert bash(tmp_path, "find_java", JAVA_HOME=str(named), PATH=path).stdout == f"{named}\n"
    assert bash(tmp_path, "find_java", JAVA_HOME=str(old), PATH=path).stdout == f"{on_path}\n"


def test_a_missing_java_is_installed_or_asked_for(tmp_path: Path) -> None:
    home = make_java(tmp_path / "installed", "17.0.10")
    # The first package that Debian may have does not exist in every release.
    there = f"""
        find_java() {{ [[ -e done ]] && echo {home}; }}
        apt_install() {{ echo "$1" >>asked; [[ $1 == openjdk-21* ]] && touch done; }}
        need_java; echo "$JAVA_HOME"; command -v java"""
    ran = bash(tmp_path, there)
    assert ran.stdout.split() == [str(home), f"{home}/bin/java"], ran.stderr
    assert (tmp_path / "asked").read_text().split() == ["openjdk-17-jre-headless", "openjdk-21-jre-headless"]
    told = bash(tmp_path, "find_java() { return 1; }; apt_install() { return 1; }; need_java; echo goes on")
    assert (told.returncode, told.stdout) == (1, "")
    assert "sudo apt-get install openjdk-17-jre-headless (or openjdk-21-jre-headless)" in told.stderr


def test_nothing_is_installed_without_the_right_to(tmp_path: Path) -> None:
    make_program(tmp_path / "bin" / "apt-get", "touch called")
    make_program(tmp_path / "bin" / "sudo", '[ "$2" != true ] && shift && "$@"')
    ran = bash(tmp_path, "id() { echo 1000; }; apt_install golang-go", PATH=f"{tmp_path}/bin:/usr/bin:/bin")
    assert ran.returncode == 1
    assert not (tmp_path / "called").exists()


def test_the_named_python_has_to_be_new_enough(tmp_path: Path) -> None:
    pretended = "import sys; sys.version_info = (3, 10); exec(sys.argv[1])"
    old = make_program(tmp_path / "python3.10", f"exec {sys.executable} -c '{pretended}' \"$2\"")
    told = bash(tmp_path, "find_python", PYTHON=str(old))
    assert told.returncode == 1
    assert str(old) in told.stderr
    assert "Python 3.11 or newer" in told.stderr
    assert bash(tmp_path, "find_python", PYTHON=sys.executable).stdout == f"{sys.executable}\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder whose .venv has a Python that only notes its arguments."""
    make_program(tmp_path / ".venv" / "bin" / "python", 'echo "$*" >>calls')
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / ".venv" / "pyvenv.cfg").write_text(f"command = /usr/bin/python3 -m venv --clear {tmp_path}/.venv\n")
    (tmp_path / "constraints.txt").write_text("pip==25.0\n")
    return tmp_path


def set_up(checkout: Path, what: str) -> tuple[str, list[str]]:
    """What that says, and the arguments of Python that it takes."""
    (checkout / "calls").write_text("")
    ran = bash(checkout, f"set_up {what}")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr, (checkout / "calls").read_text().splitlines()


def test_what_is_set_up_is_not_set_up_again_until_a_pin_changes(checkout: Path) -> None:
    told, calls = set_up(checkout, "dev")
    assert "Setting up .venv" in told
    assert calls[1].endswith("install pip==25.0")
    assert calls[2].endswith("-c constraints.txt --build-constraint constraints.txt --group dev -e .[demo]")
    assert set_up(checkout, "dev") == ("", [])
    (checkout / "constraints.txt").write_text("pip==25.1\n")
    assert len(set_up(checkout, "dev")[1]) == 3


def test_the_demo_needs_no_tools_of_developers_and_is_content_with_them(checkout: Path) -> None:
    assert set_up(checkout, "demo")[1][2].endswith("--build-constraint constraints.txt -e .[demo]")
    assert set_up(checkout, "demo") == ("", [])
    # What comes then needs more.
    assert set_up(checkout, "dev")[1][2].endswith("--group dev -e .[demo]")
    assert set_up(checkout, "notebook")[1][2].endswith("constraints.txt -e .[notebook]")
    (checkout / ".venv" / "set-up-demo").unlink()
    assert set_up(checkout, "demo") == ("", [])


def test_a_checkout_that_was_moved_gets_a_new_venv(checkout: Path) -> None:
    """The programs in the old one name the Python of the old place."""
    set_up(checkout, "dev")
    moved = checkout.rename(checkout.with_name(f"{checkout.name}-moved"))
    make_instead = f"make_venv() {{ echo made >>calls; echo 'command = x -m venv {moved}/.venv' >.venv/pyvenv.cfg; }}"
    for _ in range(2):
        ran = bash(moved, f"{make_instead}; set_up dev")
        assert ran.returncode == 0, ran.stderr
    calls = (moved / "calls").read_text().splitlines()
    assert calls.count("made") == 1
    assert calls[-1].endswith("-e .[demo]")


def test_a_venv_is_known_by_its_place(tmp_path: Path) -> None:
    place = tmp_path / "a b [c]"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / ".venv"], check=True)
    link = tmp_path / "link"
    link.symlink_to(place)
    assert bash(place, "is_venv_of_here").returncode == 0
    assert bash(link, "[[ $PWD == */link ]] && is_venv_of_here", PWD=str(link)).returncode == 0
    moved = place.rename(tmp_path / "moved")
    assert bash(moved, "is_venv_of_here").returncode == 1
    assert bash(tmp_path, "is_venv_of_here").returncode != 0


def test_who_waited_for_another_set_up_does_not_repeat_it(checkout: Path) -> None:
    command = bash_command("set_up dev")
    with (checkout / "constraints.txt").open() as constraints:
        fcntl.flock(constraints, fcntl.LOCK_EX)
        with subprocess.Popen(command, cwd=checkout, stderr=subprocess.PIPE, text=True) as waiting:
            assert waiting.stderr is not None
            assert "Setting up .venv" in waiting.stderr.readline()
            assert bash(checkout, "fingerprint >.venv/set-up-dev").returncode == 0
            fcntl.flock(constraints, fcntl.LOCK_UN)
            assert waiting.stderr.read() == ""
    assert waiting.returncode == 0
    assert not (checkout / "calls").exists()


@pytest.mark.parametrize(("user", "flags"), [(0, ["--allow-root"]), (1000, [])])
def test_notebooks_open_for_root_too(root: Path, checkout: Path, user: int, flags: list[str]) -> None:
    """Who Jupyter sends away without that flag: most containers have no other user."""
    shutil.copy(root / "run", checkout)
    shutil.copytree(root / "tools", checkout / "tools")
    make_program(checkout / ".venv" / "bin" / "id", f"echo {user}")
    make_program(checkout / ".venv" / "bin" / "jupyter", 'echo "$*"')
    variables = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(checkout),
        "JAVA_HOME": str(make_java(checkout / "java", "17.0.10")),
    }
    ran = subprocess.run([checkout / "run", "notebooks", "--no-browser"], env=variables, capture_output=True, text=True)
    assert ran.stdout.split() == ["lab", "--notebook-dir", "notebooks", *flags, "--no-browser"], ran.stderr
