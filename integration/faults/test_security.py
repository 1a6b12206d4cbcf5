"""What attackers must not get: a port nobody meant to open, a secret, what needs permission, TLS that is off."""

import base64
import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from rig.daemons import Lookupd, Nsqd, own_brokers, wait_until
from rig.ports import listening, wider_than_loopback
from rig.security import AuthServer, Certificates

from pyspark_nsq.broker.auth import AuthQuestion
from pyspark_nsq.broker.http_auth import HttpAuth
from pyspark_nsq.broker.http_messages import Request
from pyspark_nsq.broker.http_parser import RequestParser
from pyspark_nsq.connector.beginning import Beginning
from pyspark_nsq.connector.channels import Guard
from pyspark_nsq.connector.errors import DiscoveryError, OptionError
from pyspark_nsq.connector.executors import StartPartition
from pyspark_nsq.connector.handshake import Send
from pyspark_nsq.connector.http_json import fetch_json
from pyspark_nsq.connector.options import parse_sink_options, parse_source_options
from pyspark_nsq.connector.receiver import Setup
from pyspark_nsq.connector.receiver_host import HostService
from pyspark_nsq.connector.rows import Place, RangePartition
from pyspark_nsq.connector.security import tls_context
from pyspark_nsq.connector.settings import Address, ConnectionSettings, HttpAddress, Secret, Security
from pyspark_nsq.connector.source_state import Limits
from pyspark_nsq.connector.ways import Starting, Way
from pyspark_nsq.proto import commands
from pyspark_nsq.proto.frames import ERROR, OK, RESPONSE, Frame, split_frames
from pyspark_nsq.proto.parser import CommandParser
from pyspark_nsq.proto.parser import Limits as ParserLimits
from pyspark_nsq.testing import local_nsq

SECRET, PASSWORD = "rather-not-told-95b2", "nor-this-4d81"
# What a query's tasks show to its receivers; each query makes up its own. Spark has secrets of the same form, which its
# workers find under a name in their environment.
TOKEN = re.compile(rb"(?<!_SECRET': ')(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
COUNT = 50


# Ports


def test_daemons_listen_where_they_are_told_and_nowhere_else(certificates: Certificates, tmp_path: Path) -> None:
    lookupd = Lookupd(own_brokers())
    flags = [*certificates.nsqd_flags(ask_client=False), "-https-address=127.0.0.2:0"]
    nsqd = Nsqd(own_brokers(), tmp_path / "nsqd", [lookupd], flags)
    try:
        assert set(listening(lookupd.process.pid)) == {("127.0.0.1", port) for port in lookupd.ports.values()}
        expected = {("127.0.0.1", nsqd.ports["TCP"]), ("127.0.0.1", nsqd.ports["HTTP"])}
        assert {where for where in listening(nsqd.process.pid) if where[0] == "127.0.0.1"} == expected
        assert [ip for ip, _ in set(listening(nsqd.process.pid)) - expected] == ["127.0.0.2"]
    finally:
        nsqd.kill()
        lookupd.kill()


def test_a_broker_for_tests_listens_on_loopback() -> None:
    with local_nsq(nsqds=2) as nsq:
        assert len(listening(os.getpid())) >= 6
        for daemon in (nsq.lookupd, *nsq.nsqds):
            assert wider_than_loopback(daemon.pid) == []


def test_a_port_that_is_wider_is_seen() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        (found,) = [each for each in wider_than_loopback(os.getpid()) if f":{listener.getsockname()[1]} " in each]
        assert found.startswith("0.0.0.0:")


# Secrets


def _client_certificate(certificates: Certificates, folder: Path) -> dict[str, str]:
    """A client's certificate whose key is under a password."""
    issued = trustme.CA().issue_cert("client@example.org")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(PASSWORD.encode()),
    )
    (folder / "client-key.pem").write_bytes(locked)
    issued.cert_chain_pems[0].write_to_path(folder / "client.pem")
    return {
        "tls": "true",
        "tlsCaFile": str(certificates.authority),
        "tlsCertFile": str(folder / "client.pem"),
        "tlsKeyFile": str(folder / "client-key.pem"),
        "tlsKeyPassword": PASSWORD,
    }


