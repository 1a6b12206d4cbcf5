"""docs/flags.md is what the daemons' own help says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_flags_is_current() -> None:
    made = subprocess.run([sys.executable, ROOT / "tools/flag_tables.py"], capture_output=True, text=True, check=True)
    assert (ROOT / "docs/flags.md").read_text() == made.stdout, "run: python tools/flag_tables.py > docs/flags.md"
    helps = [
        subprocess.run([Path(sys.executable).with_name(name), "--help"], capture_output=True, text=True)
        for name in ("nsqd", "nsqlookupd")
    ]
    flags = sum((told.stdout + told.stderr).count("\n  -") for told in helps)
    assert made.stdout.count("\n| `--") == flags > 50
