"""What the tests of the broker share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
