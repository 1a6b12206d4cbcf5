"""The receiver that a task starts on its executor's host, as a process that outlives the task.

It ends when its session does: its driver says stop, or is silent for a lease; or when no executor that used it is left.
"""

import json
import os
import signal
import sys
from typing import Any, Final

_LOOK_S: Final = 0.2


def main() -> None:
    told = json.load(sys.stdin)
    # The task waits for this process only until it has a child, which is nobody's.
    if os.fork():
        os._exit(0)
    _work(told)


def _work(told: dict[str, Any]) -> None:
    # After the fork, which threads would not survive.
    from pathlib import Path

    from pyspark_nsq.connector.executors import way_from
    from pyspark_nsq.connector.hosted import HostedReceiver
    from pyspark_nsq.connector.receiver_setup import set_up_process
    from pyspark_nsq.connector.stop_signal import StopSignal

    set_up_process("INFO")
    with StopSignal(signal.SIGTERM) as stopping:
        HostedReceiver(way_from(told["way"]), Path(told["folder"]), stopping).run(_LOOK_S)
    # Threads that still connect somewhere would keep the process for their time-out.
    os._exit(0)


if __name__ == "__main__":
    main()
