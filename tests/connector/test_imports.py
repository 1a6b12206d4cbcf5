"""What Spark's planner has to import before it can start, within a time limit, is little."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["source", "stream_reader"])
def test_nothing_heavy_is_imported(module: str) -> None:
    script = f"""
import sys
import pyspark.sql.streaming.datasource, pyspark.sql.datasource
before = set(sys.modules)
import pyspark_nsq.connector.{module}
print(*sorted({{name.split(".")[0] for name in set(sys.modules) - before}}))
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pyspark_nsq" in answer.stdout.split()
    assert not {"grpc", "google", "numpy", "pyarrow", "cramjam"} & set(answer.stdout.split())
