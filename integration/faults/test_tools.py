"""What the faults stand on: a report that cannot look better than it is, gates that hold, liars that are heard."""

import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from rig.daemons import Implementation, Lookupd, Nsqd, own_brokers, wait_until

from faults import crash, lies, network
from faults.crash import duplicates_allowed, named
from faults.driver import Driver
from faults.gates import BEFORE_FIN, FIN_SENT, HALF_WAY, MOMENTS, RECEIVED, Gates
from faults.held_source import PLANNER_NOTE
from faults.lying_nsqd import SINK_LIES, SOURCE_LIES, Liar
from faults.queries import FILES, NSQ, SINKS, TABLE, Order, insert_batch
from faults.report import Row, append, load, merged, table, write
from faults.scenario import Context, Scenario, Skipped, found, matching, run
from faults.sinks import committed_files
from faults.subject import Subject, finish_all
from faults.victims import DRIVER, NSQDS, PLANNER, RECEIVER, VICTIMS, WORKER
from pyspark_nsq.connector.executors import started_at
from pyspark_nsq.proto import commands

ROW = Row("kill -9: sink written", "receiver", "go", 1, 250, 0, 7, True, 1.5, 3, "crash:receiver:sink written:files@go")


def test_rows_of_several_writers_make_one_report(tmp_path: Path) -> None:
    writers = [threading.Thread(target=append, args=(replace(ROW, seed=seed), tmp_path)) for seed in range(20)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(row.seed for row in load(tmp_path)) == list(range(20))
    write(tmp_path, "Title", {"seed": 3})
    text = (tmp_path / "report.md").read_text()
    assert "| kill -9: sink written | receiver | go | 20 | 5,000 | 0 | 140 | yes | 30 | ok |" in text
    content = json.loads((tmp_path / "report.json").read_text())
    assert [row["passed"] for row in content["rows"]] == [True] * 20


@pytest.mark.parametrize(
    ("change", "passed"),
    [
        ({}, True),
        ({"lost": 1}, False),
        ({"failure": "it hung"}, False),
        ({"duplicates_allowed": False}, False),
        ({"duplicates_allowed": False, "duplicated": 0}, True),
    ],
)
def test_when_a_row_has_passed(change: dict[str, object], passed: bool) -> None:
    row = replace(ROW, **change)  # type: ignore[arg-type]
    assert row.passed is passed
    assert ("FAILED" in table([row])) is not passed


def test_a_failed_run_does_not_disappear_among_good_ones() -> None:
    rows = merged([ROW, ROW, replace(ROW, lost=2), ROW])
    assert [(row.runs, row.lost) for row in rows] == [(3, 0), (1, 2)]


def test_an_exception_is_a_failed_row_that_can_be_repeated(tmp_path: Path) -> None:
    def fail(_context: Context) -> Row:
        raise RuntimeError("oh")

    (row,) = run(Scenario("some name", fail, "fault", "victim"), Context(own_brokers(), tmp_path, 77))
    assert not row.passed
    assert (row.name, row.seed, row.failure) == ("some name@ours", 77, "RuntimeError: oh")


def test_what_repeats_a_row_is_said_in_full() -> None:
    assert ROW.command == "./run faults --only 'crash:receiver:sink written:files@go' --seed 3"
    assert replace(ROW, is_long=True).command.endswith(" --seed 3 --long")


def test_what_was_left_by_a_failed_scenario_is_ended_before_the_next_one(tmp_path: Path) -> None:
    ended: list[str] = []

    def leave(context: Context) -> Row:
        context.shared["spark"] = "queries, and gates that are closed"
        context.ending.callback(ended.append, "spark")
        raise RuntimeError("oh")

    context = Context(own_brokers(), tmp_path, 77)
    run(Scenario("some name", leave, "fault", "victim"), context)
    assert ended == ["spark"]
    assert not context.shared


def test_a_scenario_that_tells_nothing_has_failed(tmp_path: Path) -> None:
    (row,) = run(Scenario("some name", lambda _context: [], "fault", "victim"), Context(own_brokers(), tmp_path, 77))
    assert row.failure == "AssertionError: it told nothing"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), pytest.fail.Exception("Timeout"), Skipped("no root")])
