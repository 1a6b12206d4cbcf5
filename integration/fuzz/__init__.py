"""Fuzzing by coverage: every parser and port of the project, and what its inputs may cost."""

import sys
from pathlib import Path

# Sessions without sockets and files without a disk, as the broker's tests have them.
sys.path.insert(0, str(Path(__file__).parents[2] / "tests/broker/support"))
