"""What the benchmarks with Spark stand on: brokers of their own, and one Spark."""
