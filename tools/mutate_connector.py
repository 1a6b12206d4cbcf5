"""Plant one fault after the other in a copy of the connector, and expect its unit tests to fail each time.

    .venv/bin/python tools/mutate_connector.py        every fault, each against the tests that should see it
    .venv/bin/python tools/mutate_connector.py RDY    the faults whose names contain one of the words
    .venv/bin/python tools/mutate_connector.py --all  every fault against all unit tests of the connector

The faults break what the source promises: a message is finished once its batch is committed and not before, a batch
yields the same rows whenever it is read, or none, whatever was not finished is given back, no more is in flight than
allowed, only who knows its token is answered. And what the sink does: a task ends when all is acknowledged, in commands
that nsqd takes. Ends with 1 if a fault stays unseen.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from mutants import ROOT, Fault, Suite, main

FAULTS = [
    Fault(
        "finished when it is planned",
        "connector/stream_reader.py",
        "        end = coordinator.latest(begin, limit.max_rows)\n",
        "        end = coordinator.latest(begin, limit.max_rows)\n        coordinator.finish(end)\n",
        ("coordinator", "test"),
    ),
    Fault(
        "not finished when nothing more comes",
        "connector/stream_reader.py",
        "        coordinator.finish(begin)\n",
        "",
        ("coordinator", "test"),
    ),
    Fault(
        "all is finished with any batch",
        "connector/lanes.py",
        "        before = min(before, self.end)\n",
        "        before = self.end\n",
        ("receiver_core", "test"),
    ),
    Fault(
        "an offset of another run finishes",
        "connector/coordinator.py",
        "        if offset.session != self.session or offset == self._committed:\n            return\n",
        "        if offset == self._committed:\n            return\n",
        ("coordinator", "test"),
    ),
    Fault(
        "a range is read from its chunk's start",
        "connector/lanes.py",
        "chunk.messages.slice(first - chunk.first, stop - first)",
        "chunk.messages.slice(0, stop - first)",
        ("receiver_core", "test"),
    ),
    Fault(
        "what is finished can be read",
        "connector/lanes.py",
        "        if first < self.finished:\n",
        "        if first < 0:\n",
        ("receiver_core", "test"),
    ),
    Fault(
        "a receiver reads for one before it",
        "connector/coordinator.py",
        "if incarnation_of(last) != self._receivers[lane].incarnation:",
        "if False:",
        ("coordinator", "test"),
    ),
    Fault(
        "redelivered messages are emitted again",
        "connector/receiver_core.py",
        "        if state.redeliveries:\n",
        "        if False:\n",
        ("receiver_core", "test"),
    ),
    Fault(
        "nothing is given back at the end",
        "connector/receiver_core.py",
        "        self.stopping = True\n",
        "        self.stopping = True\n        return\n",
        ("receiver_core", "test"),
    ),
    Fault(
        "what arrives after CLS is not given back",
        "connector/receiver_loop.py",
        "        self._core.requeue()\n        self._send()\n",
        "        self._send()\n",
        ("receiver_loop", "test"),
    ),
    Fault(
        "a slow batch is not touched",
        "connector/receiver_core.py",
        "                    owner.touch(ids)\n",
        "",
        ("receiver_core", "test"),
    ),
    Fault(
        "each receiver may have all in flight",
        "connector/crews.py",
        "split_evenly(self._options.in_flight_max, place.count)[index]",
        "self._options.in_flight_max",
        ("crews", "test"),
    ),
    Fault(
        "RDY above what nsqd allows",
        "connector/ready.py",
        "split_window(window, len(kept), rdy_max)",
        "split_window(window, len(kept), window)",
        ("receiver_core", "test"),
    ),
    Fault(
        "RDY is raised before another one is lowered",
        "connector/ready.py",
        "min(rdy, charge + max(0, free))",
        "rdy",
        ("receiver_core", "test"),
    ),
    Fault(
        "the stream's end is not told to receivers",
        "connector/stream_reader.py",
        "            signal.signal(signal.SIGTERM, self._terminate)\n",
        "",
        ("coordinator", "test"),
    ),
    Fault(
        "anybody may ask the coordinator",
        "connector/crews.py",
        "make_server(_THREADS_MAX, [Guard(token)])",
        "make_server(_THREADS_MAX)",
        ("crews", "token"),
    ),
    Fault(
        "a silent receiver counts as dead",
        "connector/fleet.py",
        '"nothing was heard of it for a lease", certainly=False)',
        '"nothing was heard of it for a lease", certainly=True)',
        ("receiver_host", "test"),
    ),
    Fault(
        "one that may live gives up its part at once",
        "connector/placement.py",
        "            if not certainly and member.hold:\n",
        "            if False:\n",
        ("placement", "test"),
    ),
    Fault(
        "one that gives back is gone",
        "connector/receiver_host.py",
        "            if any(each.beginning == beginning and not each.ended for each in self.sessions):\n",
        "            if False:\n",
        ("receiver_host", "test"),
    ),
    Fault(
        "a successor at the same address is not called",
        "connector/fleet.py",
        "if self.receivers[former.lane].instance == instance:",
        "if self.receivers[former.lane].address == address:",
        ("receiver_host", "test"),
    ),
    Fault(
        "a task ends before all is acknowledged",
        "connector/sink.py",
        "        producer.finish()\n",
        "",
        ("sink", "test"),
    ),
    Fault(
        "an MPUB has any number of messages",
        "connector/sink.py",
        "        count_max=options.batch_messages_max,\n    )\n    for mpub in mpubs:\n",
        "    )\n    for mpub in mpubs:\n",
        ("sink", "test"),
    ),
    Fault(
        "deferred rows go all at once",
        "connector/sink.py",
        "        count_max=options.batch_messages_max,\n    )\n    for batch in dpubs:\n",
        "        count_max=10**9,\n    )\n    for batch in dpubs:\n",
        ("sink", "test"),
    ),
    Fault(
        "nsqd's limit of a command is passed over",
        "connector/options.py",
        'min(values["batchBytes"], values["maxBodySize"])',
        'values["batchBytes"]',
        ("sink", "test"),
    ),
    Fault(
        "lookupds are not asked when an nsqd fails",
        "connector/producer.py",
        "        self._finder.doubt()\n",
        "",
        ("producer", "test"),
    ),
]


def use_copy(folder: Path) -> Mapping[str, str]:
    """By Python's path, which processes that the tests start have too."""
    return {"PYTHONPATH": str(folder)}


if __name__ == "__main__":
    suite = Suite(ROOT / "tests" / "connector", "", use_copy)
    sys.exit(main("Do the unit tests see faults in the connector?", suite, FAULTS))
