"""All differences between the releases of Spark that Weir runs on.

Weir is written for the newest release. What an older one does in another way is done here; what it
lacks is refused here, in a sentence that names the release which has it:

==================================  =====  =====================================================
what                                since  before
==================================  =====  =====================================================
a name of each streaming source     4.2    the nodes of a plan have no parameter for it
``to_arrow_schema(timezone=)`` and  4.2    timestamps always have the zone UTC
``to_arrow_type(timezone=)``
the state of a stopped query can    4.2    refused: a restore with another number of state
be repartitioned                           partitions, if the query has state in Spark
``StateRewriter``                   4.2    refused: joined queries that have run different
                                           numbers of batches, if such a query has state in Spark
the state's columns stay nullable   4.3    the optimizer rules that look for empty inputs are
whichever inputs are empty                 excluded (``EMPTINESS_RULES``)
==================================  =====  =====================================================

The last line: from a filter or an inner join, Spark's optimizer knows that a column is never null,
unless the batch has no rows in that input. Then it drops the filter, and the column is nullable.
Spark refuses state that was written with the one and is read with the other, so a query that starts
again with an empty input would fail. A query that began on an older release keeps to the old way on
a newer one, as its offset log says.

A checkpoint is restored by the release that took it, and by later ones: Spark reads what its
earlier releases wrote, and cannot know what later ones write. So each snapshot of a query names the
version of Spark (``RELEASE_ENTRY``). A snapshot without it is restored by every release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from weir.core.types import CompletedCheckpoint
from weir.errors import UnsupportedEnvironmentError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from weir.spark.java import Jvm

#: The entry of a snapshot with the version of the Spark that took it: ``4.1.4``.
RELEASE_ENTRY = "weir-spark"


class Release(NamedTuple):
    """A release of Spark. Its patches differ in nothing that matters here."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


LEAST = Release(4, 1)
BELOW = Release(5, 0)
#: The first release of each line of the table.
_NAMES_SOURCES = Release(4, 2)
_NAMES_ZONE = Release(4, 2)
_REPARTITIONS = Release(4, 2)
_REWRITES = Release(4, 2)
_GUARDS_NULLABILITY = Release(4, 3)

#: Makes the optimizer's plan of a batch depend on which inputs have rows.
EMPTINESS_RULES = tuple(
    f"org.apache.spark.sql.catalyst.optimizer.{name}"
    for name in ("PropagateEmptyRelation", "ConvertToLocalRelation")
)
#: The setting of a release that guards the nullability of state; offset logs record it.
_GUARD = "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled"


def release_of(version: str) -> Release | None:
    """The release of a version; None if the text is not one."""
    parts = re.match(r"(\d+)\.(\d+)(?!\d)", version)
    return None if parts is None else Release(int(parts[1]), int(parts[2]))


def installed_version() -> str:
    """The version of the PySpark of this process."""
    from pyspark import __version__

    return __version__


def installed() -> Release:
    """The release of the PySpark of this process."""
    return release_of(installed_version()) or Release(0, 0)


# -- what is done in another way


def source_relation(jvm: Jvm, *, name: str, table: Any, columns: Any) -> Any:
    """The leaf of a plan that reads a streaming table."""
    relation = jvm.sql_class("catalyst.streaming.StreamingRelationV2")
    options = jvm.sql_class("util.CaseInsensitiveStringMap")(jvm.java_class("java.util.HashMap")())
    unnamed = _no_name(relation, "apply$default$9")
    none = jvm.none
    return relation(none, name, table, options, columns, none, none, none, *unnamed)


def execution_relation(jvm: Jvm, *, source: Any, columns: Any) -> Any:
    """The leaf of a plan that reads a streaming source of the older kind."""
    relation = jvm.sql_class("execution.streaming.runtime.StreamingExecutionRelation")
    unnamed = _no_name(relation, "apply$default$4")
    return relation(source, columns, jvm.none, *unnamed, jvm.java_session)


def _no_name(relation: Any, default: str) -> list[Any]:
    """The argument for a source without a name, where there is such a parameter."""
    return [] if installed() < _NAMES_SOURCES else [getattr(relation, default)()]


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema in Arrow; timestamps with a zone are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, **_zone())


def arrow_type(kind: DataType) -> pa.DataType:
    """The type in Arrow; a timestamp with a zone is in UTC."""
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(kind, **_zone())


def _zone() -> dict[str, Any]:
    return {} if installed() < _NAMES_ZONE else {"timezone": "UTC"}


def guards_nullability(conf: Mapping[str, str] | None) -> bool:
    """Whether Spark keeps the columns of a query's state nullable in all batches.

    ``conf`` has the settings in the query's offset log; None if it has run no batch yet.
    """
    if conf is None:
        return installed() >= _GUARDS_NULLABILITY
    return conf.get(_GUARD) == "true"


# -- what is refused


def lacks_repartition() -> str | None:
    """What to say where the state of a stopped query cannot be repartitioned; None where it can."""
    return _lacks("repartition the state of a stopped query", _REPARTITIONS)


def lacks_rewriter() -> str | None:
    """What to say where the state of a stopped query cannot be written again; None where it can."""
    return _lacks("give the state of a stopped query another version", _REWRITES)


def _lacks(what: str, since: Release) -> str | None:
    if installed() >= since:
        return None
    return f"Spark {installed_version()} cannot {what}, which Spark {since} can"


def check_checkpoint(checkpoint: CompletedCheckpoint) -> None:
    """Raise ``UnsupportedEnvironmentError`` for a checkpoint of a later release."""
    entries = (task.entries.get(RELEASE_ENTRY, "") for task in checkpoint.tasks)
    newest = max(filter(None, map(release_of, entries)), default=installed())
    if newest > installed():
        kind = "savepoint" if checkpoint.kind.is_savepoint else "checkpoint"
        raise UnsupportedEnvironmentError(
            f"The {kind} {checkpoint.external_path} was taken with Spark {newest}, but Spark"
            f" {installed_version()} is installed, which may not be able to read it: install"
            f" PySpark {newest} or newer."
        )
