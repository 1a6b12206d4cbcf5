"""The ``nsq`` command: look at topics, read them, publish to them. It needs neither Spark nor gevent."""
