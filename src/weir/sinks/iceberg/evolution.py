"""Lets an Iceberg table take rows whose columns are not its own, in the transaction of the epoch.

A column gets its id when the table gets the column, and that is when its first rows are committed:
until then nobody may see it. So rows are staged before their ids are known. How they find them:

1. ``stage``: the rows' schema has ids from ``NEW_IDS`` for fields that the table lacks, and the
   files have no ids at all, so that readers find their columns by the table's name mapping.
2. ``commit``: the transaction first adds the fields and widens the types, then the name mapping if
   there is none, then the snapshot. A field that the table has by now is found by its name: an
   earlier epoch or another writer added it. Metrics get the id of the table.
3. The transaction requires the schema from which it started. So of two drivers that add a column
   the second meets a conflict, looks again, and finds the epoch, or at least the column.
4. Once the table has the column, files of the next batches have its id.

A name that the mapping keeps for a column that was dropped or renamed is refused for a new column:
older files without ids would show their values in it.

If the table changed when rows are staged, it would show a column of rows that may never be
committed, and need a transaction of its own, before and after which a driver can die. If the id
were predicted, it would be another column's once another writer has added a column first, and
nothing could take the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from weir.errors import SinkMismatchError
from weir.sinks.iceberg.partitions import same_fields
from weir.sinks.iceberg.payload import IcebergPayload
from weir.sinks.iceberg.types import (
    NEW_IDS,
    check_mapping,
    check_takes,
    has_field_ids,
    mapped,
    new_mapping,
    paths,
    widens,
)

_NAME_MAPPING = "schema.name-mapping.default"


@dataclass(frozen=True, kw_only=True)
class _Change:
    """What a table needs to take rows."""

    #: The full name of the struct that gets a new field, and the field's; else that of the field.
    path: tuple[str, ...]
    kind: IcebergType
    is_new: bool

    @property
    def name(self) -> str:
        return ".".join(self.path)


def prepare(
    transaction: Transaction, payloads: Sequence[IcebergPayload], *, adds: bool, place: str
) -> dict[str, Schema]:
    """Make the table of the transaction take the rows of the payloads.

    Returns the rows' schemas, with the table's ids, by their text in payloads. Raises
    ``SinkMismatchError`` if rows do not fit; ``adds``: whether the table's schema may change.
    """
    texts = {payload.schema: None for payload in payloads}
    written = {text: Schema.model_validate_json(text) for text in texts}
    evolve(transaction, written.values(), adds=adds, are_staged=True, place=place)
    table = transaction.table_metadata
    found = {text: with_ids(rows, table.schema()) for text, rows in written.items()}
    for rows in found.values():
        _check_unique(rows, table.schema(), place)
    _check(table, payloads, found, place)
    without_ids = [found[text] for text, rows in written.items() if not has_field_ids(rows)]
    known = table.name_mapping()
    mapping = new_mapping(without_ids, table.schema()) if known is None else known
    for rows in without_ids:
        check_mapping(mapping, rows, place=place)
    if without_ids and known is None:
        transaction.set_properties({_NAME_MAPPING: mapping.model_dump_json()})
    return found


def evolve(
    transaction: Transaction,
    written: Iterable[Schema],
    *,
    adds: bool,
    are_staged: bool = False,
    place: str,
) -> None:
    """Add fields and widen types of the transaction's table, as rows of these schemas need it.

    Raises ``SinkMismatchError`` if that is needed and not ``adds``, and for a name that cannot be
    added; ``are_staged``: whether the rows' names can no longer be changed.
    """
    for rows in written:
        table = transaction.table_metadata
        changes = list(_changes(rows.fields, table.schema().fields, (), table.schema()))
        if not changes:
            continue
        _check_changes(changes, table, adds, are_staged, place)
        update = transaction.update_schema()
        try:
            for change in changes:
                if change.is_new:
                    update.add_column(change.path, change.kind)
                else:
                    update.update_column(change.path, change.kind)
            update.commit()
        except ValueError as error:
            raise SinkMismatchError(
                f"Rows do not fit {place}, since Iceberg does not change the table as they need it"
                f" ({' '.join(str(error).split())}). {_way_out(adds, are_staged)}"
            ) from error


def with_ids(rows: Schema, table: Schema) -> Schema:
    """The rows' schema with the ids of fields that the table has by now."""
    return Schema(*_with_ids(rows.fields, table.fields))


def new_ids(rows: Schema, found: Schema) -> dict[int, int]:
    """By id in the rows' schema, that in the same schema with the table's ids."""
    pairs = zip(paths(rows.fields), paths(found.fields), strict=True)
    return {old: new for (_, old), (_, new) in pairs}


def _check(
    table: TableMetadata, payloads: Sequence[IcebergPayload], found: dict[str, Schema], place: str
) -> None:
    uuid = str(table.table_uuid)
    for same_table, schema, spec in {
        (payload.table == uuid, payload.schema, payload.spec): None for payload in payloads
    }:
        check_takes(table.schema(), found[schema], same_table=same_table, place=place)
        written_spec = PartitionSpec.model_validate_json(spec)
        if not same_fields(written_spec, table.spec()):
            raise SinkMismatchError(
                f"Staged rows do not fit {place}, since its partition spec has changed from"
                f" {written_spec} to {table.spec()}: change it back and run the job again; stop"
                " the job with a savepoint before you change its table."
            )


