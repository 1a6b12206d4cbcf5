import random

from pyspark_nsq.broker.latency import Latency, quantiles

MINUTE = 60 * 10**9


def test_quantiles_are_within_two_percent() -> None:
    latency = Latency(10 * MINUTE, 0)
    values = [random.Random(7).randint(1, 10**9) for _ in range(5000)]
    for value in values:
        latency.record(value, MINUTE)
    values.sort()
    for quantile, found in quantiles(latency.buckets(MINUTE), [1.0, 0.99, 0.5, 0.01]):
        exact = values[max(round(quantile * len(values)) - 1, 0)]
        assert abs(found - exact) <= 0.02 * exact + 1


def test_a_run_counts_as_that_many() -> None:
    latency = Latency(10 * MINUTE, 0)
    latency.record(1000, 0, count=99)
    latency.record(10**9, 0)
    found = dict(quantiles(latency.buckets(0), [0.99, 1.0]))
    assert found[0.99] < 1100
    assert found[1.0] > 9 * 10**8


def test_what_is_older_than_the_window_is_forgotten() -> None:
    latency = Latency(10 * MINUTE, 0)
    latency.record(1000, MINUTE)
    assert latency.buckets(6 * MINUTE).total() == 1
    latency.record(1000, 6 * MINUTE)
    assert latency.buckets(9 * MINUTE).total() == 2
    assert latency.buckets(12 * MINUTE).total() == 1
    assert latency.buckets(60 * MINUTE).total() == 0


def test_nothing_measured_is_zero_and_a_clock_that_went_back_is_no_error() -> None:
    latency = Latency(10 * MINUTE, 0)
    assert quantiles(latency.buckets(0), [0.5]) == [(0.5, 0)]
    latency.record(-5, 0)
    assert latency.buckets(0).total() == 1


def test_a_latency_is_told_at_most_one_percent_too_short_and_never_too_long() -> None:
    draw = random.Random(8)
    for exact in [1, 2, 10, 10**12, *(draw.randint(1, 10**10) for _ in range(2000))]:
        latency = Latency(10 * MINUTE, 0)
        latency.record(exact, 0)
        ((_, found),) = quantiles(latency.buckets(0), [0.5])
        assert 0.99 * exact - 1 <= found <= exact
