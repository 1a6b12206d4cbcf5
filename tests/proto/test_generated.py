"""The committed gRPC code is what its contract generates."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["receiver"])
def test_generated_code_is_current(root: Path, tmp_path: Path, name: str) -> None:
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc", "-I", str(root / "src")),
        *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", f"--grpc_python_out={tmp_path}"),
        str(root / f"src/pyspark_nsq/proto/{name}.proto"),
    ]
    subprocess.run(command, check=True)
    made = {path.name: path.read_text() for path in (tmp_path / "pyspark_nsq/proto").iterdir()}
    assert made.keys() == {f"{name}_pb2.py", f"{name}_pb2.pyi", f"{name}_pb2_grpc.py"}
    for file, text in made.items():
        assert (root / "proto" / file).read_text() == text, f"proto/{file} is stale: generate it again"
