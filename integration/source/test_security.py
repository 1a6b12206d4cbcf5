"""TLS, compression, AUTH and sampling, against nsqds that insist on them; and where secrets do not appear."""

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming import StreamingQueryException
from rig.daemons import Nsqd, wait_until
from rig.reading import Reading, numbered, processes, wait_settled
from rig.security import AuthServer, Certificates, shown_without

from pyspark_nsq.connector.client import connect
from pyspark_nsq.connector.settings import Address, ConnectionSettings, Secret, Security
from pyspark_nsq.proto import commands

StartReading = Callable[..., Reading]
StartNsqd = Callable[..., Nsqd]
SECRET = "rather-not-told-1f0c"


def client_of(nsqd: Nsqd, topic: str) -> dict[str, Any]:
    """What nsqd says of a connected consumer."""

    def clients() -> list[dict[str, Any]]:
        (found,) = [each for each in nsqd.raw_stats()["topics"] if each["topic_name"] == topic]
        return [client for channel in found["channels"] for client in channel["clients"] or []]

    found: dict[str, Any] = wait_until(clients, "a consumer")[0]
    return found


@pytest.mark.parametrize(
    ("is_tls", "options"),
    [
        (True, {}),
        (True, {"snappy": "true"}),
        (False, {"snappy": "true"}),
        (False, {"deflate": "true", "deflateLevel": "3"}),
    ],
    ids=["tls", "tls-snappy", "snappy", "deflate"],
)
def test_protected_and_compressed(
    start_reading: StartReading,
    start_nsqd: StartNsqd,
    certificates: Certificates,
    topic: str,
    is_tls: bool,
    options: dict[str, str],
) -> None:
    nsqd = start_nsqd(*(certificates.nsqd_flags(ask_client=True) if is_tls else []))
    if is_tls:
        files = {"tlsCaFile": str(certificates.authority), "tlsCertFile": str(certificates.client)}
        options = {**options, **files, "tls": "true"}
    nsqd.make_channel(topic, "c")
    # What does not compress comes through whole as well.
    published = Counter([*numbered(0, 5000), bytes(number * number % 251 for number in range(300_000))])
    nsqd.publish(topic, list(published))
    reading = start_reading(nsqd, topic=topic, **options)
    reading.wait_for(published)
    wait_settled(nsqd, topic)
    assert reading.bodies() == published
    client = client_of(nsqd, topic)
    assert (client["tls"], client["snappy"], client["deflate"]) == (is_tls, "snappy" in options, "deflate" in options)


def test_a_certificate_that_is_not_trusted_ends_the_query(
    start_reading: StartReading, start_nsqd: StartNsqd, certificates: Certificates, topic: str, tmp_path: Path
) -> None:
    nsqd = start_nsqd(*certificates.nsqd_flags(ask_client=False))
    other = Certificates(tmp_path / "other")
    reading = start_reading(nsqd, topic=topic, tls="true", tlsCaFile=str(other.authority))
    with pytest.raises(StreamingQueryException, match=r"certificate that is not accepted.*tlsCaFile"):
        reading.query.awaitTermination(60)


def test_a_missing_client_certificate_ends_the_query(
    start_reading: StartReading, start_nsqd: StartNsqd, certificates: Certificates, topic: str
) -> None:
    nsqd = start_nsqd(*certificates.nsqd_flags(ask_client=True))
    reading = start_reading(nsqd, topic=topic, tls="true", tlsCaFile=str(certificates.authority))
    with pytest.raises(StreamingQueryException, match="tlsCertFile"):
        reading.query.awaitTermination(60)


@pytest.mark.parametrize("is_file", [False, True], ids=["secret", "file"])
def test_a_secret_opens_an_nsqd_that_demands_one(
    start_reading: StartReading,
    start_nsqd: StartNsqd,
    auth_server: AuthServer,
    topic: str,
    tmp_path: Path,
    is_file: bool,
) -> None:
    nsqd = start_nsqd(f"-auth-http-address={auth_server.address}")
    nsqd.make_channel(topic, "c")
    published = Counter(numbered(0, 20))
    nsqd.publish(topic, list(published))
    (tmp_path / "secret").write_text(SECRET + "\n")
    options = {"authSecretFile": str(tmp_path / "secret")} if is_file else {"authSecret": SECRET}
    reading = start_reading(nsqd, topic=topic, **options)
    reading.wait_for(published)
    wait_settled(nsqd, topic)
    assert client_of(nsqd, topic)["authed"] is True


