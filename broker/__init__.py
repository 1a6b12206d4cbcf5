"""nsqd and nsqlookupd: a broker for any NSQ client, on gevent."""
