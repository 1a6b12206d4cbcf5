"""TLS, snappy and deflate: negotiation, bytes, and what breaks them."""

import json
import os
import socket
import ssl
import struct
import time
import zlib
from collections.abc import Callable, Iterator

import pytest
from blackbox.certs import Certificates
from blackbox.codecs import (
    COMPRESSED,
    PADDING,
    STREAM_ID,
    Deflate,
    Snappy,
    chunk,
    masked_crc,
    run_chunk,
    snappy_block,
    stored_chunk,
)
from blackbox.daemons import Nsqd
from blackbox.http import request
from blackbox.wire import ClosedError, Conn, mpub_body, open_socket, with_length

Connect = Callable[..., Conn]
ModuleNsqd = Callable[..., Nsqd]

BODIES = [b"x" * 100_000, os.urandom(70_000), b"short", json.dumps(list(range(20_000))).encode()]


@pytest.fixture(scope="module")
def secure(module_nsqd: ModuleNsqd, certificates: Certificates) -> Nsqd:
    """A broker that can do TLS."""
    daemon = module_nsqd(*certificates.flags)
    daemon.await_listening("HTTPS")
    return daemon


def upgraded(conn: Conn, certificates: Certificates, *, tls: bool = False, codec: str = "", **fields: object) -> Conn:
    """The connection after IDENTIFY and every OK in its order."""
    answer = conn.identify(tls_v1=tls, snappy=codec == "snappy", deflate=codec == "deflate", **fields)
    assert (answer["tls_v1"], answer["snappy"], answer["deflate"]) == (tls, codec == "snappy", codec == "deflate")
    if tls:
        conn.start_tls(certificates.context())
    if codec:
        conn.start_codec(Snappy() if codec == "snappy" else Deflate())
    return conn


def exchange(conn: Conn, topic: str, bodies: list[bytes] = BODIES) -> None:
    """Publish and consume on one connection; any OK too many or too few would show."""
    for body in bodies:
        conn.command(f"PUB {topic}", body)
    conn.command(f"MPUB {topic}", mpub_body(*bodies))
    for _ in range(len(bodies) + 1):
        conn.ok()
    conn.subscribe(topic, "channel", ready=100)
    messages = conn.messages(2 * len(bodies))
    assert [message.body for message in messages] == bodies * 2
    conn.finish(*messages)
    conn.round_trip()


# case 41
@pytest.mark.parametrize("codec", ["", "snappy", "deflate"])
@pytest.mark.parametrize("tls", [False, True], ids=["clear", "tls"])
def test_each_upgrade_has_its_ok(
    connect: Connect, secure: Nsqd, certificates: Certificates, topic: str, tls: bool, codec: str
) -> None:
    conn = upgraded(connect(secure), certificates, tls=tls, codec=codec)
    exchange(conn, topic)
    client = secure.channel(topic, "channel")["clients"][0]
    assert (client["tls"], client["snappy"], client["deflate"]) == (tls, codec == "snappy", codec == "deflate")
    assert secure.channel(topic, "channel")["in_flight_count"] == 0


# case 41
def test_tls_is_not_granted_without_a_certificate(connect: Connect, topic: str) -> None:
    conn = connect()
    assert conn.identify(tls_v1=True)["tls_v1"] is False
    conn.publish(topic, b"in clear")


def test_stats_name_version_and_cipher_of_tls(
    connect: Connect, secure: Nsqd, certificates: Certificates, topic: str
) -> None:
    conn = upgraded(connect(secure), certificates, tls=True)
    conn.subscribe(topic, "channel")
    client = secure.channel(topic, "channel")["clients"][0]
    assert (client["tls"], client["tls_version"]) == (True, "TLS1.2")
    assert client["tls_cipher_suite"].startswith("TLS_ECDHE_")
    assert client["tls_negotiated_protocol"] == ""


@pytest.mark.known_defect("D12")
def test_stats_name_the_cipher_of_tls_1_3(
    connect: Connect, secure: Nsqd, certificates: Certificates, topic: str
) -> None:
    conn = connect(secure)
    conn.identify(tls_v1=True)
    conn.start_tls(certificates.context(version=ssl.TLSVersion.TLSv1_3))
    conn.subscribe(topic, "channel")
    client = secure.channel(topic, "channel")["clients"][0]
    assert client["tls_version"] == "TLS1.3"
    assert client["tls_cipher_suite"].startswith("TLS_")


