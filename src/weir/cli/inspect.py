"""``weir inspect``: what a checkpoint or savepoint holds.

Without ``--operator`` everything comes from the metadata. A Python operator's state is read from
the snapshot's files. Neither starts a JVM. For any other operator, and for ``--sql``, a local Spark
session reads the keyed state of the operator's vertex (``weir/spark/state/reader.py`` defines the
frames and their names).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from weir.cli.tables import make_table, shown_time
from weir.coordinators.rejects import rejects_in
from weir.core.types import CompletedCheckpoint, TaskState
from weir.readers.savepoint import SavedOperatorState, read_savepoint
from weir.spark.state.directory import SPARK_MAX_WATERMARK_MS
from weir.spark.state.reader import contents_of, first_rows, query_frames, rows_as_json, with_store
from weir.spark.state.saved_task import OperatorStateSize, operator_state_sizes, unfit
from weir.storage.file_systems import FileSystems
from weir.storage.snapshots import Snapshots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Rows shown of a table without ``--limit``.
_TABLE_ROWS = 20
#: The columns shown of a reject.
_REJECT = ("file", "line", "why")
#: What the table of staged batches shows.
_STAGED = (
    "Rows that were staged. The job commits them after it; a job that is restored from it commits"
    " first what is not committed yet."
)


def read_metadata(path: str) -> CompletedCheckpoint:
    """The checkpoint or savepoint at a path that needs no Spark, without a JVM."""
    return Snapshots(FileSystems()).read(path)


def inspection_table(checkpoint: CompletedCheckpoint) -> Group:
    """``weir inspect PATH``: the whole checkpoint, vertices, offsets, state, commits and files."""
    head = Text(
        f"{checkpoint.kind.value} {checkpoint.checkpoint_id} of job {checkpoint.job_id}, attempt"
        f" {checkpoint.attempt}\npath       {checkpoint.external_path}\ntriggered "
        f" {shown_time(checkpoint.timestamp_ms)}\ncompleted "
        f" {shown_time(checkpoint.completion_timestamp_ms)}\nsize      "
        f" {decimal(sum(task.state_size for task in checkpoint.tasks))} in {len(checkpoint.files)}"
        f" files\ndrained    {'yes' if checkpoint.drained else 'no'}\n"
    )
    parts: list[RenderableType] = [head]
    vertices = make_table(
        "vertex", "position", "state", "files", "size", "watermark", "next watermark", "operators"
    )
    offsets = make_table("vertex", "source", "offset")
    states = make_table("vertex", "stateful operator", "partitions", "size", "largest partition")
    commits = make_table("sink", "staged batches", "epochs")
    files = make_table("file", "size", "checksum")
    for task in checkpoint.tasks:
        contents = contents_of(task, checkpoint.external_path)
        vertices.add_row(
            Text(task.vertex),
            str(task.position),
            "finished" if task.fully_finished else "running",
            str(len(task.files)),
            decimal(task.state_size),
            _event_time(contents.watermark_ms),
            _event_time(contents.next_watermark_ms),
            Text(
                ", ".join(
                    _operator(operator.name, operator.fully_finished) for operator in task.operators
                )
            ),
        )
        for number, offset in enumerate(contents.source_offsets):
            offsets.add_row(Text(task.vertex), str(number), Text(offset))
        for state in contents.stateful_operators:
            sizes = state.partition_sizes
            states.add_row(
                Text(task.vertex),
                str(state.number),
                str(len(sizes)),
                decimal(sum(sizes)),
                decimal(max(sizes, default=0)),
            )
        for sink, epochs in _staged(task, checkpoint).items():
            commits.add_row(Text(sink), str(len(epochs)), ", ".join(dict.fromkeys(epochs)))
        for handle in task.files:
            files.add_row(Text(handle.path), decimal(handle.size), handle.checksum)
    parts.append(vertices)
    parts += [
        part
        for table in (offsets, states, _own_states(checkpoint))
        if table.row_count
        for part in (Text(""), table)
    ]
    parts += _reject_tables(checkpoint)
    if commits.row_count:
        parts += [Text(f"\n{_STAGED}"), commits]
    else:
        parts.append(Text("\nno rows were staged"))
    if files.row_count:
        parts += [Text(""), files]
    return Group(*parts)


def _own_states(checkpoint: CompletedCheckpoint) -> Table:
    """The sizes of the state of Python operators."""
    table = make_table("operator", "kind", "state", "keys", "size")
    for task in checkpoint.tasks:
        for size in _own_sizes(task, checkpoint.external_path):
            keys = (
                "" if size.kind != "keyed" else "unknown" if size.keys is None else f"{size.keys:,}"
            )
            table.add_row(Text(size.operator), size.kind, Text(size.name), keys, decimal(size.size))
    return table


def _reject_tables(checkpoint: CompletedCheckpoint) -> list[RenderableType]:
    """What sources could not read."""
    parts: list[RenderableType] = []
    for rejects in rejects_in(checkpoint.coordinator_states):
        newest = rejects.newest[-_TABLE_ROWS:]
        hidden = f" (newest {len(newest)} shown)" if rejects.count > len(newest) else ""
        table = make_table(*_REJECT)
        for reject in newest:
            table.add_row(*[Text(_as_text(reject.get(name, ""))) for name in _REJECT])
        parts += (
            [Text(""), Text(f"rejected by {rejects.operator}: {rejects.count}{hidden}"), table]
            if newest
            else []
        )
    return parts


def inspection_json(checkpoint: CompletedCheckpoint) -> str:
    """``weir inspect --json PATH``: the whole metadata with its path, decoded for each vertex."""
    fields: dict[str, Any] = msgspec.to_builtins(checkpoint)
    fields["vertices"] = [
        {
            "vertex": task.vertex,
            **msgspec.to_builtins(contents_of(task, checkpoint.external_path)),
            "operator_states": msgspec.to_builtins(_own_sizes(task, checkpoint.external_path)),
        }
        for task in checkpoint.tasks
    ]
    return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode()


def state_table(path: str, operator: str, *, sql: str | None, limit: int | None) -> Group:
    """``weir inspect PATH --operator NAME``: the first rows of each store, or of the answer."""
    rows_max = _TABLE_ROWS if limit is None else limit
    parts: list[RenderableType] = []
    own = _own_state(path, operator) if sql is None else None
    if own is not None:
        for name, columns, values in _stores(own):
            shown = list(islice(values, rows_max + 1))
            table = make_table(*columns)
            for value in shown[:rows_max]:
                table.add_row(*[Text(_as_text(cell)) for cell in value])
            parts += [Text(""), Text(name, style="bold"), table]
            if len(shown) > rows_max:
                parts.append(Text(f"first {rows_max} rows; --limit N shows more"))
        return Group(*parts[1:])
    with _asked(path, operator, sql) as frames:
        for name, frame in frames.items():
            rows = first_rows(frame, rows_max + 1)
            table = make_table(*frame.columns)
            for row in rows[:rows_max]:
                table.add_row(*[Text("NULL" if value is None else value) for value in row])
            parts += [Text(""), Text(name, style="bold")] if sql is None else []
            parts.append(table)
            if len(rows) > rows_max:
                parts.append(Text(f"first {rows_max} rows; --limit N shows more"))
    return Group(*parts[1:] if sql is None else parts)


def state_json(path: str, operator: str, *, sql: str | None, limit: int | None) -> Iterator[str]:
    """``weir inspect PATH --operator NAME --json``: each row as an object.

    Rows of the state name their store; rows of a query's answer do not.
    """
    own = _own_state(path, operator) if sql is None else None
    if own is not None:
        for name, columns, values in _stores(own):
            for value in islice(values, limit):
                row = {"store": name, **dict(zip(columns, value, strict=True))}
                yield msgspec.json.encode(row).decode()
        return
    with _asked(path, operator, sql) as frames:
        for name, frame in frames.items():
            named = with_store(frame, name) if sql is None else frame
            yield from rows_as_json(named, limit)


def _own_sizes(task: TaskState, path: str) -> tuple[OperatorStateSize, ...]:
    """The sizes of the state of Python operators. Raises ``CheckpointDamagedError``."""
    try:
        return operator_state_sizes(task)
    except ValueError as error:
        raise unfit(task, path, error) from error


def _own_state(path: str, operator: str) -> SavedOperatorState | None:
    """The state of a Python operator and its coordinator; None for other operators or if empty."""
    with read_savepoint(path) as savepoint:
        state = savepoint.operator_state(operator)
    kept = state.lists or state.keyed or state.coordinator is not None
    return state if kept else None


def _stores(
    state: SavedOperatorState,
) -> Iterator[tuple[str, tuple[str, ...], Iterable[tuple[Any, ...]]]]:
    """Name, columns and rows of each list, keyed state, rejects and the coordinator's state."""
    for name, lists in state.lists.items():
        rows = ((subtask, item) for subtask, items in enumerate(lists) for item in items)
        yield name, ("subtask", "item"), rows
    for name, table in state.keyed.items():
        columns = tuple(table.column_names)
        batches = table.to_batches()
        yield name, columns, (tuple(row.values()) for batch in batches for row in batch.to_pylist())
    if state.coordinator is not None:
        for rejects in rejects_in({"": state.coordinator}):
            yield (
                "rejects",
                _REJECT,
                (tuple(reject.get(name) for name in _REJECT) for reject in rejects.newest),
            )
        yield "coordinator", ("state",), [(state.coordinator,)]


