"""Real clients from PyPI: publishing, several connections, requeue and touch, TLS, snappy and deflate."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from blackbox.certs import Certificates
from blackbox.daemons import Nsqd
from blackbox.wire import wait_until

ModuleNsqd = Callable[..., Nsqd]

SCRIPTS = Path(__file__).parent / "client_scripts"
COUNT = 100
CONSUMERS = 3
FEATURES = ["plain", "snappy", "deflate", "tls", "tls+snappy", "tls+deflate"]


@pytest.fixture(scope="module")
def secure(module_nsqd: ModuleNsqd, certificates: Certificates) -> Nsqd:
    """A broker that can do everything."""
    return module_nsqd(*certificates.flags)


# case 108
@pytest.mark.parametrize(
    ("client", "feature"),
    [
        *[("pynsq", feature) for feature in FEATURES],
        *[("gnsq", feature) for feature in FEATURES],
        ("ansq", "plain"),  # it knows neither TLS nor compression
    ],
)
def test_client(secure: Nsqd, certificates: Certificates, topic: str, client: str, feature: str) -> None:
    command = [sys.executable, str(SCRIPTS / f"{client}_client.py"), secure.tcp_address, topic, feature]
    process = subprocess.Popen(
        [*command, str(certificates.root), str(COUNT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        check_client(secure, topic, feature, process)
    finally:
        process.kill()
        process.communicate()


def consumers_ready(nsqd: Nsqd, topic: str) -> int:
    """How many of them messages can be pushed to."""
    channels = [
        channel for found in nsqd.stats()["topics"] if found["topic_name"] == topic for channel in found["channels"]
    ]
    return sum(client["ready_count"] > 0 for channel in channels for client in channel["clients"] or ())


def check_client(secure: Nsqd, topic: str, feature: str, process: subprocess.Popen[str]) -> None:
    """What the client got, and what the broker saw of it while it is still connected."""
    assert process.stdin
    assert process.stdout
    assert process.stderr
    wait_until(lambda: process.poll() is not None or consumers_ready(secure, topic) == CONSUMERS)
    assert process.poll() is None, process.stderr.read()
    # Published any earlier, messages could all be done before the last of them has subscribed.
    process.stdin.write("publish\n")
    process.stdin.flush()
    line = process.stdout.readline()
    assert line, process.stderr.read()
    attempts = json.loads(line)
    assert attempts == {str(number): 2 if number % 7 == 0 else 1 for number in range(COUNT)}
    requeued = len([number for number in range(COUNT) if number % 7 == 0])
    wait_until(lambda: secure.channel(topic, "channel")["in_flight_count"] == 0)
    channel = secure.channel(topic, "channel")
    assert (channel["depth"], channel["requeue_count"], channel["timeout_count"]) == (0, requeued, 0)
    assert len(channel["clients"]) == CONSUMERS
    for seen in channel["clients"]:
        expected = ("tls" in feature, "snappy" in feature, "deflate" in feature)
        assert (seen["tls"], seen["snappy"], seen["deflate"]) == expected
        assert seen["finish_count"] > 0
    assert secure.topic(topic)["message_count"] == COUNT
    process.communicate("", timeout=20)
