"""The reader behind ``nsq tail`` and the demo, where connections come and go."""

from collections.abc import Callable

import pytest

from pyspark_nsq.cli.reading import Reader, Received
from pyspark_nsq.connector.options import parse_source_options
from pyspark_nsq.testing import LocalNsq


def test_once_connected_again_it_waits_as_before(
    make_nsq: Callable[[], LocalNsq], monkeypatch: pytest.MonkeyPatch
) -> None:
    nsq = make_nsq()
    nsq.create_channel("steady", "c")
    place = {"nsqdTcpAddresses": nsq.nsqd_tcp_addresses[0], "retryDelayMax": "1s", "lookupdPollInterval": "1h"}
    with Reader(parse_source_options({**place, "topic": "steady", "channel": "c"})) as reader:
        assert reader.receive(0) == []
        nsq.nsqds[0].kill()
        nsq.nsqds[0].start()
        nsq.publish("steady", ["after"])
        received = reader.receive(60)
        assert [each.message.body for each in received] == [b"after"]
        reader.finish(received)

        turns: list[float] = []
        exchange = reader._exchange

        def counted(wait_s: float) -> list[Received]:
            turns.append(wait_s)
            return exchange(wait_s)

        monkeypatch.setattr(reader, "_exchange", counted)
        assert reader.receive(0.5) == []
        assert len(turns) <= 3
