"""Which clients are near: with ``--enable-experiment=topology-aware-consumption`` they get messages first.

A client tells its zone and region in IDENTIFY. As in Go's master: who can take messages and is in nsqd's zone comes
first, then who is in its region, then everybody; and what each channel delivered is counted by these three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark_nsq.broker.nsqd_options import NsqdOptions

EXPERIMENT: Final = "topology-aware-consumption"
ZONE_LOCAL: Final = "zone_local_msg_count"
REGION_LOCAL: Final = "region_local_msg_count"
GLOBAL: Final = "global_msg_count"


class Nearness(NamedTuple):
    """``rank``: lower ones are served first. ``counter``: where deliveries are counted, empty when they are not."""

    rank: int = 0
    counter: str = ""


NOT_LOOKED_AT: Final = Nearness()


def stranger(options: NsqdOptions) -> Nearness:
    """A client that never said where it is."""
    return Nearness(2, GLOBAL) if EXPERIMENT in options.enable_experiments else NOT_LOOKED_AT


def nearness(zone: str, region: str, options: NsqdOptions) -> Nearness:
    """A client that said so. An unnamed place equals an unnamed place where deliveries are counted, as in Go, but
    being there is no reason to be served first."""
    if EXPERIMENT not in options.enable_experiments:
        return NOT_LOOKED_AT
    same_zone, same_region = zone == options.topology_zone, region == options.topology_region
    counter = ZONE_LOCAL if same_zone else REGION_LOCAL if same_region else GLOBAL
    if same_zone and zone:
        return Nearness(0, counter)
    return Nearness(1 if same_region and region else 2, counter)
