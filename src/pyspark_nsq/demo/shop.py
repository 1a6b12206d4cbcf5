"""The events of a web shop: people from several countries look at things, and some of them buy."""

import json
import random
from collections.abc import Iterator
from typing import Final

COUNTRIES: Final = {"DE": 30, "FR": 22, "IT": 18, "PL": 12, "NL": 10, "PT": 8}
PRODUCTS: Final = {"kettle": 39.9, "lamp": 24.5, "chair": 119.0, "clock": 17.8, "radio": 64.0, "rug": 210.0}
ACTIONS: Final = {"view": 82, "cart": 13, "order": 5}


class Shop:
    """Numbers its events from 0 on, so that at the end each can be accounted for."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.count = 0

    def events(self, count: int, time_s: float) -> Iterator[str]:
        """So many events that happen now, as JSON."""
        for _ in range(count):
            product = self._random.choice(tuple(PRODUCTS))
            event = {
                "number": self.count,
                "time": round(time_s, 3),
                "customer": self._random.randrange(50_000),
                "country": self._pick(COUNTRIES),
                "action": self._pick(ACTIONS),
                "product": product,
                "price": PRODUCTS[product],
            }
            self.count += 1
            yield json.dumps(event)

    def _pick(self, weights: dict[str, int]) -> str:
        return self._random.choices(tuple(weights), tuple(weights.values()))[0]


def checksum(count: int) -> int:
    """The sum of the numbers of the first so many events."""
    return count * (count - 1) // 2
