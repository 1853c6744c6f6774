"""Gives state of a joined query the version of the query that it is now part of.

All state of a query has the version of the query's last batch. Two queries that are joined have run
different numbers of batches, so the state of one of them has to change its version. File names will
not do: a changelog names the versions before it. So Spark's ``StateRewriter`` reads the state and
writes all of it again as snapshots of the new version, as it does to repartition a query.

``assembly.py`` puts such state below ``joined/<vertex>/``, in a directory of its own with the
old query's logs and the operators' new numbers. ``rebased`` rewrites it there, moves it into
``state/``, and adds its ids to the commit log.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weir.core.types import TaskState
from weir.errors import PipelineError, StorageError
from weir.spark.failures import first_cause
from weir.spark.java import Jvm
from weir.spark.state.directory import QueryDirectory
from weir.spark.state.log_entries import StateIds
from weir.spark.state.rescale import REFUSALS
from weir.spark.state.rocksdb_files import relocate_operator_metadata
from weir.storage.paths import as_spark_path, join

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Where the state of another version is.
JOINED = "joined"

_JOINED_ENTRY = re.compile(rf"{JOINED}/(?P<vertex>[^/]+)/offsets/(?P<position>[0-9]+)")


def is_joined(key: str) -> bool:
    """Whether the file or entry of this key is state of another version."""
    return key.startswith(f"{JOINED}/")


def rebased(session: SparkSession, directory: QueryDirectory, state: TaskState) -> TaskState:
    """Rewrite the state below ``joined/``, in a directory that ``restore_directory`` filled.

    Returns the state that the directory then has. Raises ``PipelineError`` if Spark refuses, and
    ``StorageError`` if it failed and may succeed another time.
    """
    joined: dict[str, int] = {}
    for key in state.entries:
        match = _JOINED_ENTRY.fullmatch(key)
        if match is not None:
            joined[match["vertex"]] = max(int(match["position"]), joined.get(match["vertex"], 0))
    if not joined:
        return state
    fs = directory.fs
    fs.make_directory(directory.file("state"))
    ids: StateIds = {}
    for vertex, position in joined.items():
        own = QueryDirectory(fs, directory.file(join(JOINED, vertex)))
        relocate_operator_metadata(own)
        own.copy_offsets(position, state.position)
        ids |= _rewritten(session, own, position, state)
        for operator in fs.list(own.file("state")):
            fs.rename(own.file(f"state/{operator.name}"), directory.file(f"state/{operator.name}"))
    relocate_operator_metadata(directory)
    directory.add_state_ids(state.position, ids)
    fs.delete(directory.file(JOINED))
    return replace(
        state,
        entries={key: text for key, text in state.entries.items() if not is_joined(key)},
        files=tuple(file for file in state.files if not is_joined(file.key)),
    )


def _rewritten(
    session: SparkSession, own: QueryDirectory, position: int, state: TaskState
) -> StateIds:
    """Make Spark write the state again; return the ids by operator, partition and store."""
    jvm = Jvm(session)
    try:
        rewriter = jvm.sql_class("execution.streaming.state.StateRewriter")(
            jvm.java_session,
            position,
            state.position,
            as_spark_path(own.path),
            jvm.java_session.sessionState().newHadoopConf(),
            jvm.none,
            jvm.none,
            jvm.none,
        )
        found = rewriter.run().get()
    except Exception as error:
        cause = first_cause(error)
        what = (
            f"The state of the chain ending in {state.vertex!r}, which was joined from others,"
            " cannot be written for one query"
        )
        if not any(refusal in cause for refusal in REFUSALS):
            raise StorageError(f"{what}: {cause}.") from error
        raise PipelineError(
            f"{what}, because Spark says {cause}: keep the chains apart with start_new_chain()."
        ) from error
    ids: StateIds = {}
    keys = found.keysIterator()
    while keys.hasNext():
        operator: Any = keys.next()
        partitions = found.apply(operator)
        ids[str(operator)] = [[str(unique_id) for unique_id in stores] for stores in partitions]
    return ids
