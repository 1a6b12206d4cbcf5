"""Every example in the documentation runs: a page's Python blocks one after the other, its shell blocks in between.

A block is left out by a comment before it, which says why: ``<!-- not run: reason -->``.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from pyspark_nsq.testing import local_nsq

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Where examples say that NSQ is.
LOOKUPD, NSQD, NSQD_HTTP = "127.0.0.1:4161", "127.0.0.1:4150", "127.0.0.1:4151"
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
# Spark's JVM has its own idea of the current folder, this checkout's.
CHECKPOINT = re.compile(r'(checkpointLocation(?:="|", "))(?!/)')
LINK = re.compile(r"\]\(([^)\s]+)\)")
RUN_LANGUAGES = {"python", "sh"}
SHOWN_LANGUAGES = {"", "text", "json", "toml", "yaml", "dockerfile"}


class Block(NamedTuple):
    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """What is to be run."""
    text = page.read_text()
    found = []
    for match in BLOCK.finditer(text):
        assert match["language"] in RUN_LANGUAGES | SHOWN_LANGUAGES, f"{page.name}: a block in {match['language']!r}"
        if match["reason"] is None and match["language"] in RUN_LANGUAGES:
            line = text.count("\n", 0, match.start("text"))
            found.append(Block(match["language"], match["text"], line))
    return found


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    before = SparkSession.getActiveSession()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.Builder()
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    if before is None:
        session.stop()


def run_shell(text: str, folder: Path, lookupd: str) -> None:
    variables = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NSQ_LOOKUPD_HTTP_ADDRESSES": lookupd,
    }
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], cwd=folder, env=variables, capture_output=True, text=True
    )
    assert ran.returncode == 0, f"{text}\n{ran.stdout}{ran.stderr}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_examples_run(page: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with local_nsq() as nsq:
        names = {"spark": spark, "nsq": nsq}
        places = {
            LOOKUPD: nsq.lookupd_http_address,
            NSQD: nsq.nsqd_tcp_addresses[0],
            NSQD_HTTP: nsq.nsqd_http_addresses[0],
        }
        for block in blocks(page):
            text = re.sub("|".join(map(re.escape, places)), lambda match: places[match[0]], block.text)
            text = CHECKPOINT.sub(rf"\g<1>{tmp_path}/", text)
            if block.language == "sh":
                run_shell(text, tmp_path, nsq.lookupd_http_address)
            else:
                # Errors show the page's own line.
                exec(compile("\n" * block.line + text, str(page), "exec"), names)
        for query in spark.streams.active:
            query.stop()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = [link.partition("#")[0] for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if link and not (page.parent / link).exists()] == []


def test_no_page_is_an_orphan() -> None:
    """From the README every page can be reached."""
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or not page.exists():
            continue
        reached.add(page)
        waiting += [
            (page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(page.read_text()) if ".md" in link
        ]
    assert set(PAGES) <= reached


def test_what_is_left_out_has_a_reason() -> None:
    for page in PAGES:
        for match in BLOCK.finditer(page.read_text()):
            assert match["reason"] is None or len(match["reason"]) > 10, page.name


def test_an_example_that_fails_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\n1 / 0\n```\n\n<!-- not run: it is only shown -->\n```sh\nfalse\n```\n")
    (block,) = blocks(page)
    assert block == ("python", "1 / 0\n", 3)
    with pytest.raises(AssertionError, match="false"):
        run_shell("false", tmp_path, "")
