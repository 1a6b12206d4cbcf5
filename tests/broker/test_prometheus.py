"""Prometheus' text format."""

import re

from pyspark_nsq.broker.prometheus import COUNTER, GAUGE, Page

LINE = re.compile(r"# (HELP|TYPE) \w+ .+|\w+(\{(\w+=\"([^\"\\\n]|\\[\\\"n])*\",?)+\})? -?\d+(\.\d+)?(e[-+]\d+)?")


def test_a_page_to_the_byte() -> None:
    page = Page()
    page.add("depth", GAUGE, "Messages waiting.", [({"topic": "t", "channel": 'a"\\\n'}, 12), ({}, 0.25)])
    page.add("sent_total", COUNTER, "Messages sent.", 10**15)
    page.add("none", GAUGE, "Nobody.", [])
    assert page.text() == (
        "# HELP depth Messages waiting.\n"
        "# TYPE depth gauge\n"
        'depth{topic="t",channel="a\\"\\\\\\n"} 12\n'
        "depth 0.25\n"
        "# HELP sent_total Messages sent.\n"
        "# TYPE sent_total counter\n"
        "sent_total 1000000000000000\n"
        "# HELP none Nobody.\n"
        "# TYPE none gauge\n"
    )


def test_the_process() -> None:
    page = Page()
    page.add_process(started_at=1795005728.5)
    lines = page.text().splitlines()
    assert all(LINE.fullmatch(line) for line in lines), lines
    values = dict(line.split() for line in lines if not line.startswith("#"))
    assert values["process_start_time_seconds"] == "1795005728.5"
    assert int(values["process_resident_memory_bytes"]) > 1_000_000
    assert int(values["process_open_fds"]) > 2


def test_the_answer_says_which_format() -> None:
    assert Page().response().content_type == "text/plain; version=0.0.4; charset=utf-8"
