"""Plant one fault after the other in a copy of the broker, and expect the conformance suite to fail each time.

    .venv/bin/python tools/mutate_broker.py              every fault, each against the tests that should see it
    .venv/bin/python tools/mutate_broker.py pause touch  the faults whose names contain one of the words
    .venv/bin/python tools/mutate_broker.py --all        every fault against the whole suite

A fault is a text that stands exactly once in a file and what takes its place. First the tests run on a copy without
a fault: there they must pass, or finding the faults would mean nothing. Ends with 1 if a fault stays unseen.
"""

import argparse
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from os import environ
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "tests" / "conformance"
SCRIPT = """#!{python}
import sys
sys.path.insert(0, {folder!r})
from pyspark_nsq.broker.{module} import main
sys.exit(main())
"""
# A fault may hang the broker, and then every test of a selection waits in vain.
PATIENCE_SECONDS = 300


class Fault(NamedTuple):
    """What is planted where, and which tests should see it: a file of the suite and an expression for -k."""

    name: str
    path: str
    text: str
    becomes: str
    tests: tuple[str, str]


FAULTS = [
    Fault(
        "attempts not counted",
        "broker/segment.py",
        'int.from_bytes(buffer[at : at + 2], "big") + extra, MAX_ATTEMPTS)',
        'int.from_bytes(buffer[at : at + 2], "big"), MAX_ATTEMPTS)',
        ("semantics", "attempts"),
    ),
    Fault(
        "AUTH not required",
        "broker/session.py",
        "ClientAuth(enabled=bool(host.options.auth_http_addresses)",
        "ClientAuth(enabled=False",
        ("auth", "auth_comes_first"),
    ),
    Fault(
        "wrong code for a bad topic",
        "proto/parser.py",
        '_MalformedError("E_BAD_TOPIC"',
        '_MalformedError("E_INVALID"',
        ("protocol", "bad_names"),
    ),
    Fault(
        "bodies cut at 64 KiB",
        "proto/parser.py",
        "bodies = [buffer[body + _SIZE.size : end]]",
        "bodies = [buffer[body + _SIZE.size : end][:65536]]",
        ("publish", "arrives_whole"),
    ),
    Fault(
        "deflate refused",
        "broker/identify.py",
        "upgradable and options.deflate and asked.deflate",
        "False",
        ("tls_compression", "each_upgrade_has_its_ok"),
    ),
    Fault(
        "snappy refused",
        "broker/identify.py",
        "upgradable and options.snappy and asked.snappy",
        "False",
        ("tls_compression", "each_upgrade_has_its_ok"),
    ),
    Fault(
        "delay of DPUB ignored",
        "proto/parser.py",
        "1, defer_ns // _NS_PER_MS), end",
        "1, 0), end",
        ("semantics", "deferred"),
    ),
    Fault(
        "defer over HTTP ignored",
        "broker/nsqd_http.py",
        'self._defer_ns(request.args["defer"]) if "defer" in request.args else 0',
        '0 * self._defer_ns(request.args["defer"]) if "defer" in request.args else 0',
        ("semantics", "deferred"),
    ),
    Fault(
        "delay of REQ ignored",
        "broker/session.py",
        "delay_ns = command.delay_ms * _NS_PER_MS",
        "delay_ns = 0",
        ("semantics", "requeue_with_delay"),
    ),
    Fault(
        "ephemeral channel kept",
        "broker/channel.py",
        "if self.ephemeral and not self.consumers and not self.deleted:",
        "if False:",
        ("control", "ephemeral_channel"),
    ),
    Fault(
        "FIN of an unknown id silent",
        "broker/session.py",
        'self._complain_of("FIN", message_id, reason)',
        "pass",
        ("protocol", "unknown_id"),
    ),
    Fault(
        "FIN forgotten",
        "broker/session.py",
        "in channel.finish(consumer, command.ids, self._now):",
        "in ():",
        ("flow", "in_flight"),
    ),
    Fault(
        "no heartbeat",
        "broker/session.py",
        "self.output.say(_HEARTBEAT_FRAME)",
        "pass",
        ("flow", "heartbeats_come_at"),
    ),
    Fault(
        "HTTP errors answered 200",
        "broker/http_messages.py",
        'return Response(status, json_go.dumps({"message": code})',
        'return Response(200, json_go.dumps({"message": code})',
        ("http", "errors_of"),
    ),
    Fault(
        "in-flight lost at exit",
        "broker/channel.py",
        "out.append([run.segment.base + index, count, run.extra + 1])",
        "pass",
        ("disk", "graceful_stop"),
    ),
    Fault(
        "in-flight count always 0",
        "broker/stats.py",
        '"in_flight_count": channel.in_flight_count,',
        '"in_flight_count": 0,',
        ("stats", "stats_count"),
    ),
    Fault(
        "no UNREGISTER",
        "broker/nsqd.py",
        "self._lookup.unregister(event.topic, event.channel)",
        "pass",
        ("cluster", "changes_are_told"),
    ),
    Fault(
        "max-msg-size ignored",
        "proto/parser.py",
        "if size > self._limits.msg_size_max:",
        "if False:",
        ("publish", "wrong_size"),
    ),
    Fault(
        "msg_timeout of IDENTIFY ignored",
        "broker/session.py",
        "consumer.msg_timeout_ns = self.identity.msg_timeout",
        "consumer.msg_timeout_ns = self._host.options.msg_timeout_ns",
        ("semantics", "times_out_and_comes_again"),
    ),
    Fault(
        "sample_rate ignored",
        "broker/session.py",
        "consumer.sample_rate = self.identity.sample_rate",
        "consumer.sample_rate = 0",
        ("flow", "sample_rate_passes"),
    ),
    Fault(
        "RDY ignored",
        "broker/session.py",
        "consumer.ready_count = command.ready_count",
        "consumer.ready_count = 2500",
        ("flow", "no_more_in_flight"),
    ),
    Fault(
        "tombstone ignored",
        "broker/lookupd_registry.py",
        "producer.tombstoned_at_ns = now_ns",
        "pass",
        ("lookupd", "tombstone_hides"),
    ),
    Fault(
        "last message of an MPUB dropped",
        "proto/parser.py",
        'return Publish(b"MPUB", topic, bodies, 1, 0), end',
        'return Publish(b"MPUB", topic, bodies[:-1] or bodies, 1, 0), end',
        ("publish", "every_message_of_an_mpub"),
    ),
    Fault(
        "pause ignored",
        "broker/channel.py",
        "if self.paused or self.deleted:",
        "if self.deleted:",
        ("control", "paused_channel"),
    ),
    Fault(
        "pause not persisted",
        "broker/metadata.py",
        '"paused": topic.paused,',
        '"paused": False,',
        ("control", "pause_survives"),
    ),
    Fault(
        "messages never time out",
        "broker/channel.py",
        "                self._expire(consumer, now)\n",
        "",
        ("semantics", "times_out_and_comes_again"),
    ),
    Fault(
        "timestamp in ms",
        "broker/batch.py",
        "self.segments.append(new_segment(bodies, lengths, base, prefix, first, now, due))",
        "self.segments.append(new_segment(bodies, lengths, base, prefix, first, now // 1_000_000, due))",
        ("publish", "timestamp"),
    ),
    Fault(
        "TOUCH without effect",
        "broker/channel.py",
        "consumer.in_flight.retime(run, index, count, deadline)",
        "pass",
        ("semantics", "touch_extends"),
    ),
]


