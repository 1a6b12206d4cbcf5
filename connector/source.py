"""What Spark knows as the format "nsq": it checks the options and hands over to the source or the sink.

Spark imports this module in every session of a machine that has it, and in every process that plans a query, within
a time limit: nothing heavy is imported before it is needed.
"""

from typing import TYPE_CHECKING, Final, NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_nsq.connector.errors import OptionError
from pyspark_nsq.connector.options import SourceOptions, parse_source_options
from pyspark_nsq.connector.schema import DEFAULT_SCHEMA, check_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

    from pyspark_nsq.connector.stream_reader import NsqStreamReader

# Spark asks for the schema before it tells what for: who reads a batch need not complete the options first.
_IF_BATCH: Final = (
    "(spark.read cannot read NSQ, whatever its options. What is there now is read by spark.readStream, "
    "started with .trigger(availableNow=True).)"
)


class NsqDataSource(DataSource):
    """NSQ topics as streams: ``spark.readStream.format("nsq")`` and ``df.writeStream.format("nsq")``."""

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> StructType:
        try:
            self._source_options()
        except OptionError as error:
            error.add_note(_IF_BATCH)
            raise
        return DEFAULT_SCHEMA

    def streamReader(self, schema: StructType) -> "NsqStreamReader":  # noqa: N802 (Spark's name)
        from pyspark_nsq.connector.stream_reader import NsqStreamReader

        options = self._source_options()
        check_schema(schema, options.invalid_utf8)
        return NsqStreamReader(options, schema)

    def reader(self, schema: StructType) -> NoReturn:  # noqa: ARG002 (Spark's name)
        from pyspark_nsq.connector.sink import refuse_batch_read

        refuse_batch_read()

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamArrowWriter":  # noqa: N802
        from pyspark_nsq.connector.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> "DataSourceArrowWriter":
        from pyspark_nsq.connector.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def _source_options(self) -> SourceOptions:
        return parse_source_options(self.options)

    def __repr__(self) -> str:
        # The options may hold secrets.
        return f"{type(self).__name__}()"
