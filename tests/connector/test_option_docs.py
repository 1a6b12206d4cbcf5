"""docs/options.md is what the connector's own table says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_options_is_current() -> None:
    made = subprocess.run([sys.executable, ROOT / "tools/option_tables.py"], capture_output=True, text=True, check=True)
    assert (ROOT / "docs/options.md").read_text() == made.stdout, "run: python tools/option_tables.py > docs/options.md"
