"""The kernel's own network faults, in a network namespace where nobody else is: what no proxy can do to TCP.

It needs root, unshare, ip and iptables; latency needs tc and the kernel's netem. Without them a scenario is skipped.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from rig.daemons import Implementation

from faults.cluster import Cluster
from faults.driver import LOCAL, Driver
from faults.network import HEARTBEAT, RECEIVER_NSQD, SINK_NSQD, STALL_S, Trouble, begin_to_flow, go_through
from faults.queries import NSQ, SIGN
from faults.report import Row
from faults.scenario import Context, Scenario, Skipped
from faults.subject import Subject, check_gone

PACKETS = "packets"
LATENCY = "latency"
_NETEM = ("tc", "qdisc", "add", "dev", "lo", "root", "netem")
# Longer than the receiver waits for a sign of life.
_SILENCE_S = 7.0
# For Spark's start and nine faults, on a machine that has much else to do.
_LIMIT_S = 1800.0
_FAULTS: dict[str, tuple[float, Sequence[str]]] = {
    "loss": (3, ["-m", "statistic", "--mode", "random", "--probability", "0.15", "-j", "DROP"]),
    "partition": (STALL_S, ["-j", "DROP"]),
    "long partition": (_SILENCE_S, ["-j", "DROP"]),
    "resets": (2, ["-j", "REJECT", "--reject-with", "tcp-reset"]),
}


class PacketTrouble:
    """What iptables does to the packets of a port, in both directions."""

    def __init__(self, port: int, rule: Sequence[str]) -> None:
        self._commands = [["-p", "tcp", side, str(port), *rule] for side in ("--dport", "--sport")]

    def begin(self) -> None:
        for command in self._commands:
            subprocess.run(["iptables", "-A", "INPUT", *command], check=True)

    def again(self) -> None:
        """It lasts."""

    def has_met(self) -> bool:
        """Whether a rule has had a packet."""
        rules = _said("iptables", "-L", "INPUT", "-v", "-x", "-n").splitlines()[2:]
        return any(int(rule.split()[0]) for rule in rules)

    def heal(self) -> None:
        subprocess.run(["iptables", "-F", "INPUT"], check=True)


class LatencyTrouble:
    """Every packet on loopback is late, as between two cities, and some overtake others."""

    def begin(self) -> None:
        subprocess.run([*_NETEM, "delay", "20ms", "10ms", "reorder", "5%"], check=True)

    def again(self) -> None:
        """It lasts."""

    def has_met(self) -> bool:
        """Whether the queue of late packets has had one."""
        sent = re.search(r"Sent \d+ bytes (\d+) pkt", _said("tc", "-s", "qdisc", "show", "dev", "lo"))
        return bool(sent and int(sent[1]))

    def heal(self) -> None:
        subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=True)


def _said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def run_packets(context: Context) -> list[Row]:
    _need("unshare", "ip", "iptables")
    return _run(context, PACKETS)


def run_latency(context: Context) -> list[Row]:
    _need("unshare", "ip", "tc")
    if _fails("unshare", "--net", *_NETEM):
        raise Skipped("the kernel of this machine has no netem")
    return _run(context, LATENCY)


def _need(*tools: str) -> None:
    missing = [tool for tool in tools if not shutil.which(tool)]
    if os.geteuid() or missing:
        raise Skipped(f"it needs root and {', '.join(missing or tools)}")
    if _fails("unshare", "--net", "true"):
        raise Skipped("this machine allows no network namespaces")


def _fails(*command: str) -> bool:
    return bool(subprocess.run(command, capture_output=True).returncode)


def _run(context: Context, what: str) -> list[Row]:
    answers = context.folder / "answers"
    try:
        code = _run_inside(context, what, answers)
        failure = f"it ended with {code}" if code else ""
    except subprocess.TimeoutExpired as error:
        failure = f"it was not done after {error.timeout:g} s"
    lines = answers.read_text().splitlines()
    rows = [Row(**json.loads(line.removeprefix(SIGN))) for line in lines if line.startswith(SIGN)]
    if failure:
        failure = f"{failure}, after {len(rows)} faults"
        rows.append(Row(f"kernel: {what}", "network", context.impl.name, 1, 0, 0, 0, True, 0, 0, failure=failure))
    return rows


def _run_inside(context: Context, what: str, answers: Path) -> int:
    """The exit code of this module as a program, in a network namespace of its own. Nothing of it is left."""
    program = [sys.executable, "-m", "faults.kernel", context.impl.name, str(context.impl.folder)]
    arguments = [str(context.folder), str(context.seed), what]
    inside = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *program, *arguments]
    integration = str(Path(__file__).resolve().parents[1])
    with answers.open("w") as output:
        process = subprocess.Popen(
            inside, stdout=output, start_new_session=True, env={**os.environ, "PYTHONPATH": integration}
        )
    try:
        return process.wait(_LIMIT_S)
    finally:
        # Whoever has a session of its own ends with those who started it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main(impl: Implementation, folder: Path, seed: int, what: str) -> None:
    driver = Driver(LOCAL, folder / "spark")
    try:
        with Cluster(impl, folder, seed, nsqds=1) as cluster:
            subject = Subject(folder / "query", cluster, NSQ, heartbeatInterval=HEARTBEAT)
            driver.start(subject.order)
            begin_to_flow(subject, driver)
            for fault, link, seconds, trouble in _troubles(what, cluster):
                _answer(go_through(trouble, f"kernel: {fault}", link, seconds, driver, subject))
            left = check_gone(driver, cluster, [subject])
            assert not left, left
    finally:
        driver.end()


def _troubles(what: str, cluster: Cluster) -> Iterator[tuple[str, str, float, Trouble]]:
    """Each fault, between whom, for how many seconds, and what does it."""
    if what == LATENCY:
        yield LATENCY, "everybody", 3, LatencyTrouble()
        return
    for link, port in {RECEIVER_NSQD: cluster.proxies[0].port, SINK_NSQD: cluster.sink_proxy.port}.items():
        for name, (seconds, rule) in _FAULTS.items():
            yield name, link, seconds, PacketTrouble(port, rule)


def _answer(row: Row) -> None:
    print(SIGN + json.dumps(asdict(row)), flush=True)


SCENARIOS = [
    Scenario("kernel:packets", run_packets, "kernel: packets", "network", is_long=True),
    Scenario("kernel:latency", run_latency, "kernel: latency", "everybody", is_long=True),
]

if __name__ == "__main__":
    main(Implementation(sys.argv[1], Path(sys.argv[2])), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
