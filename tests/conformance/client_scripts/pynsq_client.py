"""Publish and consume with pynsq: three readers, one touch, one requeue for every seventh message."""

import errno
import json
import sys
from collections.abc import Callable
from typing import Any

import nsq
import nsq.deflate_socket
import nsq.snappy_socket
from tornado.ioloop import IOLoop

ADDRESS, TOPIC, FEATURE, CAFILE, COUNT = *sys.argv[1:5], int(sys.argv[5])
READERS = 3

# pynsq overlooks an OK that comes together with the answer to IDENTIFY until something else comes: a heartbeat.
options: dict[str, Any] = {"heartbeat_interval": 2, "snappy": "snappy" in FEATURE, "deflate": "deflate" in FEATURE}
if "tls" in FEATURE:
    options |= {"tls_v1": True, "tls_options": {"ca_certs": CAFILE}}


def says_try_again(receive: Callable[..., bytes]) -> Callable[..., bytes]:
    """pynsq says "nothing yet" with an exception that tornado takes for a broken connection since Python 3."""

    def receive_or_try_again(self: object, size: int, method: object) -> bytes:
        try:
            return receive(self, size, method)
        except OSError as error:
            if error.args == (errno.EWOULDBLOCK,):
                raise BlockingIOError(errno.EWOULDBLOCK, "nothing yet") from error
            raise

    return receive_or_try_again


for wrapper in (nsq.snappy_socket.SnappySocket, nsq.deflate_socket.DeflateSocket):
    wrapper._recv = says_try_again(wrapper._recv)

bodies = [b"message %d " % number + b"x" * number for number in range(COUNT)]
finished: dict[str, int] = {}
loop = IOLoop.current()


def handle(message: nsq.Message) -> None:
    message.enable_async()
    number = int(message.body.split()[1])
    assert message.body == bodies[number]
    if number % 7 == 0 and message.attempts == 1:
        message.requeue(backoff=False, delay=0)
        return
    message.touch()
    message.finish()
    finished[str(number)] = message.attempts
    if len(finished) == COUNT:
        # FIN is on its way once the loop has turned.
        loop.call_later(0.2, done)


def done() -> None:
    sys.stdout.write(json.dumps(finished) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    loop.stop()


def published(conn: nsq.AsyncConn, data: object) -> None:
    assert data == b"OK", data
    if writer_left:
        publish_next()


def publish_next() -> None:
    kind, payload = writer_left.pop(0)
    (writer.mpub if kind == "mpub" else writer.pub)(TOPIC, payload, callback=published)


half = COUNT // 2
writer_left: list[tuple[str, Any]] = [("pub", body) for body in bodies[:half]] + [("mpub", bodies[half:])]
writer = nsq.Writer([ADDRESS], **options)
readers = [
    nsq.Reader(TOPIC, "channel", handle, nsqd_tcp_addresses=[ADDRESS], max_in_flight=5, **options)
    for _ in range(READERS)
]


def start_publishing() -> None:
    if writer.conns:
        publish_next()
    else:
        loop.call_later(0.05, start_publishing)


async def start_when_told() -> None:
    await loop.run_in_executor(None, sys.stdin.readline)
    start_publishing()


loop.add_callback(start_when_told)
loop.start()
