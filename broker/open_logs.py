"""Thousands of topics must not take all of the process's file descriptors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_nsq.broker.log import Log


class OpenLogs:
    """The logs that have files open. Of too many the one that opened one longest ago closes them; who needs them again
    opens them again."""

    def __init__(self, logs_max: int) -> None:
        assert logs_max > 0, logs_max
        self._logs_max = logs_max
        self._logs: dict[Log, None] = {}  # in the order of opening

    def opened(self, log: Log) -> None:
        self._logs.pop(log, None)
        self._logs[log] = None
        if len(self._logs) > self._logs_max:
            oldest = next(iter(self._logs))
            del self._logs[oldest]
            oldest.rest()
