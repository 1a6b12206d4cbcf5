"""TLS, compression and AUTH, against nsqds that insist on them; and where secrets do not appear."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rig.consumer import drain
from rig.daemons import Nsqd, wait_until
from rig.frames import bodies, numbered, write
from rig.security import AuthServer, Certificates, shown_without

from pyspark_nsq.connector.settings import ConnectionSettings, Secret, Security

StartNsqd = Callable[..., Nsqd]
SECRET = "rather-not-told-7a3e"
COUNT = 20_000


def producer_of(nsqd: Nsqd) -> dict[str, Any]:
    """What nsqd says of a connection that the sink has left in its pool."""
    found: dict[str, Any] = wait_until(lambda: nsqd.raw_stats()["producers"], "a producer")[0]
    return found


@pytest.mark.parametrize(
    ("is_tls", "options"),
    [
        (True, {}),
        (True, {"snappy": "true"}),
        (True, {"deflate": "true"}),
        (False, {"snappy": "true"}),
        (False, {"deflate": "true", "deflateLevel": "1"}),
    ],
    ids=["tls", "tls-snappy", "tls-deflate", "snappy", "deflate"],
)
def test_protected_and_compressed(
    spark: SparkSession,
    start_nsqd: StartNsqd,
    certificates: Certificates,
    topic: str,
    is_tls: bool,
    options: dict[str, str],
) -> None:
    nsqd = start_nsqd(*(certificates.nsqd_flags(ask_client=True) if is_tls else []))
    security = Security()
    if is_tls:
        files = {"tlsCaFile": str(certificates.authority), "tlsCertFile": str(certificates.client)}
        options = {**options, **files, "tls": "true"}
        security = Security(tls=True, tls_ca_file=files["tlsCaFile"], tls_cert_file=files["tlsCertFile"])
    nsqd.make_channel(topic, "c")
    write(numbered(spark, COUNT).select("body"), nsqd, topic=topic, **options)
    told = producer_of(nsqd)
    assert (told["tls"], told["snappy"], told["deflate"]) == (is_tls, "snappy" in options, "deflate" in options)
    assert drain(nsqd, topic, "c", ConnectionSettings(security=security)) == bodies(COUNT)


def test_a_certificate_that_is_not_trusted_fails_the_task(
    spark: SparkSession, start_nsqd: StartNsqd, certificates: Certificates, topic: str, tmp_path: Path
) -> None:
    nsqd = start_nsqd(*certificates.nsqd_flags(ask_client=False))
    other = Certificates(tmp_path / "other")
    with pytest.raises(PySparkException, match=r"certificate that is not accepted.*tlsCaFile"):
        write(numbered(spark, 10).select("body"), nsqd, topic=topic, tls="true", tlsCaFile=str(other.authority))
    assert nsqd.message_count(topic) == 0


def test_a_missing_client_certificate_fails_the_task(
    spark: SparkSession, start_nsqd: StartNsqd, certificates: Certificates, topic: str
) -> None:
    nsqd = start_nsqd(*certificates.nsqd_flags(ask_client=True))
    options = {"tls": "true", "tlsCaFile": str(certificates.authority), "retries": "0"}
    with pytest.raises(PySparkException, match="tlsCertFile"):
        write(numbered(spark, 10).select("body"), nsqd, topic=topic, **options)
    assert nsqd.message_count(topic) == 0


@pytest.mark.parametrize("is_file", [False, True], ids=["secret", "file"])
def test_a_secret_opens_an_nsqd_that_demands_one(
    spark: SparkSession, start_nsqd: StartNsqd, auth_server: AuthServer, topic: str, tmp_path: Path, is_file: bool
) -> None:
    nsqd = start_nsqd(f"-auth-http-address={auth_server.address}")
    nsqd.make_channel(topic, "c")
    (tmp_path / "secret").write_text(SECRET + "\n")
    options = {"authSecretFile": str(tmp_path / "secret")} if is_file else {"authSecret": SECRET}
    write(numbered(spark, 1000).select("body"), nsqd, topic=topic, **options)
    assert producer_of(nsqd)["authed"] is True
    knowing = ConnectionSettings(security=Security(auth_secret=Secret(SECRET)))
    assert drain(nsqd, topic, "c", knowing) == bodies(1000)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"authSecret": "a guess"}, r"E_AUTH_FAILED.*authSecret"), ({}, r"demands AUTH: set option authSecret")],
    ids=["wrong", "none"],
)
def test_without_the_secret_nothing_is_published(
    spark: SparkSession,
    start_nsqd: StartNsqd,
    auth_server: AuthServer,
    topic: str,
    options: dict[str, str],
    words: str,
) -> None:
    nsqd = start_nsqd(f"-auth-http-address={auth_server.address}")
    with pytest.raises(PySparkException, match=words) as caught:
        write(numbered(spark, 10).select("body"), nsqd, topic=topic, **options)
    assert "a guess" not in str(caught.value)
    assert nsqd.message_count(topic) == 0


# Secrets are the connector's affair, whoever the broker is.
@pytest.mark.parametrize("impl", ["ours"], indirect=True)
def test_secrets_are_nowhere_to_be_seen(
    start_nsqd: StartNsqd, auth_server: AuthServer, topic: str, tmp_path: Path
) -> None:
    nsqd = start_nsqd(f"-auth-http-address={auth_server.address}")
    options = {"topic": topic, "nsqdTcpAddresses": nsqd.tcp, "authSecret": SECRET}
    shown = shown_without(SECRET, "sink/secret_job.py", tmp_path / "checkpoint", 50, options)
    # It was looked for where it could be found.
    for part in ("Physical Plan", "E_AUTH_FAILED", '"numInputRows"', "pyspark.daemon"):
        assert part in shown
    # A line for each batch tells what it was: that of the write, and those of the stream.
    what = rf"published 50 messages to 1 topics \({topic} 50\) on 1 nsqds \({nsqd.tcp} 50\)"
    lines = [line for line in shown.splitlines() if "nsq: " in line and "published" in line]
    assert len([line for line in lines if re.search(rf"INFO nsq: write: {what}$", line)]) == 1
    assert len([line for line in lines if re.search(rf"INFO nsq: batch 0: {what}$", line)]) == 1
    assert nsqd.message_count(topic) >= 100
