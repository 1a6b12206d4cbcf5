"""200 kills of nsqd under load; the seed can be set with NSQ_FAULTS_SEED, the number of kills with NSQ_FAULTS_KILLS."""

import asyncio
import os
import random
from pathlib import Path

import pytest
from rig.daemons import own_brokers

from faults.broker_client import connect
from faults.broker_kills import VARIANTS, Subscriber, suffer
from faults.broker_ledger import Ledger, body_of
from faults.report import append
from faults.scenario import Context, Scenario, run
from pyspark_nsq.proto.frames import ERROR, OK, RESPONSE, encode_frame, encode_message

SEED = int(os.environ.get("NSQ_FAULTS_SEED", "20261118"))
KILLS = int(os.environ.get("NSQ_FAULTS_KILLS", "200"))


LIMIT_S = 60.0 + KILLS * 3


@pytest.mark.timeout(LIMIT_S + 60)
def test_nothing_acknowledged_is_lost_and_no_old_fin_is_undone(tmp_path: Path) -> None:
    print(f"NSQ_FAULTS_SEED={SEED}")
    together = Scenario(
        "broker-kills-*",
        lambda context: suffer(context.impl, context.folder, context.seed, KILLS, VARIANTS),
        "kill -9 under load",
        "nsqd",
        ("ours",),
    )
    rows = run(together, Context(own_brokers(), tmp_path, SEED, limit_s=LIMIT_S))
    for row in rows:
        append(row)
    assert all(row.passed for row in rows), rows


def delivering(*frames: bytes) -> "asyncio.Future[asyncio.Server]":
    """An nsqd that takes IDENTIFY and SUB, sends these, and keeps the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join([encode_frame(RESPONSE, OK) * 2, *frames]))
        await reader.read()
        writer.close()

    return asyncio.ensure_future(asyncio.start_server(serve, "127.0.0.1", 0))


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (encode_message(1, 1, b"0123456789abcdef", body_of(1) + b"x"), "message 1 was delivered with another body"),
        (encode_message(1, 1, b"0123456789abcdef", body_of(2)), "message 2 came from topic one"),
        (encode_frame(ERROR, b"E_INVALID no"), "E_INVALID no"),
    ],
    ids=["another body", "another topic", "another error"],
)
def test_what_a_consumer_cannot_stand_comes_out_of_it(frame: bytes, complaint: str) -> None:
    ledger = Ledger([("one", "a"), ("many", "a")])
    ledger.take("one", 1)
    ledger.take("many", 1)

    async def scene() -> None:
        async with await delivering(frame) as nsqd:
            subscriber = Subscriber(ledger, ledger.channels["one", "a"], random.Random(1))
            await asyncio.wait_for(subscriber.run(nsqd.sockets[0].getsockname()), 20)

    with pytest.raises(AssertionError, match=complaint):
        asyncio.run(scene())


def test_it_comes_out_of_whatever_is_asked_of_a_connection() -> None:
    async def scene() -> None:
        def refuse(*_arguments: object) -> None:
            raise AssertionError("not this")

        async with await delivering(encode_message(1, 1, b"0123456789abcdef", b"")) as nsqd:
            link = await connect(nsqd.sockets[0].getsockname(), refuse)
            await asyncio.wait_for(link.closed.wait(), 20)
            for ask in (link.check, link.close, lambda: link.ask(b"NOP\n")):
                with pytest.raises(AssertionError, match="not this"):
                    ask()

    asyncio.run(scene())
