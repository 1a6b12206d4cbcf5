"""How long a message takes from its PUB to its consumer, at a steady rate."""

import socket
import statistics
import time

RATE = 5_000


def p99_ms(address: str, seconds: float) -> float:
    """The 99th percentile over ``RATE`` messages a second; PUBs are sent every millisecond."""
    consumer, producer = _connect(address), _connect(address)
    consumer.sendall(b"SUB latency c#ephemeral\nRDY 2000\n")
    _read_frame(consumer, bytearray())
    consumer.setblocking(False)
    producer.setblocking(False)
    latencies = _run(producer, consumer, seconds)
    producer.close()
    consumer.close()
    return statistics.quantiles(latencies, n=100)[98] * 1e3


def _run(producer: socket.socket, consumer: socket.socket, seconds: float) -> list[float]:
    latencies: list[float] = []
    buffer = bytearray()
    sent, started = 0, time.perf_counter()
    while (now := time.perf_counter()) - started < seconds or len(latencies) < sent:
        if now - started > seconds + 10:
            raise SystemExit(f"{sent - len(latencies)} messages did not come")
        due = int(min(now - started, seconds) * RATE)
        if due > sent:
            producer.sendall(b"".join(_pub(time.perf_counter()) for _ in range(due - sent)))
            sent = due
        for one in (consumer, producer):
            try:
                data = one.recv(1 << 16)
            except BlockingIOError:
                continue
            if one is consumer:
                buffer += data
        finished = _take(buffer, latencies)
        if finished:
            consumer.sendall(finished)
        time.sleep(0.0002)
    return latencies


def _pub(now: float) -> bytes:
    body = b"%017.9f" % now + b"x" * 183
    return b"PUB latency\n" + len(body).to_bytes(4, "big") + body


def _take(buffer: bytearray, latencies: list[float]) -> bytes:
    """The whole frames at the buffer's start: their latencies noted, their FINs."""
    start, fins = 0, []
    while len(buffer) - start >= 4 and len(buffer) - start >= 4 + (
        size := int.from_bytes(buffer[start : start + 4], "big")
    ):
        frame_type = int.from_bytes(buffer[start + 4 : start + 8], "big")
        if frame_type == 2:
            latencies.append(time.perf_counter() - float(buffer[start + 34 : start + 51]))
            fins.append(b"FIN %b\n" % bytes(buffer[start + 18 : start + 34]))
        start += 4 + size
    del buffer[:start]
    return b"".join(fins)


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(b"  V2")
    return connection


def _read_frame(connection: socket.socket, buffer: bytearray) -> None:
    while len(buffer) < 4 or len(buffer) < 4 + int.from_bytes(buffer[:4], "big"):
        buffer += connection.recv(4096)
