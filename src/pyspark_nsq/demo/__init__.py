"""What ``./run demo`` shows: a web shop's events in NSQ, a Spark query that counts them, and its results in NSQ."""
