"""Where the connector's log goes in processes that only Spark knows of."""

import logging
import sys


def show_log() -> None:
    """Have what happens shown on standard error, unless somebody has decided what to do with it."""
    logger = logging.getLogger("pyspark_nsq")
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s nsq: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
