"""nsqd's hot path as machine code: the same modules, through mypyc and a C compiler.

Hatchling calls this for a wheel, where HATCH_BUILD_HOOK_ENABLE_CUSTOM=true asks for it. What is compiled stands beside
the source of the same name, and is what Python imports then; calls from one compiled module to another are calls of C.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "pyspark_nsq"
# What a publish, a delivery and a FIN go through, from the loop's callback for a client's socket on.
MODULES = (
    *("broker/backlog", "broker/batch", "broker/channel", "broker/checksum", "broker/client_states", "broker/clock"),
    *("broker/connections", "broker/engine", "broker/keeper", "broker/log", "broker/log_file", "broker/message_id"),
    *("broker/output", "broker/segment", "broker/session", "broker/shared", "broker/store", "broker/sync"),
    *("broker/timers", "broker/topic", "broker/turn"),
    *("proto/commands", "proto/dpub", "proto/mpub", "proto/names", "proto/parser", "proto/pieces", "proto/runs"),
    "proto/uniform",
)
ROOMS = ("broker", "proto")
# Its types were checked where it was written: here the packages that it stands on may be missing, and are not asked.
_SETUP = """
from mypyc.build import mypycify
from setuptools import setup

options = ["--ignore-missing-imports", "--no-site-packages"]
modules = mypycify([*options, *{paths!r}], opt_level="3", debug_level="0", group_name="{package}")
setup(name="{package}", packages=[], ext_modules=modules)
"""


class CompileError(Exception):
    """No compiler, or one that failed."""


def missing() -> list[str]:
    """What is needed and not there."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "gcc").split()[0]
    needed = [compiler] if shutil.which(compiler) is None else []
    return needed if Path(sysconfig.get_path("include"), "Python.h").exists() else [*needed, "Python.h"]


def compile_into(folder: Path, root: Path) -> list[Path]:
    """Lay the sources into the folder, compile them there, and say what that has made (relative paths)."""
    if absent := missing():
        raise CompileError(
            f"nsqd cannot be compiled without {' and '.join(absent)} (Debian: apt-get install gcc python3-dev). "
            "Without HATCH_BUILD_HOOK_ENABLE_CUSTOM it is installed as it is"
        )
    package = folder / PACKAGE
    package.mkdir(parents=True)
    shutil.copy(root / "src" / PACKAGE / "__init__.py", package)
    for room in ROOMS:
        shutil.copytree(root / room, package / room, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    paths = [f"{PACKAGE}/{module}.py" for module in MODULES]
    (folder / "setup.py").write_text(_SETUP.format(paths=paths, package=PACKAGE))
    environment = {name: value for name, value in os.environ.items() if name != "MYPYPATH"}
    ran = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        check=False,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if ran.returncode:
        raise CompileError(f"nsqd could not be compiled:\n{ran.stdout[-4000:]}")
    return [path.relative_to(folder) for path in sorted(folder.rglob("*.so")) if "build" not in path.parts]


class CompiledBroker(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return ["mypy>=2.4", "setuptools>=80"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        if version == "editable":
            self.app.display_warning("An editable install runs what stands in the checkout: nothing is compiled")
            return
        folder = Path(self._folder.name) / "made"
        build_data["force_include"] |= {str(folder / made): str(made) for made in compile_into(folder, Path(self.root))}
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del version, build_data, artifact_path
        self._folder.cleanup()
