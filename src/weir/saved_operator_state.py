"""The state of Python operators and their coordinators in a checkpoint or savepoint, as values (MISSION B7, G2)."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from weir.core.types import OperatorId, Payload, StateHandle, TaskState
from weir.operators.state import decode_lists
from weir.spark.operators import DIRECTORY
from weir.spark.saved_task import kept_operators

if TYPE_CHECKING:
    import pyarrow as pa

#: Reads a file of the snapshot.
ReadFile = Callable[[StateHandle], bytes]


@dataclass(frozen=True, kw_only=True)
class SavedOperatorState:
    """What one Python operator and its coordinator keep."""

    #: By name, the elements of each subtask: JSON values, or bytes where another serializer was used.
    lists: dict[str, list[list[Any]]] = field(default_factory=dict)
    #: By name, a table with the columns ``key`` and ``value``; of raw state, ``group`` (the key group) and ``raw`` (bytes).
    keyed: dict[str, pa.Table] = field(default_factory=dict)
    #: None if it has no coordinator, or that returned nothing.
    coordinator: Payload | None = None


def read_operator_state(
    task: TaskState, operator: OperatorId, coordinator: Payload | None, read: ReadFile
) -> SavedOperatorState:
    """The state of one operator of a task; without any, all of it is empty. Raises ``ValueError`` if it cannot be read."""
    kept = kept_operators(task).get(operator)
    if kept is None:
        return SavedOperatorState(coordinator=coordinator)
    handles = {handle.key: handle for handle in task.files}
    whole: dict[str, bytes] = {}

    def located(location: Mapping[str, Any]) -> bytes:
        if "inline" in location:
            return base64.b64decode(location["inline"])
        key = f"{DIRECTORY}/{location['file']}"
        if key not in whole:
            whole[key] = read(handles[key])
        return whole[key][location["offset"] : location["offset"] + location["length"]]

    subtasks = [decode_lists(located(kept["lists"][one])) for one in sorted(kept["lists"], key=int)]
    names = dict.fromkeys(name for lists in subtasks for name in lists)
    return SavedOperatorState(
        lists={
            name: [[_value(item) for item in lists[name][1]] if name in lists else [] for lists in subtasks]
            for name in names
        },
        keyed={name: _table(map(located, groups.values())) for name, groups in kept["groups"].items()},
        coordinator=coordinator,
    )


def _value(item: bytes) -> Any:
    try:
        return msgspec.json.decode(item)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return item


def _table(groups: Any) -> pa.Table:
    import pyarrow as pa

    tables = []
    try:
        for data in groups:
            with pa.ipc.open_stream(data) as reader:
                tables.append(reader.read_all())
            # Arrow believes what a stream says of its own buffers.
            tables[-1].validate(full=True)
        return pa.concat_tables(tables)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"a keyed state cannot be read: {error}") from error
