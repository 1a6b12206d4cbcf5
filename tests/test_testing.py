"""The broker for other people's tests: it is there at once, and it is gone afterwards, whatever happened."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
import pytest

from pyspark_nsq.testing import LocalNsq, LocalNsqError, _portions, local_nsq

HOLD_AND_TELL = """
import sys
from pyspark_nsq.testing import local_nsq
with local_nsq(nsqds=2) as nsq:
    print(nsq.lookupd.pid, *(nsqd.pid for nsqd in nsq.nsqds), flush=True)
    sys.stdin.read()
"""


def wait_until(look: Callable[[], bool], what: str) -> None:
    deadline = monotonic() + 30
    while not look():
        assert monotonic() < deadline, f"waited in vain: {what}"
        sleep(0.02)


def pids(nsq: LocalNsq) -> list[int]:
    return [nsq.lookupd.pid, *(nsqd.pid for nsqd in nsq.nsqds)]


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def are_gone(numbers: list[int]) -> bool:
    return all(map(is_gone, numbers))


def test_messages_are_spread_over_the_nsqds_and_counted() -> None:
    with local_nsq(nsqds=2) as nsq:
        assert nsq.publish("orders", ["text", b"bytes", "more", "and more"]) == 4
        nsq.create_channel("orders", "first")
        wait_until(lambda: nsq.channel_stats("orders", "first").depth == 4, "the channel has all messages")
        assert [nsqd.stats("orders").messages for nsqd in nsq.nsqds] == [2, 2]
        assert nsq.stats("orders").nsqds == 2
        assert nsq.stats("nonesuch").messages == 0
        assert nsq.options["lookupdHttpAddresses"] == nsq.lookupd_http_address
        assert len({*nsq.nsqd_tcp_addresses, *nsq.nsqd_http_addresses}) == 4


def test_more_messages_than_one_command_takes() -> None:
    with local_nsq() as nsq:
        assert nsq.publish("many", (f"message {number}" for number in range(12_001))) == 12_001
        assert nsq.publish("large#ephemeral", [b"x" * 1_000_000] * 4) == 4
        assert nsq.stats("many").messages == 12_001


@pytest.mark.parametrize("bodies", ["text", b"bytes", bytearray(b"bytes"), [1], ["text", None]], ids=repr)
def test_what_is_no_list_of_messages_is_refused(bodies: Any) -> None:
    """Text and bytes can be iterated over as well, and would be published character by character."""
    portions = _portions(bodies)
    with pytest.raises(TypeError, match=r"publish\(topic, \[|a message is str or bytes, not (int|NoneType)"):
        next(portions)


def test_it_says_what_is_not_finished() -> None:
    with local_nsq() as nsq:
        nsq.create_channel("orders", "first")
        nsq.publish("orders", ["one"])
        with pytest.raises(LocalNsqError, match=r"orders/first is not finished: .*depth=1"):
            nsq.wait_until_finished("orders", "first", timeout_s=0.1)
        nsq.nsqds[0]._post("/channel/empty?topic=orders&channel=first")
        nsq.wait_until_finished("orders", "first")


def test_an_nsqd_that_was_killed_starts_again_where_it_was() -> None:
    with local_nsq(nsqds=2) as nsq:
        nsqd = nsq.nsqds[0]
        nsqd.create_channel("orders", "first")
        nsqd.publish("orders", ["kept"])
        before = (nsqd.tcp_address, nsqd.http_address, nsqd.pid)
        nsqd.kill()
        assert not nsqd.is_running
        assert nsq.stats("orders").messages == 0
        nsqd.start()
        assert (nsqd.tcp_address, nsqd.http_address) == before[:2]
        assert nsqd.pid != before[2]
        assert nsq.channel_stats("orders", "first").depth == 1


@pytest.mark.parametrize("is_given", [False, True], ids=["a folder of its own", "a folder given"])
def test_data_stays_where_it_was_asked_for(tmp_path: Path, is_given: bool) -> None:
    given = tmp_path / "not there yet" if is_given else None
    with local_nsq(nsqds=2, data_path=given) as nsq:
        folder = nsq.data_path
        nsq.publish("orders", ["one", "two"])
    assert folder.exists() is is_given
    if is_given:
        with local_nsq(nsqds=2, data_path=given) as nsq:
            nsq.create_channel("orders", "late")
            wait_until(lambda: nsq.channel_stats("orders", "late").depth == 2, "the messages are there again")


def test_an_exception_ends_all_of_it() -> None:
    with ExitStack() as running:
        nsq = running.enter_context(local_nsq())
        started, folder = pids(nsq), nsq.data_path
        nsq.nsqds[0].kill()
        running.enter_context(pytest.raises(ZeroDivisionError))
        nsq = running.enter_context(local_nsq())
        started += pids(nsq)
        raise ZeroDivisionError
    assert are_gone(started)
    assert not folder.exists()


def test_the_daemons_die_with_who_started_them() -> None:
    command = [sys.executable, "-c", HOLD_AND_TELL]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        started = [int(pid) for pid in holder.stdout.readline().split()]
        assert len(started) == 3
        holder.kill()
    wait_until(lambda: are_gone(started), "the daemons end")


def test_the_daemons_outlive_the_thread_that_started_them() -> None:
    with ExitStack() as running:
        found: list[LocalNsq] = []
        thread = threading.Thread(target=lambda: found.append(running.enter_context(local_nsq())))
        thread.start()
        thread.join()
        nsq = found[0]
        assert nsq.publish("orders", ["one"]) == 1
        assert all(daemon.is_running for daemon in (nsq.lookupd, *nsq.nsqds))


def test_an_interrupt_from_the_terminal_is_not_for_the_daemons() -> None:
    with local_nsq() as nsq:
        groups = {os.getpgid(pid) for pid in pids(nsq)}
        assert os.getpgid(0) not in groups


def test_other_daemons_can_be_named(go_nsq: Path) -> None:
    nsqd, nsqlookupd = [str(go_nsq / "nsqd")], [str(go_nsq / "nsqlookupd")]
    with local_nsq(nsqd_command=nsqd, nsqlookupd_command=nsqlookupd, nsqd_flags=["--mem-queue-size=0"]) as nsq:
        assert "built w/go" in "\n".join(nsq.nsqds[0].log)
        assert nsq.publish("orders", ["one"]) == 1
        started = pids(nsq)
    assert are_gone(started)


def test_a_daemon_that_does_not_start_says_why() -> None:
    with pytest.raises(LocalNsqError, match="no-such-flag"), local_nsq(nsqd_flags=["--no-such-flag"]):
        pass


@pytest.mark.parametrize(
    "flags",
    [["--log-level=warn"], ["-log-level", "ERROR"], ["--mem-queue-size", "0", "--log-level", "fatal"]],
    ids=" ".join,
)
def test_a_log_without_the_ports_is_refused(flags: list[str]) -> None:
    with pytest.raises(ValueError, match=r"nsqd_flags: .*--log-level=info"), local_nsq(nsqd_flags=flags):
        pass
    with pytest.raises(ValueError, match=r"nsqlookupd_flags: "), local_nsq(nsqlookupd_flags=flags):
        pass


def test_a_log_that_says_more_is_welcome() -> None:
    with local_nsq(nsqd_flags=["--log-level=debug"], nsqlookupd_flags=["--log-level", "info"]) as nsq:
        assert nsq.publish("orders", ["one"]) == 1


def test_a_daemon_that_falls_silent_did_not_start() -> None:
    """For a moment, one that ends has closed its standard error and still runs."""
    script = "import os, sys, time; print('out of luck', file=sys.stderr, flush=True); os.close(2); time.sleep(600)"
    silent = [sys.executable, "-c", script]
    with pytest.raises(LocalNsqError, match="nsqd-0 did not start:\nout of luck"), local_nsq(nsqd_command=silent):
        pass


@pytest.mark.parametrize("number", [0, -1])
def test_there_has_to_be_an_nsqd(number: int) -> None:
    with pytest.raises(ValueError, match="nsqds="), local_nsq(nsqds=number):
        pass


def test_a_refusal_is_reported() -> None:
    with local_nsq() as nsq, pytest.raises(LocalNsqError, match="status 400"):
        nsq.publish("no/topic", ["one"])


def test_pytest_finds_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text("""
def test_one(nsq):
    assert nsq.publish("orders", ["one"]) == 1

def test_another_has_a_broker_of_its_own(nsq):
    assert nsq.stats("orders").messages == 0

def test_more(make_nsq):
    assert len(make_nsq(nsqds=2).nsqds) == 2
""")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "3 passed" in ran.stdout, ran.stdout + ran.stderr


def test_the_plugin_costs_other_peoples_pytest_nothing() -> None:
    script = """
import sys, pytest
before = set(sys.modules)
import pyspark_nsq.pytest_plugin
print(sorted(name for name in set(sys.modules) - before if name not in sys.stdlib_module_names))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "['pyspark_nsq', 'pyspark_nsq.pytest_plugin']"


def test_sigterm_to_the_holder_ends_the_daemons_too() -> None:
    command = [sys.executable, "-c", HOLD_AND_TELL]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        started = [int(pid) for pid in holder.stdout.readline().split()]
        holder.send_signal(signal.SIGTERM)
    wait_until(lambda: are_gone(started), "the daemons end")
