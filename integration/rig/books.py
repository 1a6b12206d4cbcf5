"""What is published to every broker, and whether the books balance at the end."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rig.daemons import Nsqd, wait_until


class Books:
    """A topic with a channel on each of some brokers."""

    def __init__(self, nsqds: Sequence[Nsqd], topic: str) -> None:
        self.nsqds = nsqds
        self.topic = topic
        self.published: Counter[bytes] = Counter()
        for nsqd in nsqds:
            nsqd.make_channel(topic, "c")

    @property
    def options(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "channel": "c",
            "nsqdTcpAddresses": ",".join(nsqd.tcp for nsqd in self.nsqds),
            "nsqdHttpAddresses": ",".join(nsqd.http for nsqd in self.nsqds),
            "receiverLease": "4s",
        }

    def publish(self, count: int, nsqds: Sequence[Nsqd] = ()) -> Counter[bytes]:
        """So many new messages on each broker, or on each of those given."""
        new: Counter[bytes] = Counter()
        for nsqd in nsqds or self.nsqds:
            first = len(self.published) + len(new)
            bodies = [b"%s %d" % (self.topic.encode(), number) for number in range(first, first + count)]
            nsqd.publish(self.topic, bodies)
            new.update(bodies)
        self.published += new
        return new

    def wait_settled(self) -> None:
        """Every message is finished: nothing waits, is in flight or deferred."""
        wait_until(self._is_settled, f"empty channels of {self.topic}: {self._stats()}")

    def _is_settled(self) -> bool:
        return all(nsqd.unfinished(self.topic, "c") == 0 for nsqd in self.nsqds)

    def wait_all_back(self, count: int) -> None:
        """So many messages wait in the channels, and nobody has any."""

        def is_back() -> bool:
            stats = [nsqd.channel_stats(self.topic, "c") for nsqd in self.nsqds]
            return all(each and each.in_flight == each.deferred == each.client_count == 0 for each in stats) and (
                sum(each.depth for each in stats if each) == count
            )

        wait_until(is_back, f"{count} messages back in the channels: {self._stats()}")

    def wait_in_flight(self, count: int) -> None:
        wait_until(
            lambda: sum(each.in_flight for each in map(self._channel, self.nsqds) if each) == count,
            f"{count} messages in flight: {self._stats()}",
        )

    def held(self) -> int:
        """How many messages those who are connected have in flight."""
        return sum(each.in_flight_at_clients for each in map(self._channel, self.nsqds) if each)

    def _channel(self, nsqd: Nsqd) -> Any:
        return nsqd.channel_stats(self.topic, "c")

    def _stats(self) -> list[Any]:
        return [self._channel(nsqd) for nsqd in self.nsqds]
