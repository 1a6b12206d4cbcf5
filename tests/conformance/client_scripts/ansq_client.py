"""Publish and consume with ansq: three readers, one touch, one requeue for every seventh message."""

import asyncio
import json
import sys

import ansq
from ansq.tcp.types import NSQMessage

ADDRESS, TOPIC, _, _, COUNT = *sys.argv[1:5], int(sys.argv[5])
READERS = 3

bodies = [b"message %d " % number + b"x" * number for number in range(COUNT)]
finished: dict[str, int] = {}


async def handle(message: NSQMessage) -> None:
    number = int(message.body.split()[1])
    assert message.body == bodies[number]
    if number % 7 == 0 and message.attempts == 1:
        await message.req(0)
        return
    await message.touch()
    await message.fin()
    finished[str(number)] = message.attempts


async def consume(reader: ansq.tcp.reader.Reader) -> None:
    async for message in reader.messages():
        await handle(message)


async def main() -> None:
    readers = [
        await ansq.create_reader(topic=TOPIC, channel="channel", nsqd_tcp_addresses=[ADDRESS]) for _ in range(READERS)
    ]
    tasks = [asyncio.ensure_future(consume(reader)) for reader in readers]
    writer = await ansq.create_writer(nsqd_tcp_addresses=[ADDRESS])
    await asyncio.to_thread(sys.stdin.readline)
    for body in bodies[: COUNT // 2]:
        await writer.pub(topic=TOPIC, message=body)
    await writer.mpub(TOPIC, *bodies[COUNT // 2 :])
    while len(finished) < COUNT:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)
    sys.stdout.write(json.dumps(finished) + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await writer.close()
    for reader in readers:
        await reader.close()


asyncio.run(main())
