"""Raw keyed state of Python operators: bytes by key group (MISSION B7).

Only the operator can interpret them: an index, a sketch, a library's own model. Raw state that
belongs to the subtask is a list of bytes instead: ``list_state(name, BYTES)``.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import pyarrow as pa

from weir.errors import OperatorStateError

#: The schema of a raw key group in a checkpoint: a self-describing Arrow stream with one row.
_SCHEMA = pa.schema([("group", pa.int16()), ("raw", pa.binary())])


class RawKeyedState:
    """The raw bytes of one state name, by key group, in one subtask."""

    def __init__(self, name: str, groups: Mapping[int, bytes], owned: Container[int]) -> None:
        """``groups``: the restored state; ``owned``: the subtask's key groups."""
        self._name = name
        self._owned = owned
        self._bytes = {group: self._decoded(data) for group, data in groups.items()}
        self._changed: set[int] = set()
        self._current: pa.Array | None = None
        #: What ``roll_back`` returns to.
        self._marked: tuple[dict[int, bytes], set[int]] = ({}, set())

    @property
    def groups(self) -> list[int]:
        """The key groups with bytes in this subtask, ascending, each below 128.

        They move between subtasks when the parallelism changes.
        """
        return sorted(self._bytes)

    @property
    def record_groups(self) -> pa.Array:
        """The key group of each record being processed (int32).

        Raises ``OperatorStateError`` when no records are being processed.
        """
        if self._current is None:
            raise OperatorStateError(
                f"The raw state {self._name!r} has no key groups of records: give the step key_by,"
                " and ask in process_batch."
            )
        return self._current

    def get(self, group: int) -> bytes | None:
        """The bytes of a key group; None if it has none."""
        return self._bytes.get(group)

    def put(self, group: int, data: bytes) -> None:
        """Set a key group's bytes. Raises ``OperatorStateError`` for another subtask's group."""
        if group not in self._owned:
            raise OperatorStateError(
                f"The raw state {self._name!r} is given bytes for key group {group}, which belongs"
                " to another subtask: put those of record_groups or groups only."
            )
        self._bytes[group] = bytes(memoryview(data))
        self._changed.add(group)

    # ---- for the runtime

    def begin_batch(self, groups: pa.Array | None) -> None:
        """Records in these key groups are processed from now on; None: no records are."""
        self._current = groups

    def mark(self) -> None:
        """What changes from now on may be rolled back."""
        self._marked = dict(self._bytes), set(self._changed)

    def roll_back(self) -> None:
        """Undo what has changed since ``mark``."""
        self._bytes, self._changed = self._marked

    def changed_groups(self) -> dict[int, bytes]:
        """The groups that were set since the last call, encoded."""
        changed, self._changed = self._changed, set()
        return {group: _encoded_group(group, self._bytes[group]) for group in sorted(changed)}

    def _decoded(self, data: bytes) -> bytes:
        try:
            with pa.ipc.open_stream(data) as reader:
                rows = reader.read_all()
            # Arrow trusts what a stream says about its own buffers.
            rows.validate(full=True)
            if rows.num_rows != 1:
                raise pa.ArrowInvalid(f"it has {rows.num_rows} rows")
            raw: bytes = rows.cast(_SCHEMA)["raw"][0].as_py()
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise OperatorStateError(
                f"The raw state {self._name!r} cannot be read back ({error}): restore from another"
                " checkpoint or savepoint."
            ) from error
        return raw


def _encoded_group(group: int, data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_batch(
            pa.record_batch([pa.array([group], pa.int16()), pa.array([data])], schema=_SCHEMA)
        )
    return bytes(sink.getvalue())