def test_who_goes_through_leaves_nothing_behind(tmp_path: Path, error: BaseException) -> None:
    ended: list[str] = []

    def leave(context: Context) -> Row:
        context.ending.callback(ended.append, "spark")
        raise error

    with pytest.raises(type(error)):
        run(Scenario("some name", leave, "fault", "victim"), Context(own_brokers(), tmp_path, 77))
    assert ended == ["spark"]


def test_a_scenario_that_hangs_fails(tmp_path: Path) -> None:
    def hang(_context: Context) -> Row:
        threading.Event().wait(60)
        return ROW

    former, (former_s, _) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    (row,) = run(Scenario("some name", hang, "fault", "victim"), Context(own_brokers(), tmp_path, 1, limit_s=0.1))
    assert row.failure == "TooLongError: it was not done after 0.1 s"
    # That of the test is as it was, where there is one.
    assert signal.getsignal(signal.SIGALRM) is former
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    assert bool(left_s) == bool(former_s)
    assert left_s <= former_s


def test_a_test_ends_after_its_scenario_was_given_up(run_scenario: object, request: pytest.FixtureRequest) -> None:
    limits = [mark.args[0] for mark in request.node.iter_markers("timeout")]
    assert limits == [360.0]


@pytest.mark.parametrize("make", ["ours", "go"])
def test_a_daemon_waits_for_its_port_when_it_is_started_again(make: str, find_go: Callable[[], Implementation]) -> None:
    lookupd = Lookupd(find_go() if make == "go" else own_brokers())
    try:
        lookupd.kill()
        with ThreadPoolExecutor() as other:
            with socket.create_server(("127.0.0.1", lookupd.ports["TCP"])):
                restarting = other.submit(lookupd.restart)
                wait_until(lambda: "in use" in "".join(lookupd.output), "a port that is taken")
            restarting.result(120)
        assert lookupd.producers("t") == []
    finally:
        lookupd.kill()


def test_a_daemon_that_cannot_start_is_not_waited_for(tmp_path: Path) -> None:
    nsqd = Nsqd(own_brokers(), tmp_path / "data")
    nsqd.kill()
    (tmp_path / "data" / "nsqd.dat").write_text("no JSON")
    with pytest.raises(AssertionError, match="did not start"):
        nsqd.restart()
    assert sum("no JSON" in line or "nsqd.dat" in line for line in nsqd.output) >= 1


@pytest.mark.parametrize(
    "scenario",
    [
        crash.scenario(RECEIVER, [crash.Case(RECEIVED, FILES), crash.Case(HALF_WAY, NSQ)]),
        lies.scenario("source", SOURCE_LIES[:2]),
        lies.scenario("sink", SINK_LIES),
        network.scenario(network.SINK_NSQD, network.FAULTS),
    ],
    ids=lambda scenario: scenario.name,
)
def test_what_ran_together_can_be_repeated_by_its_name(scenario: Scenario) -> None:
    (found,) = matching(scenario.name)
    assert found.name == scenario.name


@pytest.mark.parametrize("name", ["crash:receiver", "lies:source", "lies:source:truth", "network:sink - nsqd:rain"])
def test_no_scenario_is_made_up(name: str) -> None:
    assert not matching(name)


def test_the_matrix_is_complete() -> None:
    assert len(found()) >= 24
    for victim in VICTIMS:
        for moment in MOMENTS:
            for sink in SINKS:
                assert named(f"crash:{victim}:{moment}:{sink}")
    assert named("crash:nobody:never:files") is None