def _shown_by(ran: "subprocess.CompletedProcess[str]", nsqd: Nsqd, folder: Path) -> dict[str, bytes]:
    """All that a query and its nsqd have left behind, by where it is."""
    shown = {"the query's output": (ran.stdout + ran.stderr).encode(), "nsqd's log": "".join(nsqd.output).encode()}
    for part in ("events", "checkpoint", "warehouse", "nsqd"):
        shown |= {str(path): path.read_bytes() for path in (folder / part).rglob("*") if path.is_file()}
    return shown


@pytest.mark.timeout(280)
def test_no_secret_is_shown_or_kept_and_no_port_is_open(
    certificates: Certificates, auth_server: AuthServer, tmp_path: Path
) -> None:
    """Logs, plans, progress, event log, offsets, commits, arguments, environments; of Spark, receivers and nsqd."""
    flags = [f"-auth-http-address={auth_server.address}", "-http-require-auth", "-log-level=debug"]
    nsqd = Nsqd(own_brokers(), tmp_path / "nsqd", (), [*flags, *certificates.nsqd_flags(ask_client=False)])
    try:
        https = wait_until(lambda: nsqd.ports.get("HTTPS"), "nsqd's port for HTTPS")
        _post(nsqd, "/topic/create?topic=in")
        _post(nsqd, "/channel/create?topic=in&channel=c")
        _post(nsqd, "/mpub?topic=in", b"\n".join(b"message %d" % number for number in range(COUNT)))
        common = {
            **_client_certificate(certificates, tmp_path),
            "authSecret": SECRET,
            "nsqdTcpAddresses": nsqd.tcp,
            "nsqdHttpAddresses": f"https://127.0.0.1:{https}",
        }
        sink = {name: value for name, value in common.items() if name != "nsqdHttpAddresses"} | {"topic": "out"}
        ran = subprocess.run(
            [sys.executable, "-m", "faults.secret_query", str(tmp_path)],
            input=json.dumps({**common, "topic": "in", "channel": "c", "sink": sink}),
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
        topics = json.loads(_ask(nsqd, "GET", "/stats?format=json", SECRET)[1])["topics"]
        assert {topic["topic_name"]: topic["message_count"] for topic in topics} == {"in": COUNT, "out": COUNT}
        shown = _shown_by(ran, nsqd, tmp_path)
    finally:
        nsqd.kill()
    # It was looked for where it could be found.
    for part in ("pyspark_nsq.connector.receiver", "Physical Plan", "wider than loopback: []", "latestOffset"):
        assert part in ran.stdout + ran.stderr, part
    assert any("/events/" in place and b"SparkListenerApplicationStart" in content for place, content in shown.items())
    assert any("/offsets/" in place for place in shown)
    for secret in (SECRET, PASSWORD):
        for form in (secret.encode(), base64.b64encode(b":" + secret.encode())):
            assert [place for place, content in shown.items() if form in content] == []
    of_this_machine = " ".join(os.environ.values()).encode()
    like_tokens = {place: set(TOKEN.findall(content)) for place, content in shown.items()}
    assert [place for place, found in like_tokens.items() if any(each not in of_this_machine for each in found)] == []


def test_values_do_not_show_their_secrets() -> None:
    options = {"topic": "t", "nsqdTcpAddresses": "a:1", "authSecret": SECRET}
    source = parse_source_options(options | {"channel": "c", "tls": "true"})
    values: list[Any] = [source, parse_sink_options(options), Secret(SECRET), Security(auth_secret=Secret(SECRET))]
    values += [HttpAuth(lambda _question: None, lambda: 0, tls=True)]
    values += [AuthQuestion(SECRET.encode(), "127.0.0.1", tls=True, common_name="")]
    auth = commands.auth(SECRET.encode())
    assert SECRET in repr(auth)
    values += [Send(auth), *CommandParser(ParserLimits()).feed(auth)]
    _expect_silence(values)


def test_a_request_does_not_show_the_secret_that_came_with_it() -> None:
    parser = RequestParser()
    parser.feed(f"GET /stats HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {SECRET}\r\n\r\n".encode())
    head = parser.next_head()
    assert head
    assert SECRET in head.headers["authorization"]
    _expect_silence([head, Request(head.method, head.target, head.path, head.query, head.headers)])


def test_what_receivers_and_tasks_are_told_does_not_show_the_token() -> None:
    limits = Limits("c", 1, 1, 1, None, None, 0.1, 1.0)
    way = Way(None, SECRET, "127.0.0.1:1", Starting(None, range(1), 10.0))
    _expect_silence(
        [
            Setup("127.0.0.1", range(1), SECRET, 0, limits, ConnectionSettings(), 0.5),
            Beginning("session", SECRET, 0, limits, ConnectionSettings(), 0.5, 10.0),
            *(way, Place("127.0.0.1:1", way=way), StartPartition(0, way)),
            *(RangePartition(Place("127.0.0.1:1", way=way), SECRET, 0, 1), Guard(SECRET), HostService(SECRET, "")),
        ]
    )


def _expect_silence(values: list[Any]) -> None:
    for value in values:
        assert SECRET not in repr(value) + str(value) + f"{value}", type(value)


# Permissions

_TCP_COMMANDS = {
    "PUB": commands.pub("other", b"x"),
    "DPUB": commands.dpub("other", 10, b"x"),
    "MPUB": commands.mpub("other", [b"x", b"y"]),
    "SUB": commands.sub("other", "c"),
}


@pytest.fixture(scope="module")
def guarded(auth_server: AuthServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """An nsqd that asks for secrets, over HTTP too; what is known grants everything."""
    flags = [f"-auth-http-address={auth_server.address}", "-http-require-auth"]
    nsqd = Nsqd(own_brokers(), tmp_path_factory.mktemp("guarded"), (), flags)
    yield nsqd
    nsqd.kill()


def _answers(nsqd: Nsqd, said: bytes) -> list[Frame]:
    """What nsqd says until it ends the connection."""
    with socket.create_connection(("127.0.0.1", nsqd.ports["TCP"]), 10) as client:
        client.sendall(commands.MAGIC_V2 + said)
        client.shutdown(socket.SHUT_WR)
        heard = b"".join(iter(lambda: client.recv(65536), b""))
    return split_frames(heard, 1 << 20)[0]


def _ask(nsqd: Nsqd, method: str, target: str, secret: str | None, body: bytes = b"") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", nsqd.ports["HTTP"], timeout=10)
    try:
        connection.request(method, target, body, {} if secret is None else {"Authorization": f"Bearer {secret}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _post(nsqd: Nsqd, target: str, body: bytes = b"") -> None:
    assert _ask(nsqd, "POST", target, SECRET, body)[0] == 200, target


@pytest.mark.parametrize("word", _TCP_COMMANDS)
def test_without_auth_no_command_does_anything(guarded: Nsqd, word: str) -> None:
    (refusal,) = _answers(guarded, _TCP_COMMANDS[word])
    assert refusal == (ERROR, f"E_AUTH_FIRST AUTH required before {word}".encode())
    _expect_untouched(guarded)


@pytest.mark.parametrize("word", _TCP_COMMANDS)
def test_a_wrong_secret_opens_nothing(guarded: Nsqd, word: str) -> None:
    (refusal,) = _answers(guarded, commands.auth(b"a guess") + _TCP_COMMANDS[word])
    assert refusal == (ERROR, b"E_AUTH_FAILED AUTH failed")
    _expect_untouched(guarded)


@pytest.mark.parametrize("word", _TCP_COMMANDS)
def test_what_is_not_granted_is_denied(tmp_path: Path, word: str) -> None:
    """A secret for one topic opens no other."""
    with AuthServer(SECRET, topic="^mine$") as server:
        nsqd = Nsqd(own_brokers(), tmp_path, (), [f"-auth-http-address={server.address}"])
        try:
            granted, refusal = _answers(nsqd, commands.auth(SECRET.encode()) + _TCP_COMMANDS[word])
            assert granted.type == RESPONSE
            assert refusal.data.startswith(f'E_UNAUTHORIZED AUTH failed for {word} on "other"'.encode())
            mine = _TCP_COMMANDS["PUB"].replace(b"other", b"mine")
            assert _answers(nsqd, commands.auth(SECRET.encode()) + mine)[1] == (RESPONSE, OK)
            assert [topic["topic_name"] for topic in nsqd.raw_stats()["topics"]] == ["mine"]
        finally:
            nsqd.kill()


def _expect_untouched(nsqd: Nsqd) -> None:
    assert json.loads(_ask(nsqd, "GET", "/stats?format=json", SECRET)[1])["topics"] == []


@pytest.mark.parametrize("secret", [None, "a guess"])
def test_nothing_is_done_over_http_without_the_secret(guarded: Nsqd, secret: str | None) -> None:
    refused = 401 if secret is None else 403
    for method, target in (
        *(("POST", f"/{word}?topic=other") for word in ("pub", "mpub", "topic/create", "topic/delete", "topic/empty")),
        *(("POST", f"/channel/{word}?topic=other&channel=c") for word in ("create", "delete", "pause")),
        *(("GET", target) for target in ("/stats", "/metrics", "/info", "/config/log_level", "/debug/pprof/cmdline")),
        *(("PUT", "/config/log_level"), ("POST", "/debug/freememory"), ("GET", "/nothing"), ("HEAD", "/stats")),
    ):
        assert _ask(guarded, method, target, secret, b"x")[0] == refused, (method, target)
    assert _ask(guarded, "GET", "/ping", secret)[0] == 200
    _expect_untouched(guarded)


@pytest.mark.parametrize(("tls", "https", "shown"), [(False, False, True), (True, True, True), (True, False, False)])
def test_the_secret_is_shown_over_http_only_where_it_may_be(tls: bool, https: bool, shown: bool) -> None:
    """Who requires TLS does not want it to travel in clear."""
    asked: list[bytes] = []

    class Connection(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock, other = socket.socketpair()
            other.sendall(b"HTTP/1.0 200 OK\r\n\r\n{}")
            threading.Thread(target=self._hear, args=(other,)).start()

        def _hear(self, other: socket.socket) -> None:
            with other:
                asked.append(other.recv(65536))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspark_nsq.connector.http_json._connection", lambda *_: Connection("nsqd"))
        security = Security(tls=tls, auth_secret=Secret(SECRET))
        fetch_json(HttpAddress(Address("nsqd", 4151), https), "/stats", 10, security, with_secret=True)
        fetch_json(HttpAddress(Address("nsqd", 4151), https), "/stats", 10, security)
    header = b"Authorization: Basic " + base64.b64encode(b":" + SECRET.encode())
    assert [header in request for request in asked] == [shown, False]


# TLS


@pytest.mark.parametrize("value", ["1", "yes", "on", "t", "", "None", "truee", "verify"])
def test_verification_is_switched_off_by_nothing_but_true(value: str) -> None:
    options = {"topic": "t", "channel": "c", "nsqdTcpAddresses": "a:1", "tls": "true", "tlsInsecureSkipVerify": value}
    with pytest.raises(OptionError, match="tlsInsecureSkipVerify"):
        parse_source_options(options)


@pytest.mark.parametrize("value", [{}, {"tlsInsecureSkipVerify": "false"}])
def test_verification_is_on(value: dict[str, str]) -> None:
    options = {"topic": "t", "channel": "c", "nsqdTcpAddresses": "a:1", "tls": "true", **value}
    context = tls_context(parse_source_options(options).connection.security)
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_an_authority_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    options = {"topic": "t", "channel": "c", "nsqdTcpAddresses": "a:1", "tls": "true"}
    for content in (None, "", "no certificate"):
        path = tmp_path / "ca.pem"
        if content is not None:
            path.write_text(content)
        with pytest.raises(OptionError, match="tlsCaFile"):
            parse_source_options(options | {"tlsCaFile": str(path)})


def test_a_certificate_for_another_host_is_refused(certificates: Certificates, tmp_path: Path) -> None:
    """Over TCP and over HTTPS: the authority is right, the name is not."""
    nsqd = Nsqd(
        own_brokers(),
        tmp_path,
        (),
        [*certificates.nsqd_flags(ask_client=False), "-https-address=127.0.0.2:0"],
    )
    try:
        (port,) = [port for ip, port in listening(nsqd.process.pid) if ip == "127.0.0.2"]
        security = Security(tls=True, tls_ca_file=str(certificates.authority))
        with pytest.raises(DiscoveryError, match=r"CERTIFICATE_VERIFY_FAILED.*127\.0\.0\.2"):
            fetch_json(HttpAddress(Address("127.0.0.2", port), tls=True), "/info", 10, security)
    finally:
        nsqd.kill()