# case 42
def test_snappy_ok_is_byte_equal(connect: Connect) -> None:
    conn = connect()
    assert conn.identify(snappy=True)["snappy"] is True
    conn.start_codec(Snappy())
    expected = "ff060000734e61507059 010e000026982bcf 00000006 00000000 4f4b"
    assert bytes(conn.raw) == bytes.fromhex(expected)


# case 42
def test_snappy_compresses_what_is_compressible(connect: Connect, topic: str) -> None:
    conn, codec = connect(), Snappy()
    conn.identify(snappy=True)
    conn.start_codec(codec)
    conn.publish(topic, b"x" * 10_000)
    conn.subscribe(topic, "channel", ready=1)
    assert conn.message().body == b"x" * 10_000
    assert COMPRESSED in codec.kinds
    assert len(conn.raw) < 2_000


# case 42
def test_snappy_from_the_client_in_every_kind_of_chunk(connect: Connect, topic: str) -> None:
    conn = connect()
    conn.identify(snappy=True)
    conn.start_codec(Snappy())
    start = f"PUB {topic}\n".encode() + struct.pack(">i", 60_000)
    data = STREAM_ID + stored_chunk(start[:5]) + chunk(PADDING, b"\0" * 9) + stored_chunk(start[5:])
    data += STREAM_ID + chunk(0x80, b"to be skipped") + run_chunk(0x61, 60_000)
    for at in range(0, len(data), 1000):
        conn.sock.sendall(data[at : at + 1000])
    conn.ok()
    conn.sock.sendall(stored_chunk(f"SUB {topic} channel\nRDY 1\n".encode()))
    conn.ok()
    assert conn.message().body == b"a" * 60_000


# case 43
@pytest.mark.parametrize("flush", [zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH])
@pytest.mark.parametrize("level", [1, 6])
def test_deflate_in_both_directions(connect: Connect, topic: str, flush: int, level: int) -> None:
    conn = connect()
    assert conn.identify(deflate=True, deflate_level=level)["deflate_level"] == level
    conn.start_codec(Deflate(flush))
    exchange(conn, topic)
    # Each flush ends in an empty stored block.
    assert b"\x00\x00\xff\xff" in conn.raw
    # Empty blocks carry nothing and break nothing.
    conn.sock.sendall(b"\x00\x00\x00\xff\xff" * 3)
    conn.publish(topic, b"after empty blocks")
    assert conn.message().body == b"after empty blocks"


# case 43
def test_end_of_the_deflate_stream_is_the_end_of_the_client(connect: Connect) -> None:
    conn, codec = connect(), Deflate()
    conn.identify(deflate=True)
    conn.start_codec(codec)
    conn.sock.sendall(codec.compressor.flush(zlib.Z_FINISH))
    conn.closed()


@pytest.mark.parametrize("codec", ["snappy", "deflate"])
def test_unbuffered_output_is_compressed_too(
    connect: Connect, certificates: Certificates, topic: str, codec: str
) -> None:
    # The compressor may still hold back what no timer flushes: the heartbeat brings it. The test's own codec, which
    # takes long, must not keep the client from answering that one.
    conn = upgraded(connect(), certificates, codec=codec, output_buffer_size=-1, heartbeat_interval=1000)
    exchange(conn, topic, [b"x" * 2_000, os.urandom(1_000), b"short"])


# case 47
@pytest.mark.parametrize(
    "broken",
    [
        stored_chunk(b"NOP\n")[:4] + b"\0\0\0\0NOP\n",
        chunk(0x02, b"reserved and not to be skipped"),
        chunk(COMPRESSED, struct.pack("<I", masked_crc(b"NOP\n")) + b"\x04\xff\xff"),
        chunk(0xFF, b"sNaPpZ"),
    ],
    ids=["checksum", "reserved", "block", "identifier"],
)
def test_corrupt_snappy_closes_only_that_client(connect: Connect, topic: str, broken: bytes) -> None:
    conn, witness = connect(), connect()
    conn.identify(snappy=True)
    conn.start_codec(Snappy())
    conn.sock.sendall(STREAM_ID + broken)
    conn.closed()
    witness.publish(topic, b"still served")


