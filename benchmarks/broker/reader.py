"""A consumer that costs next to nothing, so that what is measured is the broker: frames and FINs as tables of bytes.

    python benchmarks/broker/reader.py HOST:PORT TOPIC CHANNEL...

One connection a channel, RDY 2500; it runs until it is killed. Meant for messages of one size.
"""

import selectors
import socket
import sys

import numpy as np

from pyspark_nsq.proto.runs import FIN, encode_run

READY = 2500
_READ_SIZE = 1 << 20
_ID = slice(18, 34)
_MESSAGE = 2


class Consumer:
    """One connection."""

    def __init__(self, address: str, topic: str, channel: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(b"  V2SUB %b %b\nRDY %d\n" % (topic.encode(), channel.encode(), READY))
        self._rest = b""

    def on_readable(self) -> None:
        data = self._rest + self.socket.recv(_READ_SIZE)
        answer, start = b"", 0
        while len(data) - start >= 8:
            size = 4 + int.from_bytes(data[start : start + 4], "big")
            if len(data) - start < size:
                break
            if int.from_bytes(data[start + 4 : start + 8], "big") == _MESSAGE:
                count = _same(data, start, size)
                answer += encode_run(FIN, _table(data, start, size, count)[:, _ID].tobytes())
                start += count * size
            else:
                answer += b"NOP\n" if b"_heartbeat_" in data[start : start + size] else b""
                start += size
        self._rest = data[start:]
        if answer:
            self.socket.sendall(answer)


def _same(data: bytes, start: int, size: int) -> int:
    """How many whole frames of this size and kind stand one after the other."""
    table = _table(data, start, size, (len(data) - start) // size)
    same = (table[:, :8] == table[0, :8]).all(axis=1)
    return len(same) if same.all() else int(same.argmin())


def _table(data: bytes, start: int, size: int, count: int) -> "np.ndarray":
    return np.frombuffer(data, np.uint8, size * count, start).reshape(count, size)


def main() -> None:
    address, topic, *channels = sys.argv[1:]
    with selectors.DefaultSelector() as selector:
        for channel in channels:
            consumer = Consumer(address, topic, channel)
            selector.register(consumer.socket, selectors.EVENT_READ, consumer)
        while True:
            for key, _ in selector.select():
                key.data.on_readable()


if __name__ == "__main__":
    main()
