"""Starts all of the demo, watches it, and ends all of it."""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark_nsq.cli.arguments import positive
from pyspark_nsq.cli.cluster import ChannelCounts
from pyspark_nsq.demo import view
from pyspark_nsq.demo.query import CHANNEL, EVENTS, RESULTS, end_session, make_session, start_query
from pyspark_nsq.demo.shop import Shop
from pyspark_nsq.demo.view import Batch, Picture
from pyspark_nsq.demo.workers import Publisher, ResultReader
from pyspark_nsq.testing import LocalNsq, local_nsq

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

DONE: Final = 0
FAILED: Final = 1
INTERRUPTED: Final = 130
RESULTS_CHANNEL: Final = "demo"

_LIVE_INTERVAL_S: Final = 0.5
_LINE_INTERVAL_S: Final = 2.0
# A machine that is busy otherwise may need long, and somebody who waits can end it.
_DRAIN_TIMEOUT_S: Final = 180.0
_LOG_LINES: Final = 30

Show = Callable[[Picture], None]


def main() -> int:
    arguments = _parser().parse_args()
    stop = _Stop()
    with tempfile.TemporaryDirectory(prefix="nsq-demo-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        try:
            with _noise_in(folder / "log"):
                verdict = _run(arguments, folder, stop)
        except KeyboardInterrupt:
            print("aborted: nothing was checked", file=sys.stderr)
            return INTERRUPTED
        except Exception as error:
            _tell_log(folder / "log")
            print(f"the demo failed: {error}", file=sys.stderr)
            return FAILED
    print(verdict or "Every published event was counted exactly once.")
    return FAILED if verdict else DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./run demo",
        description="A web shop's events go through two nsqds into a Spark query, and its results back into NSQ. "
        "Exit code 0 says that every event was counted exactly once.",
    )
    parser.add_argument("--seconds", type=positive, metavar="N", help="end after so long; without it, at Ctrl-C")
    parser.add_argument("--rate", type=positive, default=2000, metavar="N", help="events a second (2000)")
    parser.add_argument("--nsqds", type=positive, default=2, metavar="N", help="how many nsqds (2)")
    parser.add_argument("--plain", action="store_true", help="lines of text, as without a terminal")
    return parser


class _Stop:
    """Set by the first Ctrl-C or SIGTERM: the end in order. After ``listen`` the second one aborts; before, it would
    leave behind a Java that Spark has started and not yet connected to."""

    def __init__(self) -> None:
        self.is_set = False
        _on_signals(self._note)

    def listen(self) -> None:
        _on_signals(self._handle)

    def check(self) -> None:
        """While parts of the demo start: there is nothing to end in order yet."""
        if self.is_set:
            raise KeyboardInterrupt

    def _note(self, *_: Any) -> None:
        if not self.is_set:
            self.is_set = True
            # Not print(), which may be what was interrupted.
            os.write(1, b"Ending as soon as this has started ...\n")

    def _handle(self, *_: Any) -> None:
        if self.is_set:
            raise KeyboardInterrupt
        self.is_set = True


