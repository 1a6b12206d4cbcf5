"""The engine killed, or refused by the file system, at every single call that changes something."""

from contextlib import suppress

import pytest
from simulation.memory_files import Killed, MemoryFiles
from simulation.scenario import CHANNELS, SECOND, TOPICS, Scenario

from pyspark_nsq.broker import journal


@pytest.fixture(params=[None, 500], ids=["", "states rewritten"], autouse=True)
def rewriting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the journals are, which takes more than these tests write."""
    if request.param:
        monkeypatch.setattr(journal, "_REWRITE_BYTES_MIN", request.param)
        monkeypatch.setattr(journal, "_REWRITE_GROWTH", 0)


def calls_of_a_run(sync_every: int) -> int:
    files = MemoryFiles()
    Scenario(files, sync_every).run()
    return files.calls


@pytest.mark.parametrize("sync_every", [1, 2500])
def test_kill_at_every_call_loses_nothing_acknowledged(sync_every: int) -> None:
    for call in range(1, calls_of_a_run(sync_every) + 1):
        files = MemoryFiles(seed=call)
        files.kill_at = call
        scenario = Scenario(files, sync_every)
        with pytest.raises(Killed):
            scenario.run()
        files.kill()
        scenario.open()
        for topic in TOPICS:
            if topic in scenario.engine.topics:
                assert scenario.existing[topic] <= set(scenario.engine.topics[topic].channels), f"call {call}"
        scenario.check_survivors()


def test_kill_during_the_restart_after_a_kill() -> None:
    for call in range(40, calls_of_a_run(2500), 7):
        files = MemoryFiles(seed=call)
        files.kill_at = call
        scenario = Scenario(files)
        with pytest.raises(Killed):
            scenario.run()
        files.kill()
        for later in (1, 2, 3):
            files.kill_at = files.calls + later
            with suppress(Killed):
                scenario.open()
                scenario.wait(2 * SECOND)
            files.kill()
        scenario.open()
        scenario.check_survivors()


def test_loss_of_power_takes_nothing_that_was_acknowledged_after_its_fsync() -> None:
    for call in range(1, calls_of_a_run(1) + 1):
        files = MemoryFiles(seed=call)
        files.kill_at = call
        scenario = Scenario(files, sync_every=1)
        with pytest.raises(Killed):
            scenario.run()
        durable = files._durable_entries.items()
        states = [path for path, inode in durable if path.endswith("/state") and inode.synced]
        files.lose_power()
        assert all(files.entries[path].synced for path in states if path in files.entries), f"call {call}"
        scenario.open()
        for topic in TOPICS:
            # What was finished may come again: the journal is not synced. Nothing else may.
            scenario.long_finished[topic].clear()
        scenario.check_survivors()


def test_loss_of_power_without_fsyncs_leaves_something_that_can_be_loaded() -> None:
    for call in range(1, calls_of_a_run(2500) + 1):
        files = MemoryFiles(seed=call)
        files.kill_at = call
        scenario = Scenario(files)
        with pytest.raises(Killed):
            scenario.run()
        files.lose_power()
        scenario.open()
        for topic in scenario.engine.topics:
            for name in scenario.engine.topics[topic].channels:
                bodies = {frame.body for frame in scenario.drain(topic, name)}
                assert bodies <= scenario.acknowledged[topic] | scenario.unanswered


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("truncate_fails", [False, True])
def test_failure_of_every_call_is_told_and_leaves_no_trace(length: int, truncate_fails: bool) -> None:
    for call in range(5, calls_of_a_run(2500) + 1):
        files = MemoryFiles(seed=call)
        files.fail_from, files.fail_until = call, call + length
        files.truncate_fails = truncate_fails
        scenario = Scenario(files)
        scenario.run()
        files.heal()
        scenario.wait(2 * SECOND)
        assert scenario.engine.health is None
        before = {
            (topic, name): {frame.body for frame in scenario.drain(topic, name)}
            for topic in TOPICS
            for name in CHANNELS
        }
        for (topic, name), bodies in before.items():
            assert bodies == scenario.expected(topic, name), f"call {call}"
        scenario.engine.close(scenario.now)
        files.kill()
        scenario.open()
        scenario.check_survivors()


def test_failing_fsync_fails_its_publishers() -> None:
    files = MemoryFiles()
    scenario = Scenario(files, sync_every=1)
    scenario.run()
    files.sync_fails = True
    scenario.publish("first", 2)
    assert len(scenario.refused) == 2
    assert "Input/output error" in str(scenario.engine.health)
    files.sync_fails = False
    scenario.publish("first", 2)
    assert scenario.engine.health is None
    bodies = {frame.body for frame in scenario.drain("first", "b")}
    assert bodies == scenario.expected("first", "b")
