"""Where a query stops at a moment of its batch and waits: files in a folder, as it consists of several processes.

A gate is closed by a file ``closed-MOMENT``. A process that comes to it leaves ``at-MOMENT.PID`` and waits until the
file is gone.
"""

import os
import time
from pathlib import Path

RECEIVED = "received"
PLANNED = "offsets logged"
HALF_WAY = "task half-way"
WRITTEN = "sink written"
COMMITTED = "commit logged"
BEFORE_FIN = "before FIN"
FIN_SENT = "FIN sent"
MOMENTS = (RECEIVED, PLANNED, HALF_WAY, WRITTEN, COMMITTED, BEFORE_FIN, FIN_SENT)

_LOOK_S = 0.01
# Whoever should open the gate is gone: better a failed query than processes that stay for ever.
_GIVE_UP_S = 300.0


class GateError(Exception):
    """Nobody opened a gate."""


class Gates:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _closed(self, moment: str) -> Path:
        return self.folder / f"closed-{moment}"

    def close(self, moment: str, text: str = "") -> None:
        """From now on whoever comes there waits. The text tells them more."""
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"draft-{moment}"
        draft.write_text(text)
        draft.rename(self._closed(moment))

    def open(self, *moments: str) -> None:
        for moment in moments or MOMENTS:
            self._closed(moment).unlink(missing_ok=True)

    def text(self, moment: str) -> str | None:
        """What ``close`` said; None where the gate is open."""
        try:
            return self._closed(moment).read_text()
        except FileNotFoundError:
            return None

    def arrive(self, moment: str) -> None:
        """Leave a sign of this process."""
        (self.folder / f"at-{moment}.{os.getpid()}").touch()

    def wait(self, moment: str) -> None:
        """Wait here if the gate is closed."""
        if self.text(moment) is None:
            return
        self.arrive(moment)
        deadline = time.monotonic() + _GIVE_UP_S
        while self.text(moment) is not None:
            if time.monotonic() > deadline:
                raise GateError(f"gate {moment} stayed closed")
            time.sleep(_LOOK_S)

    def arrived(self, moment: str) -> list[int]:
        """The processes that have come there."""
        return [int(path.name.rpartition(".")[2]) for path in self.folder.glob(f"at-{moment}.*")]

    def clear(self, moment: str) -> None:
        for path in self.folder.glob(f"at-{moment}.*"):
            path.unlink()

    def note(self, name: str, text: str) -> None:
        """Something that others want to know."""
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"draft-{name}.{os.getpid()}"
        draft.write_text(text)
        draft.rename(self.folder / name)

    def noted(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""