def _on_signals(handle: Callable[..., None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


@contextlib.contextmanager
def _noise_in(path: Path) -> Iterator[None]:
    """What Spark, its workers and Python's warnings write to standard error goes to a file."""
    sys.stderr.flush()
    ours = os.dup(2)
    try:
        with path.open("wb") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(ours, 2)
        os.close(ours)


def _tell_log(path: Path) -> None:
    lines = path.read_text(errors="replace").splitlines()
    # Java's stacks say little about what to do.
    told = [line for line in lines if not line.startswith("\tat ")]
    print("\n".join(told[-_LOG_LINES:]), file=sys.stderr)


def _run(arguments: argparse.Namespace, folder: Path, stop: _Stop) -> str | None:
    """What is wrong in the end, None if nothing is."""
    print(f"Starting nsqlookupd, {arguments.nsqds} nsqds and Spark ...", flush=True)
    with contextlib.ExitStack() as ending:
        nsq = ending.enter_context(local_nsq(arguments.nsqds, data_path=folder / "nsq"))
        stop.check()
        nsq.create_channel(EVENTS, CHANNEL)
        nsq.create_channel(RESULTS, RESULTS_CHANNEL)
        spark = make_session(folder)
        ending.callback(end_session, spark)
        # Spark has put a handler of its own in place of ours.
        stop.listen()
        stop.check()
        query = start_query(spark, nsq, folder)
        ending.callback(query.stop)
        stop.check()
        publisher, reader = Publisher(nsq, Shop(seed=1), arguments.rate), ResultReader(nsq, RESULTS_CHANNEL)
        demo = _Demo(nsq, query, publisher, reader)
        with _shown(arguments.plain or not sys.stdout.isatty()) as (show, interval_s):
            for worker in (publisher, reader):
                worker.start()
            demo.watch("running", lambda: stop.is_set or demo.is_over(arguments.seconds), show, interval_s)
            publisher.stop()
            demo.watch("finishing what is under way", demo.is_drained, show, interval_s)
        reader.stop()
        print(view.line(demo.picture("ended")))
        return reader.books().verdict(publisher.published)


class _Demo:
    """All parts, looked at together."""

    def __init__(self, nsq: LocalNsq, query: "StreamingQuery", publisher: Publisher, reader: ResultReader) -> None:
        self._nsq = nsq
        self._query = query
        self._publisher = publisher
        self._reader = reader
        self._rates = view.Rates()
        self._start_s = time.monotonic()

    def is_over(self, seconds: int | None) -> bool:
        return seconds is not None and time.monotonic() - self._start_s >= seconds

    def is_drained(self) -> bool:
        """Whether nothing is under way any more, neither events nor results."""
        counts = self._nsq.stats(EVENTS), self._nsq.stats(RESULTS)
        return all(topic.depth == 0 and not any(c.unfinished for c in topic.channels.values()) for topic in counts)

    def watch(self, phase: str, is_over: Callable[[], bool], show: Show, interval_s: float) -> None:
        """Show everything again and again until it is over, or a part of it has failed."""
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        shown_s = 0.0
        while not is_over():
            self._check()
            if phase != "running" and time.monotonic() > deadline:
                raise TimeoutError(
                    f"after {_DRAIN_TIMEOUT_S:g} s something is still under way: {self._nsq.stats(EVENTS)}"
                )
            if time.monotonic() - shown_s >= interval_s:
                shown_s = time.monotonic()
                show(self.picture(phase))
            time.sleep(0.1)

    def _check(self) -> None:
        self._publisher.check()
        self._reader.check()
        if (error := self._query.exception()) is not None:
            raise error
        if not self._query.isActive:
            raise RuntimeError("the query ended by itself")

    def picture(self, phase: str) -> Picture:
        nsqds = [(nsqd.tcp_address, nsqd.stats(EVENTS)) for nsqd in self._nsq.nsqds]
        channel = sum((counts.channels.get(CHANNEL, ChannelCounts()) for _, counts in nsqds), ChannelCounts())
        now_s = time.monotonic()
        published_rate, finished_rate = self._rates.add(
            now_s, self._publisher.published, channel.messages - channel.unfinished
        )
        return Picture(
            phase,
            now_s - self._start_s,
            self._publisher.published,
            published_rate,
            finished_rate,
            nsqds,
            channel,
            [_batch(progress) for progress in self._query.recentProgress],
            self._reader.books(),
        )


def _batch(progress: Any) -> Batch:
    return Batch(progress["batchId"], progress["numInputRows"], progress["batchDuration"])


@contextlib.contextmanager
def _shown(as_lines: bool) -> Iterator[tuple[Show, float]]:
    """How pictures are shown, and how often."""
    if as_lines:
        yield lambda picture: print(view.line(picture), flush=True), _LINE_INTERVAL_S
        return
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as live:
        yield lambda picture: live.update(view.screen(picture), refresh=True), _LIVE_INTERVAL_S


if __name__ == "__main__":
    sys.exit(main())
