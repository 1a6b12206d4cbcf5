"""Print the ``name==version`` lines of a ``pip install --report`` file, and of the pip that made it."""

import json
import sys
from pathlib import Path

report = json.loads(Path(sys.argv[1]).read_text())
pins = {item["metadata"]["name"]: item["metadata"]["version"] for item in report["install"]}
del pins["pyspark-nsq"]
pins["pip"] = report["pip_version"]
for name in sorted(pins, key=str.lower):
    print(f"{name}=={pins[name]}")
