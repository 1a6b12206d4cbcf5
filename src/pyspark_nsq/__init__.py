"""NSQ for Spark: a streaming source, a sink, and a broker.

Spark imports every installed module named ``pyspark_*`` and registers its ``DefaultSource``. An exception here
would hide all Python data sources of that machine, and the broker is imported without Spark: so nothing is
imported until somebody asks for the data source, and a machine without Spark has none.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_nsq.connector.source import NsqDataSource as DefaultSource

__all__ = ["DefaultSource", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        try:
            from pyspark_nsq.connector.source import NsqDataSource
        except Exception as error:
            # Only an AttributeError says "not here" to Spark's lookup; anything else would end it.
            raise AttributeError(f"pyspark_nsq.DefaultSource is not available: {error!r}") from error
        globals()[name] = NsqDataSource
        return NsqDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
