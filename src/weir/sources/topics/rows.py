"""``RecordRows``: the rows of a topic's records.

The columns are those of the values, if these are parsed, and then Kafka's own, which have the names
and types of Spark's connector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, TypeAlias

from weir.errors import InputError
from weir.sources.topics.client import Message

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from weir.sources.formats.json_rows import JsonRows

_Values: TypeAlias = list[object]

#: Kafka's columns, and their types in DDL.
COLUMNS: Mapping[str, str] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
#: Types that a ``StructType`` writes in another way than DDL.
_WRITTEN: Mapping[str, object] = {
    "int": "integer",
    "bigint": "long",
    "array<struct<key:string,value:binary>>": {
        "type": "array",
        "containsNull": True,
        "elementType": {
            "type": "struct",
            "fields": [
                {"name": name, "type": kind, "nullable": True, "metadata": {}}
                for name, kind in (("key", "string"), ("value", "binary"))
            ],
        },
    },
}
#: Those of Spark's connector, unless it is asked for the headers, too.
SPARK_COLUMNS = tuple(name for name in COLUMNS if name != "headers")
_OF_RECORD: Mapping[str, Callable[[Sequence[Message]], _Values]] = {
    "key": lambda records: list(map(methodcaller("key"), records)),
    "value": lambda records: list(map(methodcaller("value"), records)),
    "topic": lambda records: [records[0].topic()] * len(records),
    "partition": lambda records: [records[0].partition()] * len(records),
    "offset": lambda records: list(map(methodcaller("offset"), records)),
    "timestamp": lambda records: [
        time_ms * 1_000 if kind else None
        for kind, time_ms in map(methodcaller("timestamp"), records)
    ],
    # Spark counts from -1 for no time, the client from 0.
    "timestampType": lambda records: [
        kind - 1 for kind, _ in map(methodcaller("timestamp"), records)
    ],
    "headers": lambda records: [
        [{"key": key, "value": value} for key, value in headers] if headers else None
        for headers in map(methodcaller("headers"), records)
    ],
}


class RecordRows:
    """Makes the rows of one source."""

    def __init__(self, schema: pa.Schema, *, parses: bool, columns: Sequence[str]) -> None:
        """``schema`` is that of the rows: the fields of the values, if it ``parses`` them, before
        Kafka's ``columns``.

        Raises ``PipelineError`` for a schema that values cannot have.
        """
        self._schema = schema
        self._columns = columns
        self._json: JsonRows | None = None
        if parses:
            import pyarrow as pa

            from weir.sources.formats.json_rows import JsonRows
            from weir.sources.formats.opening import check_schema

            fields = pa.schema(list(schema)[: len(schema) - len(columns)])
            check_schema(fields, "json", source="KafkaTopic")
            self._json = JsonRows(fields)

    def batch(self, records: Sequence[Message]) -> pa.RecordBatch:
        """The rows of records of one partition, of which there are some.

        Raises ``InputError`` for a value that cannot be parsed.
        """
        import pyarrow as pa

        parsed = [] if self._json is None else self._parsed(self._json, records)
        own = list(self._schema)[len(parsed) :]
        columns = [
            pa.array(_OF_RECORD[name](records), field.type)
            for name, field in zip(self._columns, own, strict=True)
        ]
        return pa.RecordBatch.from_arrays([*parsed, *columns], schema=self._schema)

    def _parsed(self, json: JsonRows, records: Sequence[Message]) -> list[pa.Array]:
        # A tombstone has a row, whose fields are null.
        values = [b"{}" if (value := record.value()) is None else value for record in records]
        try:
            return list(json.parse_values(values).columns)
        except ValueError:
            for record, value in zip(records, values, strict=True):
                try:
                    json.parse_values([value])
                except ValueError as error:
                    raise InputError(
                        f"The value at offset {record.offset()} of partition {record.partition()}"
                        f" of topic {record.topic()!r} is not JSON of the schema"
                        f" ({' '.join(str(error).split())}): mend the schema, or read the values as"
                        " they are (KafkaTopic(value='bytes')) and parse them in a step."
                    ) from error
            raise


def with_columns(schema: str | StructType | None, columns: Sequence[str]) -> str | StructType:
    """The schema of the values' fields, with Kafka's columns after them."""
    own = ", ".join(f"{name} {COLUMNS[name]}" for name in columns)
    if schema is None or not own:
        return schema if schema is not None else own
    if isinstance(schema, str):
        return f"{schema}, {own}"
    fields = [*schema.jsonValue()["fields"], *map(_field, columns)]
    return schema.fromJson({"type": "struct", "fields": fields})


def _field(name: str) -> dict[str, object]:
    """A column as a ``StructType`` writes it."""
    written: object = _WRITTEN.get(COLUMNS[name], COLUMNS[name])
    return {"name": name, "type": written, "nullable": True, "metadata": {}}
