"""Rows as Kafka's records: which columns become what, and in which format values are.

Spark encodes, in the tasks that stage: so a row that does not fit fails its batch, before a
checkpoint has it. What is staged has these columns, of which the first is always there::

    value binary, key binary, topic string, partition int, timestamp timestamp,
    headers array<struct<key string, value binary>>

A record that its topic could never take (too large, a partition or a topic that does not exist)
fails the batch as well, by Spark's ``raise_error`` with a text that begins with ``REFUSED``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from weir.errors import InvariantError, SinkError, SinkMismatchError
from weir.sinks.arrow_rows import map_in_arrow
from weir.sinks.kafka.client import Topic
from weir.sinks.kafka.formats import EncodeRows, RowFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ValueFormat: TypeAlias = Literal["json", "avro", "protobuf", "text", "bytes"]

#: Columns with a meaning of their own; with Spark's names.
KAFKA_COLUMNS = ("key", "topic", "partition", "headers", "timestamp")
REFUSED = "weir kafka record"
_REFUSAL = re.compile(rf"{REFUSED}: ([^\n]*?) :end")
#: What a batch has beside its one record, at most: its own header, lengths, offsets.
_OVERHEAD_BYTES = 100
_HEADER_OVERHEAD_BYTES = 10
_HEADERS = "array<struct<key: string, value: binary>>"


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How the rows of one sink become records."""

    #: None if the rows say it.
    topic: str | None
    value_format: ValueFormat | None
    #: Columns of which the key is made; none: the column ``key``, if there is one.
    key: tuple[str, ...]
    #: A condition in SQL; rows that meet it get a null value.
    tombstone_where: str | None
    #: For Avro and Protobuf.
    rows: RowFormat | None
    #: The sink, for messages.
    place: str

    def check(self) -> None:
        """Raise ``SinkError`` for arguments that contradict each other."""
        if self.value_format not in (None, *get_args(ValueFormat)):
            raise SinkError(
                f"{self.place} has the unknown value={self.value_format!r}: use one of"
                f" {get_args(ValueFormat)}, or None for a column 'value'."
            )
        if (self.value_format in ("avro", "protobuf")) != (self.rows is not None):
            raise SinkError(
                f"{self.place} needs 'schema' or 'schema_registry' with value='avro', and"
                " 'message' with value='protobuf', and takes them with no other format."
            )

    def staged(self, frame: DataFrame, topics: Mapping[str, Topic]) -> DataFrame:
        """The frame's rows as records. Raises ``SinkMismatchError`` if the columns do not fit."""
        types = {field.name: field.dataType.simpleString() for field in frame.schema}
        self._check_columns(types)
        columns = self._passed_on(types)
        if self.rows is not None:
            encoded = self._by_rows(frame, types, columns)
        else:
            columns = {"value": self._value(types), **columns}
            expressions = (f"{sql} AS {_quoted(name)}" for name, sql in columns.items())
            encoded = frame.selectExpr(*expressions)
        kept = [name for name in encoded.columns if name != "value"]
        checked = f"{_checked(kept, self.topic, topics)} AS value"
        return encoded.selectExpr(checked, *map(_quoted, kept))

    def _passed_on(self, types: Mapping[str, str]) -> dict[str, str]:
        """What a record has beside its value, as SQL."""
        columns = {}
        if self.key or "key" in types:
            columns["key"] = self._key(types)
        if self.topic is None:
            columns["topic"] = "topic"
        columns |= {name: name for name in ("partition", "timestamp") if name in types}
        if "timestamp" in types:
            columns["timestamp"] = "CAST(timestamp AS TIMESTAMP)"
        if "headers" in types:
            columns["headers"] = f"CAST(headers AS {_HEADERS})"
        return columns

    def _check_columns(self, types: Mapping[str, str]) -> None:
        if self.topic is None and "topic" not in types:
            raise self._misfit("have no column 'topic', and the sink names no topic")
        if self.value_format is None and "value" not in types:
            raise self._misfit(
                "have no column 'value': select one, or give value= to make values of all columns"
            )
        if missing := [name for name in self.key if name not in types]:
            raise self._misfit(f"have no column {missing[0]!r}, of which the key is made")
        kinds = {
            "key": ("string", "binary"),
            "value": ("string", "binary"),
            "topic": ("string",),
            "partition": ("int",),
            "timestamp": ("timestamp", "timestamp_ntz"),
        }
        for name in self._named_by_sink:
            del kinds[name]
        if self.value_format is not None:
            del kinds["value"]
        for name, allowed in kinds.items():
            if name in types and types[name] not in allowed:
                raise self._misfit(
                    f"have {types[name]} in column {name!r}, which must be {' or '.join(allowed)}"
                )
        if "headers" in types and not re.fullmatch(
            r"array<struct<key:string,value:(binary|string)>>", types["headers"]
        ):
            raise self._misfit(
                f"have {types['headers']} in column 'headers', which must be"
                " array<struct<key:string,value:binary>>"
            )
        if self.value_format in ("text", "bytes"):
            (wanted, *others) = [*self._value_columns(types), None]
            if wanted is None or others[:-1]:
                raise self._misfit(
                    f"must have one column beside {', '.join(KAFKA_COLUMNS)} for"
                    f" value={self.value_format!r}, not {len(others)}"
                )
            if self.value_format == "bytes" and types[wanted] != "binary":
                raise self._misfit(f"have {types[wanted]} in column {wanted!r}, not binary")

    def _value_columns(self, types: Mapping[str, str]) -> list[str]:
        taken = set(KAFKA_COLUMNS) - self._named_by_sink
        return [name for name in types if name not in taken or name in self.key]

    @property
    def _named_by_sink(self) -> set[str]:
        """What the sink says itself, so that columns of these names are like any other."""
        said = {"topic": self.topic is not None, "key": bool(self.key)}
        return {name for name, is_said in said.items() if is_said}

    def _key(self, types: Mapping[str, str]) -> str:
        if not self.key:
            return "CAST(key AS BINARY)"
        if len(self.key) == 1:
            (name,) = self.key
            return _quoted(name) if types[name] == "binary" else _text(name)
        return f"CAST(to_json({_struct(self.key)}) AS BINARY)"

    def _value(self, types: Mapping[str, str]) -> str:
        names = self._value_columns(types)
        if self.value_format is None:
            value = "CAST(value AS BINARY)"
        elif self.value_format == "json":
            value = f"to_json({_struct(names)}, map('ignoreNullFields', 'false'))"
            value = f"CAST({value} AS BINARY)"
        else:
            value = _text(names[0]) if self.value_format == "text" else _quoted(names[0])
        return f"CASE WHEN {self._is_gone} THEN NULL ELSE {value} END"

    @property
    def _is_gone(self) -> str:
        return "false" if self.tombstone_where is None else f"({self.tombstone_where})"

    def _by_rows(
        self, frame: DataFrame, types: Mapping[str, str], columns: Mapping[str, str]
    ) -> DataFrame:
        """Encode in Python, row by row."""
        if self.rows is None:
            raise InvariantError("rows are encoded in Python without a format")
        given = frame.selectExpr(
            f"{_struct(self._value_columns(types))} AS `row`",
            f"coalesce({self._is_gone}, false) AS gone",
            f"{'topic' if self.topic is None else _literal(self.topic)} AS `to`",
            *(f"{sql} AS {_quoted(name)}" for name, sql in columns.items()),
        )
        kinds = {field.name: field.dataType.simpleString() for field in given.schema}
        types_kept = (f"{_quoted(name)} {kinds[name]}" for name in columns)
        schema = ", ".join(["value binary", *types_kept])
        return map_in_arrow(given, given.columns, EncodeRows(self.rows, tuple(columns)), schema)

    def _misfit(self, what: str) -> SinkMismatchError:
        return SinkMismatchError(f"The rows for {self.place} {what}.")


