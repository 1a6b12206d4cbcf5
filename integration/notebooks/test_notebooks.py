"""The notebooks run from a clean kernel to their end, and are kept without what that run printed."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from pyspark_nsq.cli.main import make_parser

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
CELL_TIMEOUT_S = 280


def cells(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / name).read_text())["cells"]
    return found


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 4


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_is_kept_without_outputs(name: str) -> None:
    """Outputs differ with every run: kept ones would hide what has changed. 'Clear all outputs' before a commit."""
    for cell in cells(name):
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_its_links_lead_somewhere(name: str) -> None:
    text = "".join("".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "markdown")
    links = [part.partition(")")[0] for part in text.split("](")[1:]]
    assert [link for link in links if not (FOLDER / link).exists()] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_no_text_shows_a_command_for_a_shell(name: str) -> None:
    """Only code knows where the broker listens, and prints commands with that."""
    text = "".join("".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "markdown")
    assert re.findall(r"nsq (?:tail|pub|stat|topics) [^`]+", text) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may take long to start Spark's Python workers.
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.python.authenticate.socketTimeout=60s pyspark-shell")
    notebook = nbformat.read(FOLDER / name, as_version=4)
    client = NotebookClient(
        notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    pictures = [
        output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    assert pictures, "a story without a picture"
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    for command in re.findall(r"^nsq (.*)$", printed, re.MULTILINE):
        assert re.search(r" 127\.0\.0\.1:\d+$", command)
        make_parser().parse_args(shlex.split(command))
