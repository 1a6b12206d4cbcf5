"""Two threads that look around for the coordinator: which sources there are, and what waits in them."""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from pyspark_nsq.connector.connection import Source
from pyspark_nsq.connector.discovery import Directory, PollPlan, TopicStats, fetch_all_stats, fetch_stats
from pyspark_nsq.connector.errors import DiscoveryError
from pyspark_nsq.connector.http_json import ask_all
from pyspark_nsq.connector.options import SourceOptions
from pyspark_nsq.connector.settings import HttpAddress

log = logging.getLogger(__name__)

STATS_TIMEOUT_S: Final = 5.0
_ASKED_AT_ONCE: Final = 32


class Sources:
    """What there is to read, as the options and the lookupds say."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._directory = Directory(options.discovery)

    def look(self) -> tuple[dict[Source, HttpAddress | None], bool]:
        """Every source with the address that tells its statistics, and whether any lookupd answered."""
        topics = self._options.topics
        if self._options.topic_pattern is not None:
            known = self._directory.topics()
            topics = tuple(sorted(topic for topic in known if self._options.topic_pattern.fullmatch(topic)))
        found: dict[Source, HttpAddress | None] = {}
        for topic, nsqds in self._directory.look_up(topics).items():
            for nsqd in nsqds:
                source = Source(topic, nsqd.tcp)
                found[source] = found.get(source) or nsqd.http
        return dict(sorted(found.items())), self._directory.reached


class Watcher:
    """``sources`` and ``stats`` are the newest answers; the callbacks are called after each look."""

    def __init__(
        self,
        options: SourceOptions,
        stats_interval_s: float,
        sources_changed: Callable[[list[Source]], None],
        stats_changed: Callable[[], None],
        asks_first: bool = False,
    ) -> None:
        self.sources: Mapping[Source, HttpAddress | None] = {}
        # With the time at which they were asked for.
        self.stats: dict[Source, tuple[TopicStats | None, float]] = {}
        # The same as long as nobody was told of the sources: once messages flow, an nsqd's counters may not add up.
        self.first_stats: dict[Source, tuple[TopicStats | None, float]] = {}
        self.first_look = threading.Event()
        # Whether all have been told of the sources that are known.
        self._are_told = False
        self._asks_first = asks_first
        self._options = options
        self._looker = Sources(options)
        self._stats_interval_s = stats_interval_s
        self._sources_changed = sources_changed
        self._stats_changed = stats_changed
        self._wake = threading.Event()
        self._has_news = threading.Event()

    def start(self) -> None:
        for work in (self._watch_sources, self._watch_stats):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()

    def look_soon(self) -> None:
        """Something has happened to an nsqd: lookupds may know more."""
        self._wake.set()

    def _watch_sources(self) -> None:
        plan = PollPlan(self._options.discovery, self._options.retry.delay_s, random.Random())
        while True:
            reached = False
            try:
                reached = self._look()
            except Exception:
                # It must not end the query, nor the look-out.
                log.exception("looking for nsqds failed")
            plan.polled(time.monotonic(), reached)
            self._wake.wait(max(0.0, plan.due_s - time.monotonic()))
            if self._wake.is_set():
                self._wake.clear()

    def _look(self) -> bool:
        """Whether any lookupd answered."""
        sources, reached = self._looker.look()
        if sources != self.sources or not self._are_told:
            self._tell(sources)
        # A query that starts while no lookupd answers has not seen anything yet.
        if reached or sources:
            self.first_look.set()
        return reached

    def _tell(self, sources: dict[Source, HttpAddress | None]) -> None:
        for source in sources.keys() - self.sources.keys():
            log.info("found topic %s on nsqd %s", source.topic, source.nsqd)
        for source in self.sources.keys() - sources.keys():
            log.info("topic %s on nsqd %s is no longer listed", source.topic, source.nsqd)
        self.sources, self._are_told = sources, False
        if self._asks_first and not self.first_look.is_set():
            self.first_stats = self._ask_all()
        self._sources_changed(list(sources))
        self._are_told = True
        self._has_news.set()

    def _watch_stats(self) -> None:
        while True:
            try:
                self._ask_stats()
            except Exception:
                log.exception("telling of statistics failed")
            # What waits in a new source is to be seen before it has been read.
            self._has_news.wait(self._stats_interval_s)
            self._has_news.clear()

    def _ask_stats(self) -> None:
        """Renew ``stats``."""
        self.stats = self._ask_all()
        self._stats_changed()

    def _ask_all(self) -> dict[Source, tuple[TopicStats | None, float]]:
        """Ask every nsqd what waits in the channel; one that does not answer is left out."""
        by_address: dict[HttpAddress, list[Source]] = {}
        for source, address in self.sources.items():
            if address is not None:
                by_address.setdefault(address, []).append(source)

        def ask(address: HttpAddress) -> dict[Source, tuple[TopicStats | None, float]]:
            asked_at = time.monotonic()
            try:
                found = self._ask(address, by_address[address])
            except DiscoveryError as error:
                log.debug("no statistics: %s", error)
                return {}
            except Exception:
                log.exception("asking the nsqd at %s for statistics failed", address)
                return {}
            return {source: (found.get(source.topic), asked_at) for source in by_address[address]}

        answers = ask_all(by_address, ask, STATS_TIMEOUT_S, _ASKED_AT_ONCE)
        return {source: stats for answer in answers.values() for source, stats in answer.items()}

    def _ask(self, address: HttpAddress, sources: list[Source]) -> Mapping[str, TopicStats | None]:
        channel, security = self._options.channel, self._options.discovery.security
        if len(sources) > 1:
            return fetch_all_stats(address, channel, STATS_TIMEOUT_S, security)
        topic = sources[0].topic
        return {topic: fetch_stats(address, topic, channel, STATS_TIMEOUT_S, security)}