# case 47
@pytest.mark.parametrize("broken", [b"\xff\xff\xff\xff", b"\x07garbage"])
def test_corrupt_deflate_closes_only_that_client(connect: Connect, topic: str, broken: bytes) -> None:
    conn, witness = connect(), connect()
    conn.identify(deflate=True)
    conn.start_codec(Deflate())
    conn.sock.sendall(broken)
    conn.closed()
    witness.publish(topic, b"still served")


def test_the_tests_own_snappy_is_right() -> None:
    crc, run = run_chunk(0x61, 1000)[4:8], run_chunk(0x61, 1000)[8:]
    assert snappy_block(run) == b"a" * 1000
    assert crc == struct.pack("<I", masked_crc(b"a" * 1000))


@pytest.fixture(scope="module")
def strict(module_nsqd: ModuleNsqd, certificates: Certificates) -> Nsqd:
    """A broker that wants TLS everywhere."""
    daemon = module_nsqd("--tls-required=true", *certificates.flags)
    daemon.await_listening("HTTPS")
    return daemon


# case 44
@pytest.mark.parametrize("command", ["PUB topic", "SUB topic channel", "NOP", "AUTH", "CLS", "WHATEVER", "", "RDY 1"])
def test_every_command_but_identify_needs_tls_where_required(connect: Connect, strict: Nsqd, command: str) -> None:
    conn = connect(strict)
    conn.identify()
    conn.command(command)
    assert conn.fatal() == f"E_INVALID cannot {command.split(' ', maxsplit=1)[0]} in current state (TLS required)"


# case 44
def test_required_tls_lets_tls_in(connect: Connect, strict: Nsqd, certificates: Certificates, topic: str) -> None:
    exchange(upgraded(connect(strict), certificates, tls=True), topic)


# case 44
@pytest.mark.parametrize("target", ["/ping", "/stats?format=json", "/nowhere"])
def test_required_tls_closes_plain_http(strict: Nsqd, target: str) -> None:
    answer = strict.http("GET", target)
    assert answer.status == 403
    assert answer.body == b'{"message": "TLS_REQUIRED", "https_port": %d}' % strict.port("HTTPS")
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"


# case 44
def test_required_tls_leaves_https_open(strict: Nsqd, certificates: Certificates) -> None:
    answer = request(strict.address("HTTPS"), "GET", "/ping", context=certificates.context())
    assert (answer.status, answer.body) == (200, b"OK")


# case 44
def test_tcp_https_leaves_plain_http_open(
    connect: Connect, module_nsqd: ModuleNsqd, certificates: Certificates
) -> None:
    daemon = module_nsqd("--tls-required=tcp-https", *certificates.flags)
    conn = connect(daemon)
    conn.command("NOP")
    assert conn.fatal() == "E_INVALID cannot NOP in current state (TLS required)"
    assert daemon.http("GET", "/ping").status == 200


def refused_certificate(conn: Conn, context: ssl.SSLContext) -> None:
    """TLS does not come about: not in the handshake, or not after it, where TLS 1.3 says so."""
    assert conn.identify(tls_v1=True)["tls_v1"] is True
    with pytest.raises((ssl.SSLError, ClosedError, ConnectionError)):
        conn.start_tls(context)


# case 45
@pytest.mark.parametrize(
    ("policy", "client", "welcome"),
    [
        ("require", "", False),
        ("require", "foreign", True),
        ("require", "good", True),
        ("require-verify", "", False),
        ("require-verify", "foreign", False),
        ("require-verify", "good", True),
    ],
)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["tls1.2", "tls1.3"])
def test_certificates_of_clients(
    connect: Connect,
    policies: dict[str, Nsqd],
    certificates: Certificates,
    topic: str,
    version: ssl.TLSVersion,
    policy: str,
    client: str,
    welcome: bool,
) -> None:
    conn = connect(policies[policy])
    context = certificates.context(client, version=version)
    if not welcome:
        refused_certificate(conn, context)
        return
    conn.identify(tls_v1=True)
    conn.start_tls(context)
    conn.publish(topic, b"body")


# case 45
def test_policy_makes_tls_required(connect: Connect, policies: dict[str, Nsqd]) -> None:
    conn = connect(policies["require"])
    conn.command("NOP")
    assert conn.fatal() == "E_INVALID cannot NOP in current state (TLS required)"