def test_duplicates_are_allowed_only_where_they_cannot_be_helped() -> None:
    assert duplicates_allowed(DRIVER, BEFORE_FIN, FILES)
    assert duplicates_allowed(RECEIVER, HALF_WAY, FILES)
    assert duplicates_allowed(NSQDS, HALF_WAY, NSQ)
    assert not any(duplicates_allowed(victim, FIN_SENT, sink) for victim in VICTIMS for sink in SINKS)
    assert not any(duplicates_allowed(NSQDS, moment, FILES) for moment in MOMENTS)


@pytest.mark.parametrize(
    ("victim", "moment", "sink", "ends_allowed"),
    [
        *((victim, HALF_WAY, NSQ, 0) for victim in VICTIMS if victim not in (PLANNER, WORKER)),
        *((PLANNER, moment, TABLE, 1) for moment in MOMENTS),
        *((WORKER, moment, NSQ, 1) for moment in MOMENTS),
        *((WORKER, moment, sink, 0) for moment in MOMENTS for sink in (FILES, TABLE)),
    ],
)
def test_a_query_that_ends_where_it_should_live_on_fails_its_row(
    victim: str, moment: str, sink: str, ends_allowed: int
) -> None:
    subject: Any = SimpleNamespace(
        cluster=SimpleNamespace(impl=own_brokers()), published=[], lost=lambda: 0, duplicated=lambda: 0, failure=""
    )
    subject.complaint = "the query failed"
    for ends in range(3):
        subject.failures = ["Connection reset"] * ends
        row = crash.to_row(victim, crash.Case(moment, sink), subject, 1.0, "")
        assert row.passed == (ends <= ends_allowed)


@pytest.mark.parametrize(
    ("other", "failure"),
    [
        (("1", "a", "orders 2"), "2 messages of batch 3 were not all different ones"),
        (("2", "a", "orders 2"), ""),
        (("1", "b", "orders 2"), ""),
        (("1", "a", "a lie"), ""),
    ],
)
def test_what_a_batch_has_twice_is_seen(tmp_path: Path, other: tuple[str, str, str], failure: str) -> None:
    subject: Any = SimpleNamespace(
        order=Order("query", str(tmp_path), TABLE, str(tmp_path / "table"), {}, {}),
        is_complete=lambda: True,
        foreign=lambda: 0,
        failure="",
    )
    rows = [SimpleNamespace(id=id_, nsqd=nsqd, body=body) for id_, nsqd, body in (("1", "a", "orders 1"), other)]
    frame: Any = SimpleNamespace(select=lambda *_columns: SimpleNamespace(collect=lambda: rows))
    insert_batch(Path(subject.order.place), subject.order.gates, "orders")(frame, 3)
    driver: Any = SimpleNamespace(failures=lambda: {"query": ""})
    finish_all(driver, [subject])
    assert subject.failure == failure


def test_a_gate_holds_until_it_is_opened(tmp_path: Path) -> None:
    gates = Gates(tmp_path)
    gates.wait(RECEIVED)
    gates.close(RECEIVED, "12")
    assert gates.text(RECEIVED) == "12"
    visitor = threading.Thread(target=gates.wait, args=(RECEIVED,))
    visitor.start()
    wait_until(lambda: gates.arrived(RECEIVED) == [psutil.Process().pid], "the visitor")
    assert visitor.is_alive()
    gates.open(RECEIVED)
    visitor.join(10)
    assert not visitor.is_alive()


def test_nobody_watches_a_folder_in_vain_for_ever(tmp_path: Path) -> None:
    """However the wait ends, the watch does."""

    def watches() -> int:
        return sum(os.readlink(each).endswith("inotify") for each in Path("/proc/self/fd").iterdir() if each.exists())

    subject = Subject.__new__(Subject)
    subject.order = Order("query", str(tmp_path), FILES, str(tmp_path), {}, {})
    with pytest.raises(FileNotFoundError), subject.watch_file_log():
        pass
    (tmp_path / "_spark_metadata").mkdir()
    with pytest.raises(AssertionError), subject.watch_file_log() as watch:
        assert watch.wait("0", 0.01)
    assert watches() == 0


