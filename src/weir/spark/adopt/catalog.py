"""Places and tables as the script's session knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.storage.paths import normalize, scheme_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULT_FORMAT = "spark.sql.sources.default"
_SESSION_CATALOG = "spark_catalog"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the session's own catalog, or where a new table would be."""

    #: As the script spells it.
    name: str
    exists: bool
    is_view: bool
    #: The format, in lower case; None for a new table.
    provider: str | None
    location: str
    partition_by: tuple[str, ...]


def default_format(session: SparkSession) -> str:
    """What a query without a format writes."""
    return str(session.conf.get(_DEFAULT_FORMAT)).lower()


def full_path(session: SparkSession, path: str) -> str:
    """A path as Spark understands it: without a scheme, on Hadoop's default file system.

    In Weir's spelling (``storage/paths.py``).
    """
    if scheme_of(path) is not None:
        return normalize(path)
    jvm: Any = session._jvm
    path_class = getattr(jvm, "org.apache.hadoop.fs.Path")
    given = path_class(path)
    system = given.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    return normalize(str(system.makeQualified(given).toString()))


def find_table(session: SparkSession, name: str) -> Table | None:
    """A table by its name; None if it is not in the session's own catalog."""
    state = session._jsparkSession.sessionState()
    parts = _texts(state.sqlParser().parseMultipartIdentifier(name))
    manager = state.catalogManager()
    current = str(manager.currentCatalog().name())
    if len(parts) > 2 and parts[0].lower() == _SESSION_CATALOG:
        parts = parts[1:]
    elif current != _SESSION_CATALOG or (
        len(parts) > 1 and bool(manager.isCatalogRegistered(parts[0]))
    ):
        return None
    if len(parts) > 2:
        return None
    identifier = state.sqlParser().parseTableIdentifier(".".join(map(quoted, parts)))
    catalog = state.catalog()
    if catalog.isTempView(identifier):
        return _new(name, "", exists=True, is_view=True)
    if not catalog.tableExists(identifier):
        return _new(name, _location(catalog.defaultTablePath(identifier)))
    table = catalog.getTableMetadata(identifier)
    if table.tableType().name() == "VIEW":
        return _new(name, "", exists=True, is_view=True)
    provider = table.provider()
    return Table(
        name=name,
        exists=True,
        is_view=False,
        provider=str(provider.get()).lower() if provider.isDefined() else None,
        location=_location(table.location()),
        partition_by=tuple(_texts(table.partitionColumnNames())),
    )


def has_format(session: SparkSession, name: str) -> bool:
    """Whether the session can read and write a format."""
    jvm: Any = session._jvm
    source = getattr(jvm, "org.apache.spark.sql.execution.datasources.DataSource")
    try:
        source.lookupDataSource(name, session._jsparkSession.sessionState().conf())
    except Exception:
        return False
    return True


def create_table(
    session: SparkSession, table: Table, *, provider: str, columns: str, at_location: bool
) -> None:
    """Create a table, unless it exists.

    ``columns`` is DDL. ``at_location``: over files that are already there.
    """
    clauses = [f"CREATE TABLE IF NOT EXISTS {table.name} ({columns}) USING {provider}"]
    if table.partition_by:
        clauses.append(f"PARTITIONED BY ({', '.join(map(quoted, table.partition_by))})")
    if at_location:
        escaped = table.location.replace("\\", "\\\\").replace("'", "\\'")
        clauses.append(f"LOCATION '{escaped}'")
    session.sql(" ".join(clauses))


def refresh_table(session: SparkSession, table: Table) -> None:
    """Show the files that were added to a table."""
    if table.partition_by:
        session.catalog.recoverPartitions(table.name)
    session.catalog.refreshTable(table.name)


def ddl_of(schema: Any, session: SparkSession) -> str:
    """The columns of a schema as DDL."""
    jvm: Any = session._jvm
    parsed = getattr(jvm, "org.apache.spark.sql.types.DataType").fromJson(schema.json())
    return str(parsed.toDDL())


def quoted(name: str) -> str:
    """A name for SQL."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _new(name: str, location: str, *, exists: bool = False, is_view: bool = False) -> Table:
    return Table(
        name=name,
        exists=exists,
        is_view=is_view,
        provider=None,
        location=location,
        partition_by=(),
    )


def _location(uri: Any) -> str:
    """The path of a URI, not escaped."""
    scheme, authority, path = uri.getScheme(), uri.getAuthority(), str(uri.getPath())
    if scheme is None or scheme == "file":
        return path
    return f"{scheme}://{authority or ''}{path}"


def _texts(values: Any) -> list[str]:
    return [str(values.apply(place)) for place in range(values.size())]