def test_a_wrong_secret_ends_the_query(
    start_reading: StartReading, start_nsqd: StartNsqd, auth_server: AuthServer, topic: str
) -> None:
    nsqd = start_nsqd(f"-auth-http-address={auth_server.address}")
    reading = start_reading(nsqd, topic=topic, authSecret="a guess")
    with pytest.raises(StreamingQueryException, match=r"E_AUTH_FAILED.*authSecret") as caught:
        reading.query.awaitTermination(60)
    assert "a guess" not in str(caught.value)


def test_a_secret_that_does_not_open_the_channel_ends_the_query(
    start_reading: StartReading, start_nsqd: StartNsqd, topic: str
) -> None:
    with AuthServer(SECRET, topic="^other$") as server:
        nsqd = start_nsqd(f"-auth-http-address={server.address}")
        reading = start_reading(nsqd, topic=topic, authSecret=SECRET)
        with pytest.raises(StreamingQueryException, match=r"E_UNAUTHORIZED AUTH failed for SUB.*authSecret"):
            reading.query.awaitTermination(60)


@pytest.mark.leaves_messages
def test_a_secret_that_does_not_open_the_dead_letter_topic_ends_the_query(
    start_reading: StartReading, start_nsqd: StartNsqd, topic: str
) -> None:
    with AuthServer(SECRET, topic=f"^{topic}$") as server:
        nsqd = start_nsqd(f"-auth-http-address={server.address}", "-msg-timeout=1s")
        nsqd.make_channel(topic, "c")
        nsqd.publish(topic, [b"poison"])
        settings = ConnectionSettings(security=Security(auth_secret=Secret(SECRET)))
        with closing(connect(Address(nsqd.host, nsqd.ports["TCP"]), settings)) as holder:
            holder.write(commands.sub(topic, "c"), commands.rdy(1))
            wait_until(lambda: nsqd.raw_counts(topic, "c")["in_flight_count"] == 1, "a first attempt")
        reading = start_reading(nsqd, topic=topic, authSecret=SECRET, maxAttempts=1, deadLetterTopic=f"{topic}-dead")
        with pytest.raises(StreamingQueryException, match=r"E_UNAUTHORIZED AUTH failed for PUB.*deadLetterTopic"):
            reading.query.awaitTermination(60)
        assert nsqd.unfinished(topic, "c") == 1


def test_a_sample_is_about_as_large_as_asked_for(start_reading: StartReading, nsqd: Nsqd, topic: str) -> None:
    nsqd.make_channel(topic, "c")
    nsqd.publish(topic, numbered(0, 2000))
    reading = start_reading(nsqd, topic=topic, sampleRate="50")
    wait_settled(nsqd, topic)
    # Ten standard deviations to each side.
    assert 776 < len(reading.rows) < 1224


# Secrets are the connector's affair, whoever the broker is.
@pytest.mark.parametrize("impl", ["ours"], indirect=True)
@pytest.mark.timeout(280)
def test_secrets_are_nowhere_to_be_seen(
    start_nsqd: StartNsqd, auth_server: AuthServer, topic: str, tmp_path: Path
) -> None:
    nsqd = start_nsqd(f"-auth-http-address={auth_server.address}")
    nsqd.make_channel(topic, "c")
    nsqd.publish(topic, numbered(0, 50))
    options = {"topic": topic, "channel": "c", "nsqdTcpAddresses": nsqd.tcp, "authSecret": SECRET}
    shown = shown_without(SECRET, "source/secret_query.py", tmp_path / "checkpoint", 50, options)
    # It was looked for where it could be found.
    for part in ("pyspark_nsq.connector.receiver", "streaming_source_runner", '"latestOffset"', "Physical Plan"):
        assert part in shown
    assert [process.name() for process in processes(str(tmp_path))] == ["nsqd"]