def _as_text(value: Any) -> str:
    if value is None:
        return "NULL"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


@contextmanager
def _asked(path: str, operator: str, sql: str | None) -> Iterator[dict[str, DataFrame]]:
    """The operator's frames by name, or the answer of a query over them."""
    with read_savepoint(path) as savepoint:
        frames = savepoint.keyed_state(operator)
        yield frames if sql is None else {"answer": query_frames(frames, sql)}


def _operator(name: str, fully_finished: bool) -> str:
    return f"{name} (finished)" if fully_finished else name


def _staged(task: TaskState, checkpoint: CompletedCheckpoint) -> dict[str, list[str]]:
    """The epoch of each batch that a sink had staged; ``next`` if a later checkpoint commits it."""
    epochs: dict[str, list[str]] = {}
    for committable in task.committables:
        epoch = committable.epoch
        if epoch is None and checkpoint.kind.commits_side_effects and committable.left_out is None:
            epoch = checkpoint.checkpoint_id
        epochs.setdefault(committable.sink, []).append("next" if epoch is None else str(epoch))
    return epochs


def _event_time(watermark_ms: int | None) -> str:
    """A watermark in UTC: event times do not depend on this machine's time zone."""
    if not watermark_ms:
        return "none"
    if watermark_ms >= SPARK_MAX_WATERMARK_MS:
        return "end of input"
    return datetime.fromtimestamp(watermark_ms / 1000, UTC).isoformat(timespec="milliseconds")
