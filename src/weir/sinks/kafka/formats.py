"""Avro and Protobuf: a row becomes bytes in Spark's Python workers.

With a schema registry, confluent-kafka's own client and serializers write the five leading bytes
and register or look up schemas. Without one, values are plain: Avro by fastavro, without a header,
and Protobuf as the message serializes itself.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

#: Encodes a row for a topic.
Encode = Callable[[dict[str, Any], str], bytes]


@dataclass(frozen=True)
class RowFormat:
    """How rows are encoded; pickled for Spark's workers."""

    #: Avro's schema as JSON text; None if the registry has it, or for Protobuf.
    schema: str | None = None
    #: A class that ``protoc`` has made.
    message: type[Any] | None = None
    #: Of confluent-kafka's ``SchemaRegistryClient``: ``url``, ``basic.auth.user.info``.
    registry: Mapping[str, Any] | None = field(default=None, repr=False)
    #: Of its serializer: ``auto.register.schemas``, ``use.latest.version``.
    serializer: Mapping[str, Any] | None = None

    def encoder(self) -> Encode:
        """The function that encodes a row."""
        if self.registry is not None:
            return self._registered()
        return self._plain_avro() if self.message is None else self._plain_protobuf()

    def _plain_avro(self) -> Encode:
        from fastavro import parse_schema, schemaless_writer

        schema = parse_schema(json.loads(self.schema or ""))

        def encode(row: dict[str, Any], topic: str) -> bytes:
            del topic
            out = BytesIO()
            schemaless_writer(out, schema, row)
            return out.getvalue()

        return encode

    def _plain_protobuf(self) -> Encode:
        def encode(row: dict[str, Any], topic: str) -> bytes:
            del topic
            made: bytes = self._parsed(row).SerializeToString(deterministic=True)
            return made

        return encode

    def _registered(self) -> Encode:
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.serialization import MessageField, SerializationContext

        client = SchemaRegistryClient.new_client(dict(self.registry or {}))
        conf = dict(self.serializer or {})
        serialize: Any
        if self.message is None:
            from confluent_kafka.schema_registry.avro import AvroSerializer

            if self.schema is None:
                conf = {"auto.register.schemas": False, "use.latest.version": True, **conf}
            serialize = AvroSerializer(client, self.schema, conf=conf)
            shaped: Callable[[dict[str, Any]], Any] = dict
        else:
            from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

            serialize = ProtobufSerializer(self.message, client, conf)
            shaped = self._parsed

        @lru_cache
        def context(topic: str) -> SerializationContext:
            return SerializationContext(topic, MessageField.VALUE)

        def encode(row: dict[str, Any], topic: str) -> bytes:
            made: bytes = serialize(shaped(row), context(topic))
            return made

        return encode

    def _parsed(self, row: dict[str, Any]) -> Any:
        from google.protobuf import json_format

        assert self.message is not None
        return json_format.ParseDict(_jsonable(row), self.message())


def _jsonable(value: Any) -> Any:
    """A value as Protobuf's JSON has it. Nulls are left out: a field is then not set."""
    match value:
        case dict():
            return {key: _jsonable(each) for key, each in value.items() if each is not None}
        case list() | tuple():
            return [_jsonable(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.isoformat() if value.tzinfo else f"{value.isoformat()}Z"
        case date() | Decimal():
            return str(value)
        case _:
            return value


@dataclass(frozen=True)
class EncodeRows:
    """Encodes the column ``row`` of Arrow batches, for ``mapInArrow``; ``kept`` are passed on."""

    format: RowFormat
    kept: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Encode each batch."""
        import pyarrow as pa

        encode = self.format.encoder()
        for batch in batches:
            rows = zip(
                batch.column("row").to_pylist(),
                batch.column("gone").to_pylist(),
                batch.column("to").to_pylist(),
                strict=True,
            )
            values = [None if gone else encode(row, topic or "") for row, gone, topic in rows]
            columns = [pa.array(values, pa.binary()), *(batch.column(name) for name in self.kept)]
            yield pa.RecordBatch.from_arrays(columns, ["value", *self.kept])
