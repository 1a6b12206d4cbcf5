"""nsq-receivers, as operators start them."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rig.daemons import wait_until

_LISTENING = re.compile(r"listening on (\S+)")
_START_S = 60.0


class NsqReceiver:
    """Its temporary files, its token and its log are in a folder; it can be started again at the same address."""

    token = "0123456789abcdef0123456789abcdef"

    def __init__(self, folder: Path, flags: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.token_file = folder / "token"
        self.token_file.write_text(f"{self.token}\n")
        self._folder = folder
        self._flags = flags
        self._log = folder / "log"
        self.address = self._start("127.0.0.1:0")

    def _start(self, listen: str) -> str:
        command = [sys.executable, "-P", "-m", "pyspark_nsq.connector.nsq_receiver", "--listen", listen]
        command += ["--token-file", str(self.token_file), *self._flags]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(command, env=os.environ | {"TMPDIR": str(self._folder)}, stderr=log)

        def look() -> str | None:
            assert self.process.poll() is None, self.said
            found = _LISTENING.search(self.said)
            return found[1] if found else None

        address: str = wait_until(look, "the nsq-receiver", _START_S)
        return address

    @property
    def said(self) -> str:
        """Its log since its last start."""
        return self._log.read_text(errors="backslashreplace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Start it again after a kill."""
        self._start(self.address)

    def stop(self) -> None:
        """As its operator does, and see it end in order."""
        self.process.terminate()
        assert self.process.wait(30) == 0
