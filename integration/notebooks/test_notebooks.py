"""The notebooks run from a clean kernel to their end, and are kept without what that run printed."""

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

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
