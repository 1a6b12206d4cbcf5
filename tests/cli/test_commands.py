"""``nsq`` as a process: what it prints, and what it tells the shell."""

import base64
import functools
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_nsq.proto.frames import RESPONSE, encode_frame
from pyspark_nsq.testing import LocalNsq

Run = Callable[..., subprocess.CompletedProcess[str]]
DONE, FAILED, WRONG_USE, TIMED_OUT = range(4)
INTERRUPTED = 130
# What nsqd answers to IDENTIFY, as far as it is needed.
FACTS = {"max_rdy_count": 2500, "msg_timeout": 60_000, "max_msg_timeout": 900_000}


def wait_until(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not look():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_lines_go_in_and_come_out(nsq_command: Run, cluster: LocalNsq) -> None:
    published = nsq_command("pub", "lines", "--json", stdin="one\n\ntwo\nthree")
    assert published.returncode == DONE
    assert objects(published.stdout)[0] | {"seconds": 0} == {"messages": 3, "bytes": 11, "seconds": 0}
    read = nsq_command("tail", "lines", "--channel", "c", "-n", "3", "-t", "30s")
    assert (read.returncode, sorted(read.stdout.split()), read.stderr) == (DONE, ["one", "three", "two"], "")
    assert cluster.channel_stats("lines", "c").messages == 3
    cluster.wait_until_finished("lines", "c")


def test_what_is_not_asked_for_is_given_back(nsq_command: Run, cluster: LocalNsq) -> None:
    cluster.publish("surplus", [f"message {number}" for number in range(100)])
    cluster.create_channel("surplus", "c")
    assert len(nsq_command("tail", "surplus", "-c", "c", "-n", "3").stdout.splitlines()) == 3
    counts = cluster.channel_stats("surplus", "c")
    assert (counts.in_flight, counts.timed_out) == (0, 0)
    assert counts.unfinished == 97


def test_a_look_takes_nothing_from_others(nsq_command: Run, cluster: LocalNsq) -> None:
    cluster.create_channel("watched", "work")
    cluster.publish("watched", ["before"])
    looked = nsq_command("tail", "watched", "-n", "1", "-t", "500ms")
    assert (looked.returncode, looked.stdout) == (TIMED_OUT, "")
    assert cluster.channel_stats("watched", "work").depth == 1
    wait_until(lambda: set(cluster.stats("watched").channels) == {"work"}, "the channel of tail is gone")


@pytest.fixture(params=["ours", "go"])
def any_nsq(request: pytest.FixtureRequest, make_nsq: Callable[..., LocalNsq]) -> LocalNsq:
    """A broker of its own for the test, of either kind."""
    if request.param == "ours":
        return make_nsq()
    folder: Path = request.getfixturevalue("go_nsq")
    return make_nsq(nsqd_command=[str(folder / "nsqd")], nsqlookupd_command=[str(folder / "nsqlookupd")])


def test_a_look_takes_nothing_from_the_channel_that_comes_first(nsq_command: Run, any_nsq: LocalNsq) -> None:
    """It gets all that the topic has kept, and one of tail's own would end with it."""
    any_nsq.publish("kept", ["one", "two"])
    place = ("-l", any_nsq.lookupd_http_address)
    looked = nsq_command("tail", "kept", "-n", "1", "-t", "20s", *place)
    assert (looked.returncode, looked.stdout) == (FAILED, "")
    assert "topic 'kept' has no channel and keeps its messages for the first one (2 so far)" in looked.stderr
    assert "--channel" in looked.stderr
    assert (any_nsq.stats("kept").depth, any_nsq.stats("kept").channels) == (2, {})
    taken = nsq_command("tail", "kept", "-c", "c", "-n", "2", "-t", "30s", *place)
    assert sorted(taken.stdout.split()) == ["one", "two"]


def test_a_look_shows_what_comes_to_a_topic_without_channels(
    command: list[str], variables: dict[str, str], cluster: LocalNsq
) -> None:
    cluster.nsqds[0]._post("/topic/create?topic=young")
    arguments = [*command, "tail", "young", "-n", "1", "-t", "50s"]
    with subprocess.Popen(arguments, env=variables, stdout=subprocess.PIPE, text=True) as reader:
        wait_until(lambda: len(cluster.stats("young").channels) == 1, "tail has subscribed")
        cluster.nsqds[0].publish("young", ["hello"])
        assert reader.stdout is not None
        assert reader.stdout.read() == "hello\n"
    assert reader.returncode == DONE


def test_a_look_needs_to_ask_nsqd_first(nsq_command: Run, cluster: LocalNsq) -> None:
    nsqd = cluster.nsqds[0]
    nsqd.publish("named", ["before"])
    place = ("-d", nsqd.tcp_address, "-t", "100ms")
    looked = nsq_command("tail", "named", *place)
    assert (looked.returncode, looked.stdout) == (WRONG_USE, "")
    assert "nsqdHttpAddresses" in looked.stderr
    assert nsqd.stats("named").depth == 1
    nsqd.create_channel("named", "work")
    looked = nsq_command("tail", "named", *place, "-o", f"nsqdHttpAddresses={nsqd.http_address}")
    assert (looked.returncode, looked.stdout, looked.stderr) == (DONE, "", "")


def test_json_tells_all_about_a_message(nsq_command: Run, cluster: LocalNsq) -> None:
    cluster.nsqds[1].publish("forms", ["t\u00e4xt", b"\xff\x00"])
    read = nsq_command("tail", "forms", "-c", "c", "-n", "2", "-t", "30s", "--json")
    first, second = objects(read.stdout)
    assert first.keys() == {"topic", "nsqd", "id", "timestamp", "attempts", "body"}
    assert (first["topic"], first["nsqd"], first["attempts"]) == ("forms", cluster.nsqds[1].tcp_address, 1)
    assert first["body"] == "t\u00e4xt"
    assert base64.b64decode(str(second["body_base64"])) == b"\xff\x00"


def test_several_topics_at_once(nsq_command: Run, cluster: LocalNsq) -> None:
    cluster.publish("left", ["l"])
    cluster.publish("right", ["r"])
    read = nsq_command("tail", "left", "right", "-c", "c", "-n", "2", "-t", "30s", "--json")
    assert {(each["topic"], each["body"]) for each in objects(read.stdout)} == {("left", "l"), ("right", "r")}


def test_a_topic_that_comes_later_is_found(command: list[str], variables: dict[str, str], cluster: LocalNsq) -> None:
    arguments = ["tail", "later", "-c", "c", "-n", "1", "-t", "50s", "-o", "lookupdPollInterval=100ms"]
    with subprocess.Popen([*command, *arguments], env=variables, stdout=subprocess.PIPE, text=True) as reader:
        cluster.publish("later", ["at last"])
        assert reader.stdout is not None
        assert reader.stdout.read() == "at last\n"
    assert reader.returncode == DONE


def test_a_lost_connection_is_made_again(
    command: list[str], variables: dict[str, str], make_nsq: Callable[[], LocalNsq]
) -> None:
    nsq = make_nsq()
    nsq.create_channel("steady", "c")
    arguments = ["tail", "steady", "-c", "c", "-d", nsq.nsqds[0].tcp_address]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        nsq.publish("steady", ["before"])
        assert reader.stdout.readline() == "before\n"
        nsq.nsqds[0].kill()
        assert "the connection broke" in reader.stderr.readline()
        nsq.nsqds[0].start()
        nsq.publish("steady", ["after"])
        # What was finished just before a crash may come again.
        assert next(line for line in reader.stdout if line != "before\n") == "after\n"
        reader.send_signal(signal.SIGINT)
    assert reader.returncode == DONE


@pytest.mark.parametrize("how", ["files", "a folder's worth", "arguments"])
def test_files_and_arguments(nsq_command: Run, tmp_path: Path, how: str) -> None:
    topic = "from-" + how.partition(" ")[0]
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("3")
    arguments = {
        "files": (tmp_path / "a", tmp_path / "b"),
        "a folder's worth": ("--whole", tmp_path / "a", tmp_path / "b"),
        "arguments": ("-m", "1\n2\n", "-m", "3"),
    }[how]
    expected = {"files": ["1", "2", "3"]}.get(how, ["1\n2\n", "3"])
    assert nsq_command("pub", topic, *arguments).returncode == DONE
    read = nsq_command("tail", topic, "-c", "c", "-n", str(len(expected)), "-t", "30s", "--json")
    assert sorted(str(each["body"]) for each in objects(read.stdout)) == expected


def test_a_message_may_be_any_bytes(nsq_command: Run, cluster: LocalNsq) -> None:
    assert nsq_command("pub", "bytes", "-m", os.fsdecode(b"\xff\x01")).returncode == DONE
    read = nsq_command("tail", "bytes", "-c", "c", "-n", "1", "-t", "30s", "--json")
    assert base64.b64decode(str(objects(read.stdout)[0]["body_base64"])) == b"\xff\x01"


def test_batches_go_to_the_nsqds_in_turn(nsq_command: Run, cluster: LocalNsq) -> None:
    assert nsq_command("pub", "spread", "--batch", "2", stdin="1\n2\n3\n4\n").returncode == DONE
    assert [nsqd.stats("spread").messages for nsqd in cluster.nsqds] == [2, 2]


def has_messages(cluster: LocalNsq, count: int) -> bool:
    return cluster.stats("live").messages == count


def test_each_line_is_published_as_soon_as_it_is_there(
    command: list[str], variables: dict[str, str], cluster: LocalNsq
) -> None:
    with subprocess.Popen([*command, "pub", "live"], env=variables, stdin=subprocess.PIPE, text=True) as publisher:
        assert publisher.stdin is not None
        for count in (1, 2):
            publisher.stdin.write("line\n")
            publisher.stdin.flush()
            wait_until(functools.partial(has_messages, cluster, count), "the line is published")
    assert publisher.returncode == DONE


def test_deferred_messages_wait(nsq_command: Run, cluster: LocalNsq) -> None:
    cluster.create_channel("deferred", "c")
    assert nsq_command("pub", "deferred", "-m", "a", "-m", "b", "--defer", "1h").returncode == DONE
    assert cluster.channel_stats("deferred", "c").deferred == 2


def test_who_reads_our_output_may_stop(command: list[str], variables: dict[str, str], cluster: LocalNsq) -> None:
    cluster.publish("plenty", ["line " * 200] * 5000)
    arguments = [*command, "tail", "plenty", "-c", "c"]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, env=variables, stdout=pipe, stderr=pipe, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        reader.stdout.readline()
        reader.stdout.close()
        assert reader.stderr.read() == ""
    assert reader.returncode == DONE


def test_topics_are_listed(nsq_command: Run, cluster: LocalNsq) -> None:
    cluster.publish("listed", ["one", "two"])
    cluster.create_channel("listed", "c")
    assert "listed" in nsq_command("topics").stdout.splitlines()
    long = nsq_command("topics", "listed", "--long").stdout.splitlines()
    assert [line.split() for line in long] == [
        ["topic", "channels", "messages", "waiting", "unfinished", "nsqds"],
        ["listed", "c", "2", "0", "2", "2"],
    ]
    (told,) = json.loads(nsq_command("topics", "listed", "--json").stdout)
    assert (told["topic"], told["messages"], told["channels"]["c"]["depth"]) == ("listed", 2, 2)


def test_stat_counts_and_compares(nsq_command: Run, cluster: LocalNsq) -> None:
    cluster.publish("counted", ["one", "two"])
    cluster.create_channel("counted", "c")
    first, second = objects(nsq_command("stat", "counted", "--json", "-n", "2", "--every", "100ms").stdout)
    assert len(first["nsqds"]) == 2
    (channel,) = first["channels"]
    assert (channel["topic"], channel["channel"], channel["depth"], channel["in_rate"]) == ("counted", "c", 2, None)
    assert second["channels"][0]["in_rate"] == 0
    table = nsq_command("stat", "counted", "--once", "-d", cluster.nsqds[0].http_address).stdout.splitlines()
    assert table[1].split()[:3] == ["counted", "c", "1"]


@pytest.mark.parametrize("form", [("--once",), ("--json", "-n", "2", "--every", "10ms")], ids=" ".join)
def test_stat_tells_that_somebody_did_not_answer(nsq_command: Run, cluster: LocalNsq, form: tuple[str, ...]) -> None:
    cluster.publish("seen", ["one", "two"])
    place = ("-d", cluster.nsqds[0].http_address, "-d", "127.0.0.1:1")
    told = nsq_command("stat", "seen", *form, *place)
    assert told.returncode == FAILED
    assert "seen" in told.stdout
    assert "127.0.0.1:1: " in told.stderr


WITHOUT_RICH = """
import sys
sys.modules["rich"] = None
from pyspark_nsq.cli.main import main
sys.exit(main())
"""


@pytest.mark.parametrize("has_rich", [True, False], ids=["rich", "plain"])
def test_stat_on_a_terminal_lives_until_ctrl_c(command: list[str], variables: dict[str, str], has_rich: bool) -> None:
    nsq = command if has_rich else [sys.executable, "-c", WITHOUT_RICH]
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen([*nsq, "stat"], env=variables, stdin=theirs, stdout=theirs, stderr=theirs) as live:
            shown = b""
            while b"in flight" not in shown:
                assert b"nsq: " not in shown, shown
                shown += os.read(ours, 65536)
            assert (b"\x1b[" in shown) is has_rich
            live.send_signal(signal.SIGINT)
            assert live.wait(30) == DONE
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("tail", "x", "-c", "c", "-d", "127.0.0.1:1"), FAILED, "127.0.0.1:1"),
        (("tail", "x", "-d", "127.0.0.1:2", "-o", "nsqdHttpAddresses=127.0.0.1:1"), FAILED, "127.0.0.1:1"),
        (("tail", "x", "-l", "127.0.0.1:1"), FAILED, "127.0.0.1:1"),
        (("pub", "x", "-m", "a", "-d", "127.0.0.1:1", "-o", "retries=0"), FAILED, "127.0.0.1:1"),
        (("stat", "--once", "-l", "127.0.0.1:1"), FAILED, "127.0.0.1:1"),
        (("topics", "-d", "127.0.0.1:1"), FAILED, "127.0.0.1:1"),
        (("topics", "nonesuch"), FAILED, "nonesuch"),
        (("pub", "x", "nonesuch"), FAILED, "nonesuch"),
        (("tail", "x", "-n", "0"), WRONG_USE, "'0'"),
        (("tail", "bad name"), WRONG_USE, "bad name"),
        (("tail", "x", "-o", "tls"), WRONG_USE, "NAME=VALUE"),
        (("tail", "x", "-o", "noSuchOption=1"), WRONG_USE, "nosuchoption"),
        (("pub", "x", "-m", "a", "file"), WRONG_USE, "--message"),
        (("pub", "x", "--rate", "fast"), WRONG_USE, "fast"),
        ((), WRONG_USE, "COMMAND"),
    ],
)
def test_the_shell_is_told(nsq_command: Run, arguments: tuple[str, ...], code: int, text: str) -> None:
    ran = nsq_command(*arguments)
    assert ran.returncode == code
    assert text in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stderr