@pytest.fixture(scope="module")
def policies(module_nsqd: ModuleNsqd, certificates: Certificates) -> dict[str, Nsqd]:
    """Brokers that ask their clients for certificates."""
    names = ("require", "require-verify")
    return {name: module_nsqd(f"--tls-client-auth-policy={name}", *certificates.flags) for name in names}


# case 46
def test_garbage_instead_of_tls_is_answered_in_clear(connect: Connect, secure: Nsqd) -> None:
    conn = connect(secure)
    conn.identify(tls_v1=True)
    conn.raw.clear()
    conn.send(b"this is not TLS, and long enough to be a record\n" * 4)
    while_open(conn)
    assert b"E_IDENTIFY_FAILED IDENTIFY failed " in conn.raw


# case 46
def test_silence_instead_of_tls_is_given_up_after_5_s(connect: Connect, secure: Nsqd) -> None:
    conn = connect(secure)
    start = time.monotonic()
    conn.identify(tls_v1=True)
    conn.raw.clear()
    while_open(conn)
    assert b"E_IDENTIFY_FAILED IDENTIFY failed " in conn.raw
    assert time.monotonic() - start >= 4.9


def while_open(conn: Conn) -> None:
    """Read whatever comes until the server closes."""
    with pytest.raises(ClosedError):
        conn.read_raw(1 << 20)


def test_oldest_version_of_tls_can_be_set(
    connect: Connect, module_nsqd: ModuleNsqd, certificates: Certificates, topic: str
) -> None:
    daemon = module_nsqd("--tls-min-version=tls1.3", *certificates.flags)
    refused_certificate(connect(daemon), certificates.context(version=ssl.TLSVersion.TLSv1_2))
    conn = connect(daemon)
    conn.identify(tls_v1=True)
    conn.start_tls(certificates.context(version=ssl.TLSVersion.TLSv1_3))
    conn.publish(topic, b"body")


def test_publishing_over_https(secure: Nsqd, certificates: Certificates, topic: str) -> None:
    context = certificates.context()
    answer = request(secure.address("HTTPS"), "POST", f"/pub?topic={topic}", b"body", context=context)
    assert (answer.status, answer.body) == (200, b"OK")
    assert secure.topic(topic)["depth"] == 1


@pytest.fixture
def https_clients(certificates: Certificates) -> Iterator[Callable[[Nsqd], list[socket.socket]]]:
    """Opens connections that say nothing, not even TLS, then some that have shaken hands, then one after a request."""
    opened: list[socket.socket] = []

    def connect_all(daemon: Nsqd) -> list[socket.socket]:
        context = certificates.context()
        opened.extend(open_socket(daemon.address("HTTPS")) for _ in range(30))
        plain = [open_socket(daemon.address("HTTPS")) for _ in range(6)]
        idle = [context.wrap_socket(sock, server_hostname="localhost") for sock in plain]
        idle[-1].sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle[-1].recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
        opened.extend(idle)
        return opened

    yield connect_all
    for sock in opened:
        sock.close()


# case 103
def test_https_clients_that_say_nothing_keep_nobody_waiting(
    connect: Connect,
    start_nsqd: Callable[..., Nsqd],
    certificates: Certificates,
    https_clients: Callable[[Nsqd], list[socket.socket]],
) -> None:
    daemon = start_nsqd(*certificates.flags, listening=("TCP", "HTTP", "HTTPS"))
    https_clients(daemon)
    conn = connect(daemon)
    conn.publish("topic", b"body")
    conn.subscribe("topic", "channel", ready=1)
    assert conn.message().body == b"body"
    assert request(daemon.address("HTTPS"), "GET", "/ping", context=certificates.context()).status == 200
    assert daemon.stop() == 0


def test_commands_right_behind_a_body_of_several_records(
    connect: Connect, secure: Nsqd, certificates: Certificates, topic: str
) -> None:
    conn = upgraded(connect(secure), certificates, tls=True, codec="snappy")
    body = os.urandom(200_000)
    conn.send(b"PUB %b\n%bPUB %b\n%b" % (topic.encode(), with_length(body), topic.encode(), with_length(b"tail")))
    conn.ok()
    conn.ok()
    conn.subscribe(topic, "channel", ready=2)
    assert [message.body for message in conn.messages(2)] == [body, b"tail"]
