"""What the processes that become receivers inherit from those that start them."""

import os
import sys


def environment() -> dict[str, str]:
    """This process's, but for what Spark's JVM and its Python workers have agreed on; and what it can import."""
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_SECRET")}
    return inherited | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
