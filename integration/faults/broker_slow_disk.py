"""nsqd on a slow disk.

python broker_slow_disk.py BYTES_A_SECOND FSYNC_SECONDS [nsqd's flags]
"""

import sys
import time
from collections.abc import Sequence

from pyspark_nsq.broker import nsqd
from pyspark_nsq.broker.files import Files
from pyspark_nsq.broker.segment import Buffer


class SlowFiles(Files):
    """Writes take their time, and fsyncs theirs, in whatever thread they are called."""

    bytes_a_second = 0.0
    fsync_seconds = 0.0

    def write(self, handle: int, offset: int, buffers: Sequence[Buffer], total: int) -> None:
        time.sleep(total / self.bytes_a_second)
        super().write(handle, offset, buffers, total)

    def sync_path(self, path: str) -> None:
        time.sleep(self.fsync_seconds)
        super().sync_path(path)


if __name__ == "__main__":
    SlowFiles.bytes_a_second, SlowFiles.fsync_seconds = map(float, sys.argv[1:3])
    del sys.argv[1:3]
    vars(nsqd)["Files"] = SlowFiles
    sys.exit(nsqd.main())
