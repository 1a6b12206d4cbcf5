"""Executors that are processes of their own, and a task that fails after part of its rows are published."""

import subprocess
import sys
from pathlib import Path

from rig.consumer import drain
from rig.daemons import Daemon, Implementation, Nsqd
from rig.frames import bodies

COUNT = 60_000


def test_a_task_that_fails_halfway_makes_duplicates_and_no_loss(
    makes: list[Implementation], daemons: list[Daemon], tmp_path: Path
) -> None:
    nsqds = {make.name: Nsqd(make, tmp_path / make.name) for make in makes}
    daemons.extend(nsqds.values())
    places = []
    for name, nsqd in nsqds.items():
        nsqd.make_channel(name, "c")
        places += [nsqd.tcp, nsqd.http, name]
    job = [sys.executable, str(Path(__file__).with_name("cluster_job.py")), str(COUNT), *places]
    done = subprocess.run(job, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, nsqd in nsqds.items():
        found = drain(nsqd, name, "c")
        assert found.keys() == bodies(COUNT).keys()
        assert found.total() > COUNT
        assert max(found.values()) == 2
