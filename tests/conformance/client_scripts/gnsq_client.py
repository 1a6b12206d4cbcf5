# ruff: noqa: E402
"""Publish and consume with gnsq: three consumers, one touch, one requeue for every seventh message."""

# gnsq stands on gevent, which must come before everything else.
from gevent import monkey

monkey.patch_all()

import json
import ssl
import sys
from typing import Any

import gevent
import gevent.event
import gnsq
import gnsq.stream.stream

ADDRESS, TOPIC, FEATURE, CAFILE, COUNT = *sys.argv[1:5], int(sys.argv[5])
CONSUMERS = 3

options: dict[str, Any] = {"snappy": "snappy" in FEATURE, "deflate": "deflate" in FEATURE}


def wrap(sock: Any, **_: object) -> ssl.SSLSocket:
    """gnsq calls a constructor that Python no longer has."""
    return ssl.create_default_context(cafile=CAFILE).wrap_socket(sock, server_hostname="localhost")


if "tls" in FEATURE:
    gnsq.stream.stream.SSLSocket = wrap
    options |= {"tls_v1": True, "tls_options": {"ca_certs": CAFILE}}

bodies = [b"message %d " % number + b"x" * number for number in range(COUNT)]
finished: dict[str, int] = {}
everything = gevent.event.Event()


def handle(consumer: gnsq.Consumer, message: gnsq.Message) -> None:
    number = int(message.body.split()[1])
    assert message.body == bodies[number]
    if number % 7 == 0 and message.attempts == 1:
        raise gnsq.errors.NSQRequeueMessage(time_ms=0, backoff=False)
    message.touch()
    finished[str(number)] = message.attempts
    if len(finished) == COUNT:
        everything.set()


consumers = [
    gnsq.Consumer(
        TOPIC, "channel", ADDRESS, message_handler=handle, max_in_flight=5, backoff_on_requeue=False, **options
    )
    for _ in range(CONSUMERS)
]
for consumer in consumers:
    consumer.start(block=False)
# gnsq's Producer trips over the OK of an upgrade; what is below it does not.
host, _, port = ADDRESS.partition(":")
producer = gnsq.NsqdTCPClient(host, int(port), **options)
producer.connect()
producer.identify()
# A read in the thread of the event loop would stop everything.
gevent.get_hub().threadpool.apply(sys.stdin.readline)
for body in bodies[: COUNT // 2]:
    producer.publish(TOPIC, body)
    producer.check_ok()
producer.multipublish(TOPIC, bodies[COUNT // 2 :])
producer.check_ok()
everything.wait()
gevent.sleep(0.2)
sys.stdout.write(json.dumps(finished) + "\n")
sys.stdout.flush()
sys.stdin.read()