def wait_for_question(lookupd: socket.socket) -> socket.socket:
    """The connection on which it was asked. Passes over those who look for somebody else, who had this port before."""
    while True:
        peer, _ = lookupd.accept()
        if peer.makefile("rb").readline().startswith(b"GET "):
            return peer


def test_ctrl_c_ends_a_question_that_nobody_answers(command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as lookupd:
        arguments = ["topics", "-l", f"127.0.0.1:{lookupd.getsockname()[1]}"]
        with subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True) as asking:
            with wait_for_question(lookupd):  # a connection that ends would be an answer
                asking.send_signal(signal.SIGINT)
                assert asking.wait(60) == INTERRUPTED
            assert asking.stderr is not None
            assert asking.stderr.read() == ""


def test_a_second_ctrl_c_does_not_wait_for_nsqd(command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nsqd:
        arguments = ["tail", "quiet", "-c", "c", "-d", f"127.0.0.1:{nsqd.getsockname()[1]}"]
        with subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True) as reader:
            peer, _ = nsqd.accept()
            with peer, peer.makefile("rb") as received:
                assert received.readline() == b"  V2IDENTIFY\n"
                received.read(int.from_bytes(received.read(4), "big"))
                peer.sendall(encode_frame(RESPONSE, json.dumps(FACTS).encode()))
                assert next(line for line in received if line.startswith(b"RDY"))
                reader.send_signal(signal.SIGINT)
                assert next(line for line in received if line == b"CLS\n")
                reader.send_signal(signal.SIGINT)
                assert reader.wait(60) == INTERRUPTED
            assert reader.stderr is not None
            assert reader.stderr.read() == ""


def test_a_secret_is_not_shown(nsq_command: Run) -> None:
    ran = nsq_command("tail", "x", "-o", "authSecret=hunter2", "-o", "authSecretFile=/nonesuch", "-n", "1")
    assert ran.returncode == WRONG_USE
    assert "hunter2" not in ran.stdout + ran.stderr


@pytest.mark.parametrize("name", ["tail", "pub", "stat", "topics"])
def test_help_has_examples(nsq_command: Run, name: str) -> None:
    assert f"nsq {name} " in nsq_command(name, "--help").stdout.partition("examples:")[2]
    assert f"\n    {name} " in nsq_command("--help").stdout


def test_nothing_heavy_is_loaded() -> None:
    script = """
import sys
from pyspark_nsq.cli import main, pub, reading, stat, tail, topics
import pyspark_nsq.connector.producer
heavy = {"pyspark", "py4j", "pyarrow", "grpc", "gevent", "numpy", "pandas", "rich"}
sys.exit(" ".join(heavy & {name.partition(".")[0] for name in sys.modules}) or 0)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
