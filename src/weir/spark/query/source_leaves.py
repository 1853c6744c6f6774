"""What a streaming DataFrame reads, from the leaves of Spark's plan.

Spark's leaves say it in two forms: a file source or Delta keeps its options in a ``DataSource``, a
newer source such as Kafka's in its relation.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from weir.errors import StorageError
from weir.storage.paths import normalize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

FILE_FORMATS = ("parquet", "json", "csv", "text", "orc", "avro", "xml", "delta")
#: The short names of Spark's socket source.
SOCKETS = ("socket", "textsocket")
#: Options that name what a source reads, the first that is set.
_PLACES = ("path", "table", "topic", "streamname", "url")
_KAFKA_TOPICS = ("subscribe", "subscribepattern", "assign")


def streaming_leaves(frame: DataFrame) -> list[tuple[str, dict[str, str]]]:
    """Short name and options of each streaming source of a frame, in the order of its plan."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    found = (leaf_source(leaves.apply(number)) for number in range(leaves.size()))
    return [(name, options) for name, options in found if name]


def read_identity(frame: DataFrame) -> str:
    """What a source's frame reads, the same in every run: ``json files at /data/landing``.

    Empty if it has no streaming source that is known; asks the JVM.
    """
    return " and ".join(_identity(name, options) for name, options in streaming_leaves(frame))


def _identity(source: str, options: dict[str, str]) -> str:
    if source == "kafka":
        topics = next((options[key] for key in _KAFKA_TOPICS if key in options), "")
        servers = sorted(options.get("kafka.bootstrap.servers", "").split(","))
        return f"kafka topics {topics} at {','.join(servers)}"
    if source in SOCKETS:
        return f"{source} at {options.get('host')}:{options.get('port')}"
    where = next((options[key] for key in _PLACES if options.get(key)), None)
    if where is None:
        return source
    if source not in FILE_FORMATS:
        return f"{source} at {where}"
    try:
        where = normalize(where)
    except StorageError:
        _log.debug("Cannot normalize the path of a source.", exc_info=True)
    return f"{source} files at {where}"


def leaf_identity(leaf: Any, name: str, options: dict[str, str]) -> str:
    """What a leaf of this source and options reads, the same in every run."""
    what = _identity(name, options)
    table = _table(leaf) if what == name else None
    return what if table is None else f"{name} table {table}"


def _table(leaf: Any) -> str | None:
    """The table of the catalog that a leaf reads; None if it reads none."""
    if leaf.getClass().getSimpleName() == "StreamingRelation":
        found = leaf.dataSource().catalogTable()
        return str(found.get().identifier().toString()) if found.isDefined() else None
    found = leaf.identifier()
    return str(found.get().toString()) if found.isDefined() else None


def leaf_source(leaf: Any) -> tuple[str, dict[str, str]]:
    """The short name and the options of a leaf; without a name if it is not a streaming source."""
    kind = str(leaf.getClass().getSimpleName())
    if kind == "StreamingRelation":
        source = leaf.dataSource()
        name = str(source.className()).rpartition(".")[2].lower()
        return name, _entries(source.options())
    if kind == "StreamingRelationV2":
        entries = leaf.extraOptions().asCaseSensitiveMap()
        return str(leaf.sourceName()).lower(), {
            str(key).lower(): str(entries.get(key)) for key in entries.keySet().toArray()
        }
    return "", {}


def _entries(scala_map: Any) -> dict[str, str]:
    entries = scala_map.toSeq()
    return {
        str(entries.apply(number)._1()).lower(): str(entries.apply(number)._2())
        for number in range(entries.size())
    }