def refusal(error: BaseException, place: str) -> SinkMismatchError | None:
    """The error for a record that could never be published, if that is what Spark has raised."""
    found = _REFUSAL.search(str(error))
    if found is None:
        return None
    return SinkMismatchError(
        f"A row for {place} can never be published: {found[1]}. Nothing of its batch was staged."
    )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _text(name: str) -> str:
    return f"CAST(CAST({_quoted(name)} AS STRING) AS BINARY)"


def _struct(names: Sequence[str]) -> str:
    return f"named_struct({', '.join(f'{_literal(name)}, {_quoted(name)}' for name in names)})"


def _checked(names: Sequence[str], topic: str | None, topics: Mapping[str, Topic]) -> str:
    """The value as SQL; an error in place of one that its topic cannot take.

    ``names``: the columns that the records have beside it.
    """
    to = "topic" if topic is None else _literal(topic)
    limit = _by_topic(to, {name: each.max_bytes for name, each in topics.items()})
    count = _by_topic(to, {name: each.partitions for name, each in topics.items()})
    sizes = [f"{_OVERHEAD_BYTES}", "coalesce(length(value), 0)"]
    sizes += ["coalesce(length(key), 0)"] if "key" in names else []
    if "headers" in names:
        each = f"octet_length(h.key) + coalesce(length(h.value), 0) + {_HEADER_OVERHEAD_BYTES}"
        sizes.append(f"coalesce(aggregate(headers, 0, (size, h) -> size + {each}), 0)")
    size = f"({' + '.join(sizes)})"
    key = "coalesce(substring(CAST(key AS STRING), 1, 100), 'null')" if "key" in names else "'null'"

    def refused(*parts: str) -> str:
        parts = tuple(f"CAST({part} AS STRING)" for part in parts)
        text = ", ".join([_literal(f"{REFUSED}: "), *parts, "' (key '", key, "') :end'"])
        return f"CAST(raise_error(concat({text})) AS BINARY)"

    shown = f"coalesce({to}, 'null')"
    unknown = refused(_literal("the topic '"), shown, _literal("' does not exist"))
    large = refused(
        "'its record has '",
        size,
        _literal(" bytes with what surrounds it, and the topic '"),
        shown,
        _literal("' takes "),
        limit,
        "' (max.message.bytes)'",
    )
    checks = [f"WHEN {limit} IS NULL THEN {unknown}", f"WHEN {size} > {limit} THEN {large}"]
    if "partition" in names:
        nowhere = refused(
            "'it names partition '",
            "partition",
            _literal(", and the topic '"),
            shown,
            _literal("' has "),
            count,
        )
        checks.append(f"WHEN partition < 0 OR partition >= {count} THEN {nowhere}")
    return f"CASE {' '.join(checks)} ELSE value END"


def _by_topic(topic: str, values: Mapping[str, int]) -> str:
    """A topic's value as SQL; null if the topic is unknown."""
    if not values:
        return "CAST(NULL AS INT)"
    pairs = ", ".join(f"{_literal(name)}, {value}" for name, value in values.items())
    return f"element_at(map({pairs}), {topic})"
