"""Go's nsqd on a data path that ours has had."""

from collections.abc import Callable
from pathlib import Path

import pytest
from blackbox.daemons import Implementation, Nsqd
from blackbox.steps import bodies_of, drain, numbered
from blackbox.wire import Conn

Connect = Callable[..., Conn]
StartNsqd = Callable[..., Nsqd]


# case 74
@pytest.mark.only("ours", "it has been there before Go's nsqd")
def test_what_was_left_behind_on_the_way_back_to_go_s_nsqd_waits(
    connect: Connect, start_nsqd: StartNsqd, go_nsqd: Implementation, data_path: Path
) -> None:
    daemon = start_nsqd()
    conn = connect(daemon)
    conn.publish("topic", *numbered(5, b"ours "))
    conn.subscribe("topic", "channel")
    conn.round_trip()
    daemon.post("/channel/pause?topic=topic&channel=channel")
    assert daemon.stop() == 0
    go = Nsqd(go_nsqd, data_path)
    go.await_listening("TCP", "HTTP")
    assert (go.channel("topic", "channel")["depth"], go.channel("topic", "channel")["paused"]) == (0, True)
    go.post("/channel/unpause?topic=topic&channel=channel")
    with go.connect() as other:
        other.publish("topic", *numbered(5, b"go "))
        drain(other, "topic", "channel", 2)
    assert go.stop() == 0
    daemon = start_nsqd()
    bodies = bodies_of(drain(connect(daemon), "topic", "channel", 5 + 3))
    assert bodies == sorted(numbered(5, b"ours ") + numbered(5, b"go ")[2:])
