"""The columns a message can become."""

from typing import Final, Literal

from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructField, StructType, TimestampType

from pyspark_nsq.connector.errors import OptionError

_TYPES: Final[dict[str, tuple[DataType, ...]]] = {
    "body": (BinaryType(), StringType()),
    "id": (StringType(),),
    "timestamp": (TimestampType(),),
    "attempts": (IntegerType(),),
    "topic": (StringType(),),
    "nsqd": (StringType(),),
}

DEFAULT_SCHEMA: Final = StructType([StructField(name, types[0]) for name, types in _TYPES.items()])


def check_schema(schema: StructType, invalid_utf8: Literal["fail", "null"]) -> None:
    """Raise ``OptionError`` unless each column of the user's schema is one that the source can give."""
    texts = [field for field in schema.fields if field.name == "body" and isinstance(field.dataType, StringType)]
    if invalid_utf8 == "null" and not all(field.nullable for field in texts):
        raise OptionError(
            "column body of the schema is NOT NULL: with invalidUtf8=null it is null where a body is no UTF-8; "
            "leave that out, or set invalidUtf8 to fail"
        )
    for field in schema.fields:
        types = _TYPES.get(field.name)
        if types is None:
            raise OptionError(f"column {field.name} of the schema is unknown: the source has {', '.join(_TYPES)}")
        if field.dataType not in types:
            allowed = " or ".join(known.simpleString().upper() for known in types)
            raise OptionError(
                f"column {field.name} of the schema is {field.dataType.simpleString().upper()}: it can be {allowed}"
            )
    if len(set(schema.names)) < len(schema.names):
        raise OptionError(f"columns {', '.join(schema.names)} of the schema: one of them is there twice")