def _check_unique(rows: Schema, table: Schema, place: str) -> None:
    """Raise ``SinkMismatchError`` if two fields of the rows are one field of the table by now.

    One of them has its id, and the other, which was new, the name that it has been given since.
    Their files have no ids, so readers would find only one of them.
    """
    names: dict[int, str] = {}
    for name, field_id in paths(rows.fields):
        if (other := names.setdefault(field_id, name)) != name:
            now = table.find_column_name(field_id)
            raise SinkMismatchError(
                f"Staged rows do not fit {place}: their fields {other!r} and {name!r} are both"
                f" {now!r} in the table, in which a field was renamed meanwhile. Change the table"
                " back and run the job again; stop the job with a savepoint before you change its"
                " table."
            )


def _check_changes(
    changes: Sequence[_Change], table: TableMetadata, adds: bool, are_staged: bool, place: str
) -> None:
    mapping = table.name_mapping()
    kept = set() if mapping is None else {name for name, _ in mapped(mapping)}
    differences = []
    for change in changes:
        if not change.is_new:
            now = table.schema().find_type(change.name)
            said = f"{change.name!r} is {change.kind} in the rows and {now} in the table"
            differences += [] if adds else [said]
        elif (other := _in_other_case(change, table.schema())) is not None:
            differences.append(f"{change.name!r} of the rows is {other!r} in the table")
        elif not adds:
            differences.append(f"the table lacks {change.name!r}")
        elif change.name in kept:
            differences.append(
                f"{change.name!r} is, by the table's property {_NAME_MAPPING}, the former name of"
                " another column, whose values in older files would be shown in the new one"
            )
    if differences:
        raise SinkMismatchError(
            f"Rows do not fit {place}: {'; '.join(differences)}. {_way_out(adds, are_staged)}"
        )


def _way_out(adds: bool, are_staged: bool) -> str:
    if not adds:
        return "Give the sink schema_evolution='add', or change the table, and run the job again."
    if are_staged:
        return (
            "These rows are staged already, so change the table back: rename the column, or, if it"
            f" was dropped, take its name out of the table's property {_NAME_MAPPING}, and run the"
            " job again."
        )
    return "Give the column another name before the sink, or change the table."


def _in_other_case(change: _Change, table: Schema) -> str | None:
    """The name of a field that Spark takes for the new field."""
    try:
        field = table.find_field(change.name, case_sensitive=False)
    except ValueError:
        return None
    return table.find_column_name(field.field_id)


def _changes(
    written: Sequence[NestedField],
    now: Sequence[NestedField],
    parent: tuple[str, ...],
    table: Schema,
) -> Iterator[_Change]:
    for field, known in _pairs(written, now):
        if known is not None:
            yield from _type_changes(field.field_type, known.field_type, known.field_id, table)
        elif field.field_id >= NEW_IDS:
            yield _Change(path=(*parent, field.name), kind=field.field_type, is_new=True)


def _type_changes(
    written: IcebergType, now: IcebergType, field_id: int, table: Schema
) -> Iterator[_Change]:
    path = (table.find_column_name(field_id) or "",)
    match written, now:
        case StructType(), StructType():
            yield from _changes(written.fields, now.fields, path, table)
        case ListType(), ListType():
            yield from _type_changes(written.element_type, now.element_type, now.element_id, table)
        case MapType(), MapType():
            yield from _type_changes(written.value_type, now.value_type, now.value_id, table)
        case _ if widens(now, written):
            yield _Change(path=path, kind=written, is_new=False)


def _with_ids(written: Sequence[NestedField], now: Sequence[NestedField]) -> Iterator[NestedField]:
    for field, known in _pairs(written, now):
        if known is None:
            yield field
            continue
        yield NestedField(
            field_id=known.field_id,
            name=field.name,
            field_type=_type_with_ids(field.field_type, known.field_type),
            required=False,
        )


def _type_with_ids(written: IcebergType, now: IcebergType) -> IcebergType:
    match written, now:
        case StructType(), StructType():
            return StructType(*_with_ids(written.fields, now.fields))
        case ListType(), ListType():
            return ListType(
                element_id=_id(written.element_id, now.element_id),
                element_type=_type_with_ids(written.element_type, now.element_type),
                element_required=False,
            )
        case MapType(), MapType():
            return MapType(
                key_id=_id(written.key_id, now.key_id),
                key_type=_type_with_ids(written.key_type, now.key_type),
                value_id=_id(written.value_id, now.value_id),
                value_type=_type_with_ids(written.value_type, now.value_type),
                value_required=False,
            )
        case _:
            return written


def _id(written: int, now: int) -> int:
    return now if written >= NEW_IDS else written


def _pairs(
    written: Sequence[NestedField], now: Sequence[NestedField]
) -> Iterator[tuple[NestedField, NestedField | None]]:
    """Each field with the table's: by its id, or by its name if it had none."""
    by_id = {field.field_id: field for field in now}
    by_name = {field.name: field for field in now}
    for field in written:
        is_new = field.field_id >= NEW_IDS
        yield field, by_name.get(field.name) if is_new else by_id.get(field.field_id)