def test_a_process_that_has_the_number_of_a_dead_planner_is_not_taken_for_it(tmp_path: Path) -> None:
    order = Order("query", str(tmp_path), FILES, "", {}, {})
    assert Driver.planner(order) is None
    started = started_at(os.getpid())
    assert started
    order.gates.note(PLANNER_NOTE, f"{os.getpid()} {started}")
    assert Driver.planner(order) == psutil.Process()
    order.gates.note(PLANNER_NOTE, f"{os.getpid()} {started - 1}")
    assert Driver.planner(order) is None


def test_only_files_that_the_log_names_count(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    entries = [json.dumps({"path": f"file://{tmp_path}/{name}", "action": "add"}) for name in "abc"]
    (log / "8").write_text("v1\n" + entries[0])
    (log / "9.compact").write_text("\n".join(["v1", *entries[:2]]))
    (log / "10").write_text("v1\n" + entries[2])
    (log / ".10.crc").write_bytes(b"\0")
    assert sorted(path.name for path in committed_files(tmp_path)) == ["a", "b", "c"]


def test_a_liar_who_never_had_its_say_is_seen() -> None:
    with closing(Liar(SOURCE_LIES[0])) as liar:
        assert liar.complaint == "the lie was never told"
        with socket.create_connection(liar.address) as sock:
            sock.sendall(b"  V1IDENTIFY\n")
            assert sock.recv(100) == b""
        wait_until(lambda: liar.failures, "what it did not expect")
        assert liar.complaint.startswith("an nsqd was told what it cannot expect: AssertionError(")


def test_a_worker_that_grows_while_lies_are_told_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = {1: 100, 2: lies.MEMORY_MAX + 1}
    running: list[Any] = [SimpleNamespace(pid=2)]
    monkeypatch.setattr(lies, "peak_memory_bytes", lambda pid: grown[pid])
    workers = lies.Workers(SimpleNamespace(workers=lambda: running))  # type: ignore[arg-type]
    running.clear()
    assert workers.complaint() == "no Python worker was looked at"
    running += [SimpleNamespace(pid=1), SimpleNamespace(pid=2)]
    assert workers.complaint() == ""
    grown[1] = 301 * 2**20
    workers.look()
    # It has ended since.
    running.clear()
    assert workers.complaint() == "a Python worker of all these queries has grown to 301 MiB"


def test_what_a_liar_takes_is_known_at_once() -> None:
    (lie,) = [lie.anew() for lie in SINK_LIES if lie.name == "answers twice"]
    taken = lie.taken
    with closing(Liar(lie)) as liar:
        with socket.create_connection(liar.address) as sock, sock.makefile("rb") as answers:
            sock.sendall(commands.MAGIC_V2 + commands.identify({}) + commands.mpub("t", [b"one", b"two"]))
            for _ in range(3):
                answers.read(int.from_bytes(answers.read(4), "big"))
        assert taken == {b"one", b"two"}
        assert liar.complaint == ""


def test_each_connection_hears_the_next_form_of_a_lie() -> None:
    (lie,) = [lie for lie in SOURCE_LIES if lie.name == "wrong sizes"]
    heard, told = [], []
    with closing(Liar(lie)) as liar:
        for _ in range(len(lie.forms) + 1):
            with socket.create_connection(liar.address) as sock, sock.makefile("rb") as answers:
                sock.sendall(commands.MAGIC_V2 + commands.identify({}) + commands.sub("t", "c"))
                for _ in range(2):
                    answers.read(int.from_bytes(answers.read(4), "big"))
                heard.append(int.from_bytes(answers.read(4), "big"))
            told.append((liar.has_told_all, liar.complaint))
    assert heard == [0, 3, 2**31 - 1, 2**32 - 1, 2**28, 0]
    assert told == [
        *((False, f"the lie was told in {count} of its 5 forms") for count in range(1, 5)),
        *[(True, "")] * 2,
    ]