def make_copy(folder: Path) -> None:
    """The package with its links followed, and scripts that start the daemons from it."""
    shutil.copytree(ROOT / "src" / "pyspark_nsq", folder / "pyspark_nsq", ignore=shutil.ignore_patterns("__pycache__"))
    for module in ("nsqd", "nsqlookupd"):
        script = folder / module
        script.write_text(SCRIPT.format(python=sys.executable, folder=str(folder), module=module))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)


def run_suite(folder: Path, selections: set[tuple[str, str]] | None) -> tuple[bool, str]:
    """Whether the tests pass on the copy, and what pytest said at the end."""
    environment = environ | {
        "NSQ_OURS_BIN": str(folder),
        "NSQ_PATIENCE_SECONDS": "10",  # what a fault keeps from coming is waited for in vain
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    targets, expression = [str(SUITE)], "on-ours"
    if selections is not None:
        targets = [str(SUITE / f"test_{file}.py") for file in sorted({file for file, _ in selections})]
        expression = f"on-ours and ({' or '.join(sorted({words for _, words in selections}))})"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", "-k", expression]
    try:
        done = subprocess.run(
            [*command, "--timeout=60", *targets],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"still running after {PATIENCE_SECONDS} s"
    # 0: all passed, 1: some failed. Anything else is no answer: nothing was selected, or the suite itself is broken.
    if done.returncode not in {0, 1}:
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    told = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode == 0, told[0] if told else done.stdout.strip().splitlines()[-1]


def plant(folder: Path, fault: Fault) -> str:
    """Put the fault into the copy; what stood there before."""
    path = folder / "pyspark_nsq" / fault.path
    source = path.read_text()
    if source.count(fault.text) != 1:
        raise SystemExit(f"{fault.name}: {fault.text!r} stands {source.count(fault.text)} times in {fault.path}")
    path.write_text(source.replace(fault.text, fault.becomes))
    return source


def try_fault(folder: Path, fault: Fault, *, everything: bool) -> bool:
    """Whether the suite sees the fault; prints its row."""
    source = plant(folder, fault)
    start = time.monotonic()
    try:
        passed, told = run_suite(folder, None if everything else {fault.tests})
    finally:
        (folder / "pyspark_nsq" / fault.path).write_text(source)
    seen = "NOT SEEN" if passed else "seen"
    by = told.partition(" - ")[0].removeprefix("FAILED tests/conformance/")
    print(f"{fault.name:<34} {seen:<9} {time.monotonic() - start:5.1f} s  {by}", flush=True)
    return not passed


def main() -> int:
    """Try the faults; 1 if one stays unseen."""
    parser = argparse.ArgumentParser(description="Does the conformance suite see faults in the broker?")
    parser.add_argument("words", nargs="*", help="only faults whose names contain one of these")
    parser.add_argument("--all", action="store_true", help="run the whole suite against each fault")
    asked = parser.parse_args()
    faults = [fault for fault in FAULTS if not asked.words or any(word in fault.name for word in asked.words)]
    if not faults:
        parser.error("no fault has such a name")
    with tempfile.TemporaryDirectory(prefix="nsq-mutants-") as name:
        folder = Path(name)
        make_copy(folder)
        for fault in faults:  # a fault that cannot be planted should not be found out only at its turn
            (folder / "pyspark_nsq" / fault.path).write_text(plant(folder, fault))
        passed, told = run_suite(folder, None if asked.all else {fault.tests for fault in faults})
        if not passed:
            raise SystemExit(f"the suite fails without any fault: {told}")
        unseen = [fault.name for fault in faults if not try_fault(folder, fault, everything=asked.all)]
    print(f"{len(faults) - len(unseen)} of {len(faults)} faults were seen")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
