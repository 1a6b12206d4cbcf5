"""What benchmarks share: brokers of their own, and one Spark."""
