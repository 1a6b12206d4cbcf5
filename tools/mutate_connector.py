"""Plant one fault after the other in a copy of the connector, and expect its unit tests to fail each time.

    .venv/bin/python tools/mutate_connector.py        every fault, each against the tests that should see it
    .venv/bin/python tools/mutate_connector.py RDY    the faults whose names contain one of the words
    .venv/bin/python tools/mutate_connector.py --all  every fault against all unit tests of the connector

The faults break what the source promises, most of all its invariants:

    I1  a message is finished only if the batch that held it is committed
    I2  a batch yields the same rows whenever it is read, or none
    I3  a batch of an earlier run yields nothing, never other messages
    I4  what was received and not finished is delivered again, whatever died: given back at once by whoever can
    I5  no more is in flight than RDY allows on a connection, and maxInFlight on all of them
    I6  an idle stream finishes its last batch

Beside these: only who knows its token is answered; and of the sink: a task ends when all is acknowledged, in commands
that nsqd takes. Ends with 1 if a fault stays unseen.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from mutants import ROOT, Fault, Suite, main

FAULTS = [
    Fault(
        "I1: finished when it is planned",
        "connector/stream_reader.py",
        "        end = coordinator.latest(begin, limit.max_rows)\n",
        "        end = coordinator.latest(begin, limit.max_rows)\n        coordinator.finish(end)\n",
        ("coordinator", "test"),
    ),
    Fault(
        "I6: not finished when nothing more comes",
        "connector/stream_reader.py",
        "        coordinator.finish(begin)\n",
        "",
        ("coordinator", "test"),
    ),
    Fault(
        "I1: all is finished with any batch",
        "connector/lanes.py",
        "        before = min(before, self.end)\n",
        "        before = self.end\n",
        ("receiver_core", "test"),
    ),
    Fault(
        "I1: an offset of another run finishes",
        "connector/coordinator.py",
        "        if offset.session != self.session or offset == self._committed:\n            return\n",
        "        if offset == self._committed:\n            return\n",
        ("coordinator", "test"),
    ),
    Fault(
        "I2: a range is read from its chunk's start",
        "connector/lanes.py",
        "chunk.messages.slice(first - chunk.first, stop - first)",
        "chunk.messages.slice(0, stop - first)",
        ("receiver_core", "test"),
    ),
    Fault(
        "I2: what is finished can be read",
        "connector/lanes.py",
        "        if first < self.finished:\n",
        "        if first < 0:\n",
        ("receiver_core", "test"),
    ),
    Fault(
        "I2: a receiver reads for one before it",
        "connector/coordinator.py",
        "if incarnation_of(last) != self._receivers[lane].incarnation:",
        "if False:",
        ("coordinator", "test"),
    ),
    Fault(
        "I2: a receiver reads for another lane",
        "connector/receiver_service.py",
        "        if request.lane != self._lane or request.first < ",
        "        if request.first < ",
        ("fleet", "another_lane"),
    ),
    Fault(
        "I2: a session of one lane goes on for another",
        "connector/fleet.py",
        "replace(self._beginning, lane=member.lane, ",
        "replace(self._beginning, ",
        ("fleet", "another_lane"),
    ),
    Fault(
        "I3: a batch of another run has rows",
        "connector/coordinator.py",
        "        if end.session != self.session:\n",
        "        if False:\n",
        ("coordinator", "another_run"),
    ),
    Fault(
        "redelivered messages are emitted again",
        "connector/receiver_core.py",
        "        if state.redeliveries:\n",
        "        if False:\n",
        ("receiver_core", "test"),
    ),
    Fault(
        "one that does not answer is taken to hold nothing",
        "connector/arbiter.py",
        "        if source not in unanswered:\n",
        "        if True:\n",
        ("shared_sources", "answer"),
    ),
    Fault(
        "I4: nothing is given back at the end",
        "connector/receiver_core.py",
        "        self.stopping = True\n",
        "        self.stopping = True\n        return\n",
        ("receiver_core", "test"),
    ),
    Fault(
        "I4: what arrives after CLS is not given back",
        "connector/receiver_loop.py",
        "        self._core.requeue()\n        self._send()\n",
        "        self._send()\n",
        ("receiver_loop", "test"),
    ),
    Fault(
        "I4: what is not sent at the end is cut off",
        "connector/receiver_loop.py",
        "if self._ending and not link.stream.unsent_size:",
        "if self._ending:",
        ("receiver_loop", "reads_late"),
    ),
    Fault(
        "a slow batch is not touched",
        "connector/receiver_core.py",
        "                    owner.touch(ids)\n",
        "",
        ("receiver_core", "test"),
    ),
    Fault(
        "I5: each receiver may have all in flight",
        "connector/crews.py",
        "split_evenly(self._options.in_flight_max, place.count)[index]",
        "self._options.in_flight_max",
        ("crews", "test"),
    ),
    Fault(
        "I5: a busy receiver gets its part before another has let go of it",
        "connector/placement.py",
        "granted = min(target, before + max(0, free))",
        "granted = target",
        ("placement", "test"),
    ),
    Fault(
        "I5: RDY above what nsqd allows",
        "connector/ready.py",
        "split_window(window, len(kept), rdy_max)",
        "split_window(window, len(kept), window)",
        ("receiver_core", "test"),
    ),
    Fault(
        "I5: RDY is raised before another one is lowered",
        "connector/ready.py",
        "min(rdy, charge + max(0, free))",
        "rdy",
        ("receiver_core", "test"),
    ),
    Fault(
        "I4: the stream's end is not told to receivers",
        "connector/stream_reader.py",
        "            signal.signal(signal.SIGTERM, self._terminate)\n",
        "",
        ("coordinator", "test"),
    ),
    Fault(
        "I4: a receiver outlives its coordinator's pipe",
        "connector/receiver_loop.py",
        "            self._selector.unregister(lifeline_fd)\n            self._stop()\n",
        "            self._selector.unregister(lifeline_fd)\n",
        ("receiver_process", "standard_input"),
    ),
    Fault(
        "I4: a receiver outlives its parent",
        "connector/receiver.py",
        '    set_up_process("INFO")\n    _die_with_parent()\n',
        '    set_up_process("INFO")\n',
        ("receiver_process", "parent"),
    ),
    Fault(
        "I4: FINs that nsqd never read are not given again",
        "connector/receiver_core.py",
        "            state.redeliveries.commit(connection.recent_fins(), now)\n",
        "            pass\n",
        ("receiver_core", "test"),
    ),
    Fault(
        "messages past RDY 0 are taken in without end",
        "connector/memory.py",
        "            if self._unasked[connection] >= UNASKED_SIZE_MAX:\n",
        "            if False:\n",
        ("receiver_memory", "test"),
    ),
    Fault(
        "what there is no room for is read",
        "connector/memory.py",
        "        if self.is_used_up and not self._is_rdy_read(now):\n            return False\n",
        "",
        ("receiver_memory", "test"),
    ),
    Fault(
        "large frames come all at once",
        "connector/memory.py",
        '        return connection is max(self._in_large_frames, key=attrgetter("input_size"))\n',
        "        return True\n",
        ("receiver_memory", "test"),
    ),
    Fault(
        "each heartbeat of one who never reads is answered",
        "connector/client.py",
        "        if not self.unsent_size:\n",
        "        if True:\n",
        ("pool", "test"),
    ),
    Fault(
        "heartbeats without end are taken for news",
        "connector/pool.py",
        "            check_heartbeats(frames.count(Frame(RESPONSE, HEARTBEAT)))\n",
        "",
        ("pool", "test"),
    ),
    Fault(
        "one who takes dead letters slowly is read on",
        "connector/receiver_loop.py",
        "link.stream.unsent_size > _UNSENT_MAX or not self._core.may_read",
        "not self._core.may_read",
        ("receiver_loop", "slowly"),
    ),
    Fault(
        "more is refused than was sent",
        "connector/connection.py",
        "                if not self._refusable:\n",
        "                if False:\n",
        ("connection", "test"),
    ),
    Fault(
        "padding without end is received without end",
        "connector/client.py",
        "            if receives == _RECEIVES_MAX and self._socket.gettimeout() == 0:\n",
        "            if False:\n",
        ("client", "no_byte"),
    ),
    Fault(
        "a refused SUB is hoped for",
        "connector/receiver_core.py",
        '            state.refusal = str(error) if isinstance(error, SecurityError) else ""\n',
        '            state.refusal = ""\n',
        ("receiver_connecting", "test"),
    ),
    Fault(
        "a dead letter that is refused is tried for ever",
        "connector/coordinator.py",
        "            raise RefusalError(failures[0])\n",
        "            pass\n",
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
        ("fleet", "test"),
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
        ("fleet", "test"),
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
