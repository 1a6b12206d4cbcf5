import json
from threading import Event, Thread

import pytest
from simulation.memory_files import MemoryFiles
from simulation.small_broker import NOW, SECOND, Broker

from pyspark_nsq.broker.metadata import MetadataError, MetadataWrite, TopicMetadata, entry, load, save


def loaded(text: str) -> tuple[dict[str, TopicMetadata], list[str]]:
    files = MemoryFiles()
    files.replace_file("data/nsqd.dat", text.encode())
    warnings: list[str] = []
    return load(files, "data", warnings.append), warnings


def saved(topics: dict[str, TopicMetadata]) -> bytes:
    files = MemoryFiles()
    save(files, "data", [entry(name, topic) for name, topic in topics.items()], "1.3.0")
    data = files.read_file("data/nsqd.dat")
    assert data is not None
    return data


def test_bytes_are_as_go_writes_them() -> None:
    assert saved({}) == b'{"topics":null,"version":"1.3.0"}'
    assert saved({"T": TopicMetadata()}) == (
        b'{"topics":[{"name":"T","paused":false,"channels":null}],"version":"1.3.0"}'
    )
    assert saved({"T": TopicMetadata(True, {"D": True, "C": False})}) == (
        b'{"topics":[{"name":"T","paused":true,"channels":[{"name":"C","paused":false},{"name":"D","paused":true}]}],'
        b'"version":"1.3.0"}'
    )


def test_what_is_saved_is_loaded() -> None:
    topics = {"a": TopicMetadata(True, {"x": True, "y": False}), "b": TopicMetadata()}
    assert loaded(saved(topics).decode())[0] == topics


def test_missing_file_is_a_fresh_start() -> None:
    assert load(MemoryFiles(), "data", print) == {}


@pytest.mark.parametrize(
    "text", ["null", "{}", '{"topics":null}', '{"topics":[],"unknown":{"a":1}}', ' {"version":"9"} ', '{"topics":[]}']
)
def test_sparse_files_are_accepted(text: str) -> None:
    assert loaded(text)[0] == {}


def test_missing_keys_are_zero() -> None:
    topics, _ = loaded('{"topics":[{"name":"t","channels":[{"name":"c"},{"name":"d","paused":null}]}]}')
    assert topics == {"t": TopicMetadata(False, {"c": False, "d": False})}


def test_invalid_names_are_skipped_with_a_warning() -> None:
    topics, warnings = loaded(
        json.dumps({"topics": [{"name": "a b"}, {"name": "ok", "channels": [{"name": "!"}]}, {}]})
    )
    assert topics == {"ok": TopicMetadata()}
    assert warnings == [
        "skipping creation of invalid topic a b",
        "skipping creation of invalid channel !",
        "skipping creation of invalid topic ",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '"text"',
        '{"topics":{}}',
        '{"topics":[1]}',
        '{"topics":[{"name":1}]}',
        "[" * 100_000,
        '{"topics":[{"name":"t","paused":1}]}',
        '{"topics":[{"name":"t","channels":[[]]}]}',
    ],
)
def test_what_cannot_be_understood_is_an_error_that_names_the_file(text: str) -> None:
    with pytest.raises(MetadataError, match=r"failed to parse metadata in data/nsqd\.dat - "):
        loaded(text)


def test_ephemeral_topics_have_ended_with_their_process() -> None:
    """No nsqd writes them; one that is there must not keep it from starting."""
    found, warnings = loaded('{"topics":[{"name":"t#ephemeral","channels":[{"name":"c"}]},{"name":"u"}]}')
    assert found == {"u": TopicMetadata()}
    assert warnings == []


def test_each_change_of_a_topic_is_in_the_next_file() -> None:
    broker = Broker()
    topic, channel = broker.engine.topic("t", NOW), broker.channel("t", "c")

    def now_saved() -> TopicMetadata:
        broker.engine.save_metadata()
        return load(broker.files, "data", print)["t"]

    assert now_saved() == TopicMetadata(False, {"c": False})
    channel.pause(NOW)
    assert now_saved() == TopicMetadata(False, {"c": True})
    topic.pause(NOW)
    assert now_saved() == TopicMetadata(True, {"c": True})
    topic.channel("d", NOW)
    assert now_saved() == TopicMetadata(True, {"c": True, "d": False})
    broker.engine.close(NOW)
    broker.open()
    assert now_saved() == TopicMetadata(True, {"c": True, "d": False})
    broker.engine.topics["t"].delete_channel("c", NOW)
    broker.engine.topics["t"].unpause(NOW)
    assert now_saved() == TopicMetadata(False, {"d": False})


def test_what_was_created_is_written_elsewhere_and_not_over_what_is_newer() -> None:
    broker = Broker()
    channel = broker.channel("t", "c")
    broker.wait(SECOND)
    broker.channel("t", "d")
    broker.files.replaced_paths.clear()
    broker.now += SECOND
    broker.engine.tick(broker.now)
    assert broker.files.replaced_paths == []
    job = broker.engine.next_sync(broker.now)
    assert job is not None
    broker.channel("t", "e")
    broker.now += SECOND
    broker.engine.tick(broker.now)
    broker.engine.take_ready()
    assert broker.engine.next_deadline(broker.now) > broker.now, "nothing is to be done before the job is"
    channel.pause(broker.now)
    written = {"c": True, "d": False, "e": False}
    for step in (job.run, lambda: broker.engine.synced(job, broker.now), lambda: broker.wait(SECOND)):
        assert load(broker.files, "data", print)["t"].channels == written
        step()
    assert load(broker.files, "data", print)["t"].channels == written
    assert broker.files.replaced_paths == ["data/nsqd.dat"]


def test_what_cannot_be_written_elsewhere_is_tried_again() -> None:
    broker = Broker()
    broker.channel("t", "c")
    broker.files.fail_from = broker.files.calls
    for _ in range(30):
        broker.wait(SECOND // 10)
    assert len([line for line in broker.log if "failed to persist metadata" in line]) == 1
    broker.files.heal()
    broker.wait(SECOND)
    assert load(broker.files, "data", print)["t"].channels == {"c": False}


def test_what_is_written_elsewhere_when_the_engine_is_closed_is_written_by_that() -> None:
    broker = Broker()
    broker.channel("t", "c")
    broker.engine.tick(broker.now + SECOND)
    broker.engine.close(broker.now + SECOND)
    assert load(broker.files, "data", print)["t"].channels == {"c": False}
    broker.open()
    broker.channel("t", "d")
    broker.engine.tick(broker.now + SECOND)
    broker.files.fail_from = broker.files.calls
    broker.engine.close(broker.now + SECOND)
    assert [line for line in broker.log if "failed to persist metadata" in line]


class SlowFiles(MemoryFiles):
    """Whose disk takes as long as the test likes."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = Event(), Event()

    def replace_file(self, path: str, data: bytes) -> None:
        self.begun.set()
        assert self.go_on.wait(30)
        super().replace_file(path, data)


def test_cancelling_waits_for_what_has_begun() -> None:
    files = SlowFiles()
    write = MetadataWrite(files, "data", [], "1")
    found: list[bool] = []

    def cancel() -> None:
        write.cancel()
        found.append("data/nsqd.dat" in files.entries)

    threads = [Thread(target=write.run), Thread(target=cancel)]
    threads[0].start()
    assert files.begun.wait(30)
    threads[1].start()
    files.go_on.set()
    for thread in threads:
        thread.join(30)
    assert found == [True]
