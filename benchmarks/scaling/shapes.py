"""The clusters that are simulated: tables of them, each with a title."""

from dataclasses import replace

from model import Shape

CORES = 4
_ONE = Shape(nsqds=1, hosts=1, cores_per_host=CORES, partitions=CORES, in_flight_max=50_000)


def machine(cores: int, in_flight_max: int) -> Shape:
    """One host with one nsqd."""
    return replace(_ONE, cores_per_host=cores, partitions=cores, in_flight_max=in_flight_max)


def tables() -> list[tuple[str, list[Shape]]]:
    return [
        (
            "One host, one nsqd: the window",
            [replace(_ONE, in_flight_max=n) for n in (12_500, 50_000, 200_000, 400_000)],
        ),
        ("Hosts and nsqds", [_grown(n, n) for n in (1, 3, 10, 30, 100, 300)]),
        ("Few nsqds for 30 hosts", [_grown(30, n) for n in (1, 5, 15, 60, 300)]),
        ("The window of 100 hosts", [_grown(100, 100, n) for n in (20_000, 100_000, 400_000, 1_000_000)]),
        ("The tasks of 300 hosts", [_grown(300, 300, tasks_per_core=part) for part in (0.25, 0.5, 1, 2)]),
    ]


def _grown(hosts: int, nsqds: int, in_flight_per_host: int = 400_000, tasks_per_core: float = 1) -> Shape:
    tasks = max(1, round(hosts * CORES * tasks_per_core))
    return replace(_ONE, hosts=hosts, nsqds=nsqds, partitions=tasks, in_flight_max=hosts * in_flight_per_host)
